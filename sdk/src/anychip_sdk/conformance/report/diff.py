"""Two runs side by side: what got worse, what was mended, where errors grew. Knows results; runs nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from anychip_sdk.conformance.results import CaseResult, Results

DRIFT_FACTOR = 1.5
DRIFT_LEAST = 0.05  #: of the bound: below it, growth is of no interest
#: from good to bad; a case that moves to the right got worse
_ORDER = ("passed", "passed_via_fallback", "not_claimed", "waived", "waiver_violated", "failed")


@dataclass(frozen=True)
class Change:
    """One case that differs; an absent case has the status "absent"."""

    id: str
    force: str
    before: str
    after: str
    message: str = ""

    def __str__(self) -> str:
        return f"{self.id}: {self.before} -> {self.after}" + (f": {self.message}" if self.message else "")


@dataclass(frozen=True)
class Drift:
    """The largest error of an op and dtype, as a share of its bound."""

    op: str
    dtype: str
    before: float
    after: float

    def __str__(self) -> str:
        return f"{self.op} {self.dtype}: {self.before:.3f} -> {self.after:.3f} of the bound"


@dataclass(frozen=True)
class Difference:
    regressions: tuple[Change, ...]
    fixed: tuple[Change, ...]
    added: tuple[str, ...]
    drifts: tuple[Drift, ...]


def difference(old: Results, new: Results) -> Difference:
    """What changed. A case that is no longer run, no longer claimed or newly served by the reference got worse."""
    before = {case.id: case for case in old.cases}
    after = {case.id: case for case in new.cases}
    worse, better = [], []
    for name, was in before.items():
        if new.only and name not in after:
            continue
        change = _change(was, after.get(name))
        rank_before, rank_after = _rank(change.before), _rank(change.after)
        if rank_after > rank_before:
            worse.append(change)
        elif rank_after < rank_before:
            better.append(change)
    added = tuple(name for name in after if name not in before)
    worse += [
        Change(name, after[name].force, "absent", after[name].status, after[name].message)
        for name in added
        if after[name].status in ("failed", "waiver_violated")
    ]
    return Difference(tuple(worse), tuple(better), added, _drifts(old, new))


def headroom(results: Results) -> dict[tuple[str, str], float]:
    """(op, dtype) -> the largest error as a share of its bound."""
    found: dict[tuple[str, str], float] = {}
    for case in results.cases:
        if case.op and "headroom" in case.measured:
            key = (case.op, case.dtype)
            found[key] = max(found.get(key, 0.0), case.measured["headroom"])
    return found


def _drifts(old: Results, new: Results) -> tuple[Drift, ...]:
    before: Mapping[tuple[str, str], float] = headroom(old)
    return tuple(
        Drift(op, dtype, before[op, dtype], value)
        for (op, dtype), value in sorted(headroom(new).items())
        if (op, dtype) in before and value >= DRIFT_LEAST and value > DRIFT_FACTOR * before[op, dtype]
    )


def _change(was: CaseResult, now: CaseResult | None) -> Change:
    if now is None:
        return Change(was.id, was.force, was.status, "absent")
    return Change(was.id, was.force, was.status, now.status, now.message)


def _rank(status: str) -> int:
    return _ORDER.index("not_claimed" if status == "absent" else status)


__all__ = ["Change", "Difference", "Drift", "difference", "headroom"]
