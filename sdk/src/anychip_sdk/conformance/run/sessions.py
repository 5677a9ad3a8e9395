"""What a vendor's own tests run the suite on, case by case. Knows workers; knows no pytest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import count
from pathlib import Path

from anychip_sdk.conformance.cases import Planned, group_of, plan_cases
from anychip_sdk.conformance.claims import Waiver
from anychip_sdk.conformance.profiles import SCOPES
from anychip_sdk.conformance.requirements import LEVELS
from anychip_sdk.conformance.run.child import Job
from anychip_sdk.conformance.run.host import now
from anychip_sdk.conformance.run.runner import TIMEOUT_S, Options
from anychip_sdk.conformance.run.target import Target, find_target
from anychip_sdk.conformance.run.worker import Worker
from anychip_sdk.device import DeviceConfig
from anychip_sdk.errors import UsageError
from anychip_sdk.profiles import PROFILES

VARIABLES = {
    "BACKEND": "ANYCHIP_CONFORMANCE_BACKEND",
    "PROFILE": "ANYCHIP_CONFORMANCE_PROFILE",
    "LEVEL": "ANYCHIP_CONFORMANCE_LEVEL",
    "EMULATE": "ANYCHIP_CONFORMANCE_EMULATE",
}
_numbers = count()


@dataclass(frozen=True)
class Chosen:
    """What a test file tests."""

    target: Target
    options: Options

    def planned(self) -> tuple[Planned, ...]:
        tracks = SCOPES[self.options.profile].tracks
        return tuple(one for one in plan_cases(self.target.claims, self.options.level, tracks) if not one.missing)


class Workers:
    """A process per group of cases, one at a time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._key: tuple[str, str] = ("", "")
        self._worker: Worker | None = None
        self._environments: dict[str, Mapping[str, str] | None] = {}

    def for_case(self, chosen: Chosen, one: Planned) -> Worker:
        key = (chosen.target.name, group_of(one, chosen.options.level))
        if self._worker is None or key != self._key:
            self.end()
            limit_s = TIMEOUT_S[chosen.options.level]
            job = Job(
                chosen.target.load,
                chosen.target.claims,
                chosen.options.level,
                None,
                chosen.options.config,
                self._folder / "repro",
                1,
                limit_s,
                self._environments.get(chosen.target.name),
            )
            self._worker = Worker(job, self._folder / f"{next(_numbers)}.log", limit_s)
            self._key = key
        return self._worker

    def end(self) -> None:
        if self._worker is not None:
            self._environments[self._key[0]] = self._worker.environment
            problem = self._worker.close()
            self._worker = None
            assert not problem, problem


@lru_cache(maxsize=4)
def choose(backend: str, profile: str, level: str, *, emulate: bool = False) -> Chosen:
    """What those names mean.

    Raises:
        UsageError: no such profile or level, or no backend named.
        PreconditionFailed: the backend is not installed, or without a manifest.
    """
    if not backend:
        message = "no backend is named for the conformance suite"
        raise UsageError(message, hint=f"set BACKEND in the test file, or {VARIABLES['BACKEND']}")
    if profile not in PROFILES or level not in LEVELS:
        message = f"there is no profile '{profile}' at level '{level}'"
        raise UsageError(message, hint=f"profiles: {', '.join(PROFILES)}; levels: {', '.join(LEVELS)}")
    config = DeviceConfig(emulate=emulate, threads=1)
    return Chosen(find_target(backend, emulate=emulate), Options(profile=profile, level=level, config=config))


def waiver_of(chosen: Chosen, one: Planned) -> Waiver | None:
    """The waiver that still holds for a case."""
    today = now()[:10]
    waivers: Sequence[Waiver] = chosen.target.claims.waivers
    named = (one.id, one.requirement.id)
    return next((w for w in waivers if w.requirement in named and w.expires.isoformat() >= today), None)


__all__ = ["VARIABLES", "Chosen", "Workers", "choose", "waiver_of"]
