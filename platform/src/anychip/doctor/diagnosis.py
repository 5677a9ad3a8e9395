"""What doctor found, in sections, and what it comes to. Knows findings; makes none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from anychip_sdk.errors import AnychipError, PreconditionFailed
from anychip_sdk.finding import STATUSES, Finding, Status


@dataclass(frozen=True)
class Section:
    title: str
    findings: Sequence[Finding]


@dataclass(frozen=True)
class Diagnosis:
    sections: Sequence[Section]

    @property
    def counts(self) -> dict[Status, int]:
        """How many findings have each status."""
        found = Counter(one.status for section in self.sections for one in section.findings)
        return {status: found[status] for status in STATUSES}

    @property
    def exit_code(self) -> int:
        return PreconditionFailed.exit_code if self.counts["fail"] else 0

    def to_json(self) -> dict[str, object]:
        sections = [
            {"title": section.title, "findings": [asdict(one) for one in section.findings]} for section in self.sections
        ]
        return {"ok": self.exit_code == 0, "counts": self.counts, "sections": sections}


def problem(area: str, error: AnychipError, *, hint: str, status: Status = "fail") -> Finding:
    """An error as a finding; its own hint wins over the one given."""
    return Finding(area, status, error.message, hint=error.hint or hint)


__all__ = ["Diagnosis", "Section", "problem"]
