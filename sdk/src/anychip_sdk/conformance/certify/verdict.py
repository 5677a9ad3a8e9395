"""The verdict on a run, recomputed from its results alone. Knows waivers and profiles; runs nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime
from typing import Literal

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from anychip_sdk.conformance.claims import Waiver
from anychip_sdk.conformance.profiles import SCOPES, missing_claims
from anychip_sdk.conformance.results import CaseResult, Outcome, Results, Status

Kind = Literal["conformant", "conformant_with_waivers", "not_conformant", "partial"]


@dataclass(frozen=True)
class Verdict:
    """A word and what leads to it.

    Attributes:
        word: CONFORMANT, CONFORMANT WITH n WAIVERS, NOT CONFORMANT, or PARTIAL: no verdict.
        failures: violated MUSTs and broken waivers, by case or waiver.
        warnings: violated SHOULDs.
        gaps: why the run can't lead to a verdict.
        waived: the cases that fail as their waivers say.
    """

    kind: Kind
    word: str
    failures: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    gaps: tuple[str, ...] = ()
    waived: tuple[str, ...] = ()

    @property
    def is_conformant(self) -> bool:
        return self.kind in ("conformant", "conformant_with_waivers")


@dataclass(frozen=True)
class WaiverUse:
    """What became of one waiver: problem is empty where it holds."""

    waiver: Waiver
    cases: tuple[str, ...]
    problem: str = ""


def judged(results: Results) -> Results:
    """The same results, each case with the status that its outcome and the waivers give it."""
    uses = waiver_uses(results)
    waived = {case for use in uses if not use.problem for case in use.cases}
    violated = {case for use in uses if use.problem for case in use.cases}

    def status(case: CaseResult) -> Status:
        if case.outcome == "failed" and case.id in waived:
            return "waived"
        if case.id in violated and case.outcome != "not_claimed":
            return "waiver_violated"
        return case.outcome

    return replace(results, cases=tuple(replace(case, status=status(case)) for case in results.cases))


def waiver_uses(results: Results) -> tuple[WaiverUse, ...]:
    """Strict: a waiver that has expired, matches nothing, or whose cases all pass is a violation."""
    today = datetime.fromisoformat(results.started).date()
    outcomes = {case.id: case.outcome for case in results.cases}
    return tuple(
        _use(waiver, outcomes, today, results.identity.version, bool(results.only)) for waiver in results.claims.waivers
    )


def verdict(results: Results, requirements: Mapping[str, object] | None = None) -> Verdict:
    """Judge a run.

    Args:
        results: the outcomes count; stored statuses do not.
        requirements: ids that must have been run for a whole verdict; None: those of the results.
    """
    fresh = judged(results)
    failures = [f"waiver {use.waiver.requirement}: {use.problem}" for use in waiver_uses(results) if use.problem]
    failures += [_line(case) for case in fresh.cases if case.force == "MUST" and _is_bad(case)]
    if not results.only:
        missing = missing_claims(results.claims, results.profile)
        failures += [f"profile {results.profile} needs the claim {claim}, which is not made" for claim in missing]
    warnings = tuple(_line(case) for case in fresh.cases if case.force == "SHOULD" and _is_bad(case))
    waived = tuple(case.id for case in fresh.cases if case.status == "waived")
    gaps = _gaps(results, requirements)
    count = len({use.waiver.requirement for use in waiver_uses(results) if not use.problem})
    kind, word = _word(bool(failures), bool(gaps), count)
    return Verdict(kind, word, tuple(failures), warnings, gaps, waived)


def _word(failed: bool, partial: bool, waivers: int) -> tuple[Kind, str]:
    if failed:
        return "not_conformant", "NOT CONFORMANT"
    if partial:
        return "partial", "PARTIAL: no verdict"
    if waivers:
        return "conformant_with_waivers", f"CONFORMANT WITH {waivers} WAIVER{'S' if waivers > 1 else ''}"
    return "conformant", "CONFORMANT"


def _gaps(results: Results, requirements: Mapping[str, object] | None) -> tuple[str, ...]:
    gaps = [f"track {track}: {why}" for track, why in results.suite.absent.items()]
    if results.only:
        gaps.insert(0, f"limited to {', '.join(results.only)}")
    run = {case.requirement for case in results.cases}
    tracks = {case.track for case in results.cases}
    for track in SCOPES[results.profile].tracks:
        if track not in tracks and track not in results.suite.absent and not results.only:
            gaps.append(f"track {track}: none of its requirements was run")
    if requirements is not None and not results.only:
        gaps += [f"requirement {key} was not run" for key in requirements if key not in run]
    return tuple(gaps)


def _use(waiver: Waiver, outcomes: Mapping[str, Outcome], today: date, version: str, is_partial: bool) -> WaiverUse:
    cases = tuple(name for name in outcomes if name == waiver.requirement or name.startswith(waiver.requirement + "["))
    found = [outcomes[name] for name in cases]
    failing = tuple(name for name in cases if outcomes[name] == "failed")
    if not cases and is_partial:
        return WaiverUse(waiver, ())
    if waiver.expires < today:
        return WaiverUse(waiver, failing or cases, f"expired on {waiver.expires}")
    if waiver.versions and not _contains(waiver.versions, version):
        return WaiverUse(waiver, failing, f"is for versions {waiver.versions}; this is {version}")
    if not cases or all(outcome == "not_claimed" for outcome in found):
        return WaiverUse(waiver, (), "matches no case that was run")
    if not failing:
        return WaiverUse(waiver, cases, "everything that it waives passes: remove it")
    return WaiverUse(waiver, failing)


def _contains(specifier: str, version: str) -> bool:
    try:
        return SpecifierSet(specifier).contains(Version(version), prereleases=True)
    except InvalidVersion:
        return False


def _is_bad(case: CaseResult) -> bool:
    """Of cases that pass, a broken waiver speaks once for all."""
    return case.outcome == "failed" and case.status != "waived"


def _line(case: CaseResult) -> str:
    return f"{case.id}: {case.message or case.status}"


def untruths(results: Results) -> Sequence[str]:
    """Stored statuses that the outcomes and waivers contradict."""
    fresh = judged(results)
    return [
        f"{stored.id} is stored as {stored.status}; recomputed it is {right.status}"
        for stored, right in zip(results.cases, fresh.cases, strict=True)
        if stored.status != right.status
    ]


__all__ = ["Kind", "Verdict", "WaiverUse", "judged", "untruths", "verdict", "waiver_uses"]
