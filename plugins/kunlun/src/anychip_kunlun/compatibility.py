"""Which versions of the stack's parts go together. Knows ranges and their sources; asks no tool.

A wrong combination does not fail on this stack, it gets slow or wrong, so it is told by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

Severity = Literal["refused", "warned"]


class Range(NamedTuple):
    """What one part must be, or should be."""

    part: str
    ranges: tuple[str, ...]  #: any of them will do
    severity: Severity
    effect: str  #: of a version outside
    source: str


class Verdict(NamedTuple):
    """One part that is outside of its range."""

    part: str
    severity: Severity
    what: str
    expected: str
    hint: str
    source: str

    def __str__(self) -> str:
        return f"{self.what}; expected {self.expected}: {self.hint}"


TABLE: tuple[Range, ...] = (
    Range("driver", (">=5.0.21",), "refused", "the runtime's calls are not all there", "installation guide"),
    Range("torch", ("==2.5.*", "==2.9.*"), "warned", "the vendor builds for 2.5.1 and 2.9.0", "its installers"),
    Range("kunlun_ops", (">=0.1.58",), "warned", "ops and signatures before it are unknown", "vLLM-Kunlun #387"),
    Range(
        "xspeedgate_ops",
        (">=1.5",),
        "warned",
        "no weak_ref_tensor, so no graph is captured",
        "vLLM-Kunlun #220",
    ),
)
#: the components of a version that driver and runtime share
SHARED = 3


def judge(versions: Mapping[str, str]) -> tuple[Verdict, ...]:
    """What is wrong with these versions; parts without a version are left out."""
    found = [_verdict(row, versions[row.part]) for row in TABLE if row.part in versions]
    return tuple(one for one in (*found, _pair(versions)) if one is not None)


def _verdict(row: Range, version: str) -> Verdict | None:
    expected = " or ".join(row.ranges)
    try:
        fits = any(SpecifierSet(one).contains(Version(version), prereleases=True) for one in row.ranges)
    except InvalidVersion:
        fits = False
    what = f"{row.part} is {version}"
    return None if fits else Verdict(row.part, row.severity, what, expected, row.effect, row.source)


def _pair(versions: Mapping[str, str]) -> Verdict | None:
    """Driver and runtime come from one release: their first three numbers are the same."""
    if "driver" not in versions or "runtime" not in versions:
        return None
    driver, runtime = (versions[part].split(".")[:SHARED] for part in ("driver", "runtime"))
    if driver == runtime:
        return None
    what = f"driver {versions['driver']} and runtime {versions['runtime']} are of different releases"
    hint = "it runs, but slowly; install the pair of one release"
    return Verdict("runtime", "warned", what, f"a runtime {'.'.join(driver)}", hint, "vLLM-Kunlun #355")


__all__ = ["TABLE", "Range", "Verdict", "judge"]
