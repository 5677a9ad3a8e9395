"""What a run found, as `results.json` holds it: the source of truth of every report. Knows its form; judges nothing."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import date
from pathlib import Path
from typing import Any, Literal, cast

from anychip_sdk.conformance.claims import Claims, Waiver
from anychip_sdk.conformance.requirements import LEVELS, Force, Level
from anychip_sdk.errors import IntegrityFailed
from anychip_sdk.profiles import PROFILES, Profile

SCHEMA_VERSION = 1
FILE = "results.json"
Outcome = Literal["passed", "failed", "not_claimed", "passed_via_fallback"]
Status = Literal["passed", "failed", "not_claimed", "passed_via_fallback", "waived", "waiver_violated"]
OUTCOMES: tuple[Outcome, ...] = ("passed", "failed", "not_claimed", "passed_via_fallback")
STATUSES: tuple[Status, ...] = (*OUTCOMES, "waived", "waiver_violated")


@dataclass(frozen=True)
class CaseResult:
    """One case.

    Attributes:
        outcome: what the check said.
        status: the same with the waivers applied.
        force: MUST or SHOULD, of its requirement.
        missing: claims that are not made, where it is not claimed.
        measured: figures such as headroom, the largest error as a share of its bound.
        fallbacks: ops that the reference served.
        replay: the command that runs this case alone; where it failed.
        evidence: the file with inputs, got, expected and bound, relative to the results' folder.
    """

    id: str
    requirement: str
    track: str
    force: Force
    outcome: Outcome
    status: Status
    message: str = ""
    seconds: float = 0.0
    op: str = ""
    dtype: str = ""
    shape_class: str = ""
    missing: tuple[str, ...] = ()
    measured: Mapping[str, float] = field(default_factory=dict)
    fallbacks: tuple[str, ...] = ()
    replay: str = ""
    evidence: str = ""


@dataclass(frozen=True)
class Identity:
    """What was tested, exactly."""

    backend: str
    distribution: str
    version: str
    digest: str  #: SHA-256 of the installed files
    vendor: str
    api: str
    device: str
    product: str
    memory_bytes: int
    versions: Mapping[str, str] = field(default_factory=dict)
    attributes: Mapping[str, str] = field(default_factory=dict)
    emulated: bool = False


@dataclass(frozen=True)
class Suite:
    """What tested it.

    Attributes:
        digest: of the sources of the checks.
        absent: track -> why it could not be run.
    """

    version: str
    digest: str
    absent: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Results:
    """A whole run. Times are UTC, ISO 8601.

    Attributes:
        only: the globs that limited it; a limited run has no verdict.
        seeds: how each case's seed is made.
    """

    identity: Identity
    host: Mapping[str, str]
    suite: Suite
    profile: Profile
    level: Level
    only: tuple[str, ...]
    claims: Claims
    started: str
    finished: str
    cases: tuple[CaseResult, ...]
    seeds: str = "SHA-256 of the case's id"
    schema_version: int = SCHEMA_VERSION

    def counts(self) -> dict[str, int]:
        """Status -> cases."""
        return {status: sum(case.status == status for case in self.cases) for status in STATUSES}


def to_json(results: Results) -> str:
    return json.dumps(asdict(results), indent=1, ensure_ascii=False, default=_plain) + "\n"


def save(results: Results, folder: Path) -> Path:
    """Write results.json at once or not at all."""
    path = folder / FILE
    partial = path.with_suffix(".partial")
    partial.write_text(to_json(results), encoding="utf-8")
    os.replace(partial, path)
    return path


def load_results(folder: Path) -> Results:
    """What a folder (or a results.json) holds.

    Raises:
        IntegrityFailed: there is none, or it is damaged.
    """
    path = folder / FILE if folder.is_dir() else folder
    try:
        return from_json(json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        message = f"{path}: can't be read: {error.strerror}"
        raise IntegrityFailed(message, hint="name the folder that a conformance run wrote") from error
    except (ValueError, TypeError, KeyError) as error:
        message = f"{path}: is damaged: {error}"
        raise IntegrityFailed(message) from error


def from_json(value: Mapping[str, Any]) -> Results:
    """Raises ValueError, TypeError or KeyError where the form is wrong."""
    if value.get("schema_version") != SCHEMA_VERSION:
        message = f"schema_version is {value.get('schema_version')!r}, this is {SCHEMA_VERSION}"
        raise ValueError(message)
    if value["profile"] not in PROFILES or value["level"] not in LEVELS:
        message = f"there is no profile {value['profile']!r} at level {value['level']!r}"
        raise ValueError(message)
    parts = {
        "identity": Identity(**value["identity"]),
        "suite": Suite(**value["suite"]),
        "claims": claims_from_json(value["claims"]),
        "only": tuple(value["only"]),
        "cases": tuple(case_from_json(case) for case in value["cases"]),
    }
    return Results(**{**value, **parts})


def case_from_json(value: Mapping[str, Any]) -> CaseResult:
    found = CaseResult(**{**value, "missing": tuple(value["missing"]), "fallbacks": tuple(value["fallbacks"])})
    if found.outcome not in OUTCOMES or found.status not in STATUSES or found.force not in ("MUST", "SHOULD"):
        message = f"{found.id}: outcome {found.outcome!r}, status {found.status!r}, force {found.force!r}"
        raise ValueError(message)
    return found


def claims_from_json(value: Mapping[str, Any]) -> Claims:
    waivers = tuple(Waiver(**{**one, "expires": date.fromisoformat(one["expires"])}) for one in value["waivers"])
    names: Sequence[str] = ("dtypes", "fusions")
    tuples = {name: tuple(value[name]) for name in names}
    ops = {op: tuple(dtypes) for op, dtypes in value["ops"].items()}
    return Claims(**{**cast("dict[str, Any]", value), **tuples, "ops": ops, "waivers": waivers})


def _plain(value: object) -> object:
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, Mapping):
        return dict(value)
    message = f"{type(value).__name__} has no JSON form"
    raise TypeError(message)


__all__ = [
    "FILE",
    "OUTCOMES",
    "SCHEMA_VERSION",
    "STATUSES",
    "CaseResult",
    "Identity",
    "Outcome",
    "Results",
    "Status",
    "Suite",
    "case_from_json",
    "claims_from_json",
    "from_json",
    "load_results",
    "save",
    "to_json",
]
