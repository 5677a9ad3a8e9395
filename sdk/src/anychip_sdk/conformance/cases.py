"""Which cases a run consists of: all checks that are installed, times their inputs. Knows claims; runs nothing."""

from __future__ import annotations

import hashlib
import pkgutil
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from anychip_sdk.conformance import checks
from anychip_sdk.conformance.claims import Claims
from anychip_sdk.conformance.requirements import REQUIREMENTS, TRACKS, Case, Level, Requirement, Track
from anychip_sdk.errors import PreconditionFailed
from anychip_sdk.installed import check_modules
from anychip_sdk.ops import CATALOGUE

#: what decides a verdict besides the checks themselves
_SUITE = ("anychip_sdk.conformance", "anychip_sdk.ops", "anychip_sdk.testing")


@dataclass(frozen=True)
class Planned:
    """One case of one requirement.

    Attributes:
        id: AC-OP-001[linear-float32-tails], or AC-DEVICE-001 for a requirement without cases; seeds the case.
        missing: claims that it needs and that are not made; with any, it is not run.
    """

    id: str
    requirement: Requirement
    case: Case | None
    missing: tuple[str, ...]

    @property
    def op(self) -> str:
        return str(self.case.params.get("op", "")) if self.case is not None else ""

    @property
    def dtype(self) -> str:
        return str(self.case.params.get("dtype", "")) if self.case is not None else ""

    @property
    def shape_class(self) -> str:
        return str(self.case.params.get("class", "")) if self.case is not None else ""


@lru_cache(maxsize=1)
def load_checks() -> tuple[Track, ...]:
    """Register every requirement: the SDK's, and those of the packages that are installed; the tracks that have any.

    Raises:
        PreconditionFailed: a library that the checks use is not installed.
    """
    own = [f"{checks.__name__}.{one.name}" for one in pkgutil.iter_modules(checks.__path__) if one.name[0] != "_"]
    try:
        for module in (*own, *check_modules()):
            import_module(module)
    except ModuleNotFoundError as error:
        message = f"the conformance suite needs {error.name}, which is not installed"
        raise PreconditionFailed(message, hint="pip install 'anychip-sdk[conformance]'") from error
    present = {one.track for one in REQUIREMENTS.values()}
    return tuple(track for track in TRACKS if track in present)


@lru_cache(maxsize=1)
def suite_version() -> str:
    return version("anychip-sdk")


@lru_cache(maxsize=1)
def suite_digest() -> str:
    """SHA-256 over the sources of the checks and of all that judges."""
    total = hashlib.sha256()
    for package in (*_SUITE, *sorted(further_packages())):
        spec = find_spec(package)
        for location in (spec.submodule_search_locations or ()) if spec is not None else ():
            for path in sorted(Path(location).rglob("*.py")):
                name = f"{package}/{path.relative_to(location).as_posix()}"
                total.update(f"{name}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return total.hexdigest()


def plan_cases(
    claims: Claims, level: Level, tracks: Iterable[Track] = TRACKS, only: Sequence[str] = ()
) -> tuple[Planned, ...]:
    """The cases in the order in which they run.

    Args:
        claims: decide which inputs there are and which cases are not claimed.
        level: how many inputs.
        tracks: those to run.
        only: globs over case ids, requirement ids or tracks; none: everything.
    """
    load_checks()
    wanted = set(tracks)
    found = [
        planned for rule in REQUIREMENTS.values() if rule.track in wanted for planned in _cases_of(rule, claims, level)
    ]
    return tuple(one for one in found if not only or any(matches(pattern, one) for pattern in only))


def matches(pattern: str, one: Planned) -> bool:
    """Whether a glob with `*` and `?` names the case, its requirement or its track; brackets stand for themselves."""
    text = re.escape(pattern).replace(r"\*", ".*").replace(r"\?", ".")
    return any(re.fullmatch(text, name) for name in (one.id, one.requirement.id, one.requirement.track))


def group_of(one: Planned, level: Level) -> str:
    """Cases of a group share a process: a track, and from std on a family of ops."""
    track = one.requirement.track
    if level == "smoke" or track != "op" or one.op not in CATALOGUE:
        return track
    return f"{track}-{CATALOGUE[one.op].reference.__module__.rpartition('.')[2]}"


def _cases_of(rule: Requirement, claims: Claims, level: Level) -> list[Planned]:
    lacking = tuple(need for need in rule.needs if not claims.holds(need))
    if rule.cases is None:
        return [Planned(rule.id, rule, None, lacking)]
    cases = {f"{rule.id}[{case.id}]": case for case in rule.cases(claims, level)}
    return [
        Planned(name, rule, case, (*lacking, *(need for need in case.needs if not claims.holds(need))))
        for name, case in cases.items()
    ]


def further_packages() -> set[str]:
    """The packages besides the SDK's that bring requirements."""
    return {module.rpartition(".")[0] for module in check_modules()}


__all__ = [
    "Planned",
    "further_packages",
    "group_of",
    "load_checks",
    "matches",
    "plan_cases",
    "suite_digest",
    "suite_version",
]
