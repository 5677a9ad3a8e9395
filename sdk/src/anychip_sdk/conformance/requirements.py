"""What a conformant backend must do, as numbered requirements with the checks that test them. Knows no device.

A check is a function that raises `Violation` where a backend breaks its requirement:

    @requirement("AC-STREAM-003", level="MUST", text="A stream that waits for an event MUST ...", covers=("hook:...",))
    def consumer_waits(context: Context) -> None: ...

A requirement that is tested over many inputs names them: `cases` yields them from the claims and the level, and the
check takes one. Each case is a result of its own, `AC-OP-001[linear-bfloat16-tail]`, seeded by that name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from anychip_sdk.conformance.claims import Claims

Track = Literal["device", "memory", "copy", "stream", "op", "kv", "graph", "e2e"]
Force = Literal["MUST", "SHOULD"]
Level = Literal["smoke", "std", "deep", "soak"]

TRACKS: tuple[Track, ...] = ("device", "memory", "copy", "stream", "op", "kv", "graph", "e2e")
LEVELS: tuple[Level, ...] = ("smoke", "std", "deep", "soak")

_ID = re.compile(r"AC-[A-Z0-9]+-\d{3}")


@dataclass(frozen=True)
class Case:
    """One input of a requirement that has many."""

    id: str  #: letters, digits, dots and dashes
    params: Mapping[str, Any] = field(default_factory=dict)
    needs: tuple[str, ...] = ()  #: claims beyond the requirement's own


Cases = Callable[["Claims", Level], Iterable[Case]]
Check = Callable[..., None]


@dataclass(frozen=True)
class Requirement:
    """One rule.

    Attributes:
        id: AC-<TRACK>-<number>; never used again once given.
        text: one sentence with the RFC 2119 word.
        needs: claims under which it applies, e.g. "async_streams"; where one is false, it is recorded as not claimed.
        covers: what it tests, for the coverage gate: "hook:<name>", "capability:<field>", "op:<name>", "fusion:<name>".
        check: takes a Context, and a Case where `cases` is given.
    """

    id: str
    track: Track
    force: Force
    text: str
    since: str
    needs: tuple[str, ...]
    covers: tuple[str, ...]
    check: Check
    cases: Cases | None


class Requirements(Mapping[str, Requirement]):
    """All requirements by id, in the order of tracks and numbers."""

    def __init__(self) -> None:
        self._known: dict[str, Requirement] = {}

    def __getitem__(self, key: str) -> Requirement:
        return self._known[key]

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._known, key=lambda key: (TRACKS.index(self._known[key].track), key)))

    def __len__(self) -> int:
        return len(self._known)

    def add(self, new: Requirement) -> None:
        if not _ID.fullmatch(new.id):
            message = f"requirement id {new.id!r} is not of the form AC-TRACK-001"
            raise ValueError(message)
        if new.id in self._known:
            message = f"requirement {new.id} is defined twice"
            raise ValueError(message)
        if new.force not in new.text:
            message = f"requirement {new.id}: its text has no {new.force}"
            raise ValueError(message)
        self._known[new.id] = new


REQUIREMENTS = Requirements()


def requirement(
    key: str,
    *,
    level: Force,
    text: str,
    covers: tuple[str, ...] = (),
    needs: tuple[str, ...] = (),
    cases: Cases | None = None,
    since: str = "1.0",
) -> Callable[[Check], Check]:
    """Put a check among the requirements; its track is the middle of its id."""

    def wrap(check: Check) -> Check:
        track = key.split("-")[1].lower()
        if track not in TRACKS:
            message = f"requirement {key}: there is no track {track}"
            raise ValueError(message)
        new = Requirement(key, track, level, text, since, needs, covers, check, cases)
        REQUIREMENTS.add(new)
        return check

    return wrap


class Violation(Exception):
    """A backend breaks a requirement.

    Args:
        message: what was done, what was expected, what came.
        evidence: values that are saved for the report: tensors (inputs, got, expected, bound) and plain values.
    """

    def __init__(self, message: str, **evidence: Any) -> None:
        super().__init__(message)
        self.message = message
        self.evidence = evidence


def expect(holds: bool, message: str, **evidence: Any) -> None:
    """Raise a Violation unless it holds."""
    if not holds:
        raise Violation(message, **evidence)


__all__ = [
    "LEVELS",
    "REQUIREMENTS",
    "TRACKS",
    "Case",
    "Force",
    "Level",
    "Requirement",
    "Requirements",
    "Track",
    "Violation",
    "expect",
    "requirement",
]
