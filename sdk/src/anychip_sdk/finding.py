"""One line of a diagnosis: what was looked at, how it is, what to do. Knows no check."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

Status = Literal["ok", "warn", "fail", "info"]
STATUSES: tuple[Status, ...] = get_args(Status)


@dataclass(frozen=True)
class Finding:
    """What a check found.

    Attributes:
        area: what it belongs to, a word or two: `driver`, `huge pages`.
        status: ok; warn: it works, but worse than it could; fail: something needed is missing; info: to be known.
        what: what was found.
        expected: what should have been found.
        hint: what to do; needed for warn and fail.
        source: where the expectation comes from, in free text: a document, a version table, "inferred".

    Raises:
        ValueError: an unknown status, no area or text, or a problem without a hint.
    """

    area: str
    status: Status
    what: str
    expected: str = ""
    hint: str = ""
    source: str = ""

    def __post_init__(self) -> None:
        problems = []
        if self.status not in STATUSES:
            problems.append(f"status is {self.status!r}, must be one of {', '.join(STATUSES)}")
        if not self.area.strip() or not self.what.strip():
            problems.append("area and what must not be empty")
        if self.status in ("warn", "fail") and not self.hint.strip():
            problems.append(f"status {self.status} needs a hint: what to do about it")
        if problems:
            message = f"finding '{self.area}': {'; '.join(problems)}"
            raise ValueError(message)


__all__ = ["STATUSES", "Finding", "Status"]
