"""What a check of a plugin found. Knows exit codes; checks nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Literal

from anychip_sdk.errors import BackendBroken, ConformanceFailed

#: package: the wheel and its metadata; contract: loading and probing; claims: conformance.yaml against the plugin
Area = Literal["package", "manifest", "contract", "claims"]


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong, and what was expected."""

    area: Area
    text: str


@dataclass(frozen=True)
class Report:
    """One backend.

    Attributes:
        name: its entry point's; empty where there is none.
        module: what the entry point imports.
        facts: what the plugin said of itself: api, vendor, hooks, kernels, devices.
        notes: what is allowed and worth knowing.
    """

    subject: str
    name: str
    distribution: str
    version: str
    module: str
    facts: Mapping[str, object] = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        return not self.problems

    @property
    def exit_code(self) -> int:
        """0, 7 where only claims are untrue, 4 where the plugin can't be relied upon at all."""
        if self.passed:
            return 0
        only_claims = all(problem.area == "claims" for problem in self.problems)
        return ConformanceFailed.exit_code if only_claims else BackendBroken.exit_code

    def as_json(self) -> dict[str, object]:
        return {**asdict(self), "passed": self.passed}


def exit_code(reports: Sequence[Report]) -> int:
    """Of several: the gravest."""
    codes = {report.exit_code for report in reports}
    return next((code for code in (BackendBroken.exit_code, ConformanceFailed.exit_code) if code in codes), 0)


def as_text(report: Report) -> str:
    """For people: what was found, then all that is wrong, then what is worth knowing."""
    title = f"{report.name or '?'}  {report.distribution} {report.version}  {report.module}".rstrip()
    lines = [title, *(f"  {name:<9} {_plain(value)}" for name, value in report.facts.items() if value)]
    lines += [f"  {problem.area}: {problem.text}" for problem in report.problems]
    lines += [f"  note: {note}" for note in report.notes]
    count = len(report.problems)
    lines.append("  ok" if report.passed else f"  {count} problem{'s' * (count != 1)}")
    return "\n".join(lines)


def _plain(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


__all__ = ["Area", "Problem", "Report", "as_text", "exit_code"]
