"""docs/conformance.md, written from the requirements themselves. Knows their texts; runs nothing.

python -m anychip_sdk.conformance.report.docs > docs/conformance.md
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

from anychip_sdk.conformance.cases import load_checks
from anychip_sdk.conformance.claims import CAPABILITIES
from anychip_sdk.conformance.coverage import EXEMPT, covered
from anychip_sdk.conformance.mutants import Mutant, load_mutants
from anychip_sdk.conformance.profiles import SCOPES
from anychip_sdk.conformance.requirements import REQUIREMENTS, TRACKS, Requirement
from anychip_sdk.profiles import PROFILES

TITLES = {
    "device": "Devices: finding, opening, side effects",
    "memory": "Device memory",
    "copy": "Copies",
    "stream": "Streams and events",
    "op": "Kernels",
    "kv": "KV pools",
    "graph": "Rewriting of graphs",
    "e2e": "Serving, end to end",
}
COVERS_SHOWN = 4
HEAD = """\
# The conformance suite

<!-- Written by `python -m anychip_sdk.conformance.report.docs`; a test compares. Change the requirements instead. -->

The suite decides whether a backend is right. It tests the claims that a backend's package makes in `conformance.yaml`:
what is claimed must pass, what isn't is recorded as not claimed, and a profile says which claims must be made. Nothing
can be skipped while it runs.

## How to run it

    platform conformance run acme --profile bringup            # or python -m anychip_sdk.conformance run ...
    platform conformance run acme --profile serving-full --level std --out results
    platform conformance run acme --only 'AC-OP-001[linear-*'  # some cases; there is no verdict then
    platform conformance verify results                        # recompute the verdict and every digest
    platform conformance diff old new                          # what got worse, and how errors drift
    platform conformance selftest                              # does the suite catch what it should?
    platform conformance list                                  # this page's requirements

Each group of cases runs in a process of its own, each case within a time limit: a crash or a hang is that case's
failure, and the rest goes on. These processes start with the variables that the backend names for the engine's worker
(`BackendInfo.environment`), where the user set none: what is tested is what serves. A case's seed is made of its id,
so each failure comes with the one command that repeats it, and with its inputs, results, expected values and bounds
in a file. Levels change how many inputs there are, never what is allowed: `smoke` (seconds to two minutes), `std` (a
certificate's usual one), `deep` and `soak`.

## What a case and a run are called

| Status | Meaning |
| --- | --- |
| `passed` | the requirement holds, on the backend's own kernels |
| `passed_via_fallback` | it holds, but the reference served an op: no credit for the backend |
| `failed` | it is violated, or the case crashed, hung or left the device unusable |
| `not_claimed` | the manifest doesn't claim what the requirement is about |
| `waived` | it fails, and a waiver that still holds says so |
| `waiver_violated` | a waiver that has expired, or what it waives passes |

| Verdict | When | Exit code |
| --- | --- | --- |
| CONFORMANT | every MUST of the profile holds | 0 |
| CONFORMANT WITH n WAIVERS | all but what dated waivers name | 0 |
| NOT CONFORMANT | a MUST is violated, a waiver is broken, or a claim that the profile needs isn't made | 7 |
| PARTIAL: no verdict | only a part was run | 10 |

A violated SHOULD is a warning in the report.
"""


def markdown() -> str:
    """The whole page."""
    load_checks()
    mutants = load_mutants()
    by_key: dict[str, list[str]] = {}
    for one in mutants.values():
        for key in one.kills:
            by_key.setdefault(key, []).append(one.name)
    parts = [HEAD, _profiles(), _claims(), _requirements(by_key), _exemptions(), _matrix(mutants.values())]
    return "\n".join(parts)


def _profiles() -> str:
    rows = []
    for name in PROFILES:
        scope = SCOPES[name]
        claims = [*scope.needs, *(f"op:{op}" for op in scope.ops)]
        rows.append((f"`{name}`", ", ".join(scope.tracks), ", ".join(f"`{one}`" for one in claims) or "none"))
    return "## Profiles\n\n" + _table(("Profile", "Tracks", "Claims that must be made"), rows)


def _claims() -> str:
    text = (
        "## Claims\n\nBesides dtypes, ops per dtype, fusions and limits, a manifest claims capabilities. "
        "A claim that is not made leaves out the requirements that need it.\n"
    )
    rows = [
        (f"`{name}`", meaning, ", ".join(key for key, rule in REQUIREMENTS.items() if name in rule.needs))
        for name, meaning in CAPABILITIES.items()
    ]
    return f"{text}\n{_table(('Claim', 'Meaning', 'Needed by'), rows)}"


def _requirements(by_key: dict[str, list[str]]) -> str:
    musts = sum(rule.force == "MUST" for rule in REQUIREMENTS.values())
    lines = [
        f"## Requirements\n\n{len(REQUIREMENTS)} requirements, {musts} of them MUST. MUST and SHOULD are those of "
        "RFC 2119. An id is never given again.\n"
    ]
    for track in TRACKS:
        rules = [rule for rule in REQUIREMENTS.values() if rule.track == track]
        if rules:
            lines.append(f"### {TITLES[track]}\n")
            lines += [_requirement(rule, by_key.get(rule.id, [])) for rule in rules]
    return "\n".join(lines)


def _requirement(rule: Requirement, mutants: Sequence[str]) -> str:
    lines = [f"**{rule.id}** ({rule.force}, since {rule.since}) {rule.text}", ""]
    if rule.needs:
        lines.append(f"- needs: {', '.join(f'`{one}`' for one in rule.needs)}")
    if rule.covers:
        shown = [f"`{one}`" for one in rule.covers[:COVERS_SHOWN]]
        more = len(rule.covers) - len(shown)
        lines.append(f"- covers: {', '.join(shown)}" + (f" and {more} more" if more else ""))
    if mutants:
        lines.append(f"- kills: {', '.join(sorted(mutants))}")
    return "\n".join([*lines, ""] if lines[-1] else lines)


def _exemptions() -> str:
    rows = [(f"`{name}`", reason) for name, reason in EXEMPT.items()]
    return (
        "## What is covered\n\nEvery hook, device capability, op of the catalogue and shipped fusion has a requirement "
        f"({len(covered())} have), or is exempt for a reason; a test fails where one has neither.\n\n"
        + _table(("Exempt", "Why"), rows)
    )


def _matrix(mutants: Iterable[Mutant]) -> str:
    ordered = sorted(mutants, key=lambda one: (list(REQUIREMENTS).index(one.kills[0]), one.name))
    rows = [(one.name, one.fault, ", ".join(one.kills)) for one in ordered]
    return (
        f"## Kill matrix\n\nThe suite is tested itself: {len(ordered)} backends are wrong in one way each, and "
        "`platform conformance selftest` shows that each is failed by the requirements named here, that every MUST "
        "fails at least one, and that the healthy chip passes them all. Certificates state the result. A kill counts "
        "where a check found the fault. A mutant that raises since it was written for other arguments than it gets is "
        "reported as killed by accident and fails the selftest; one whose fault is to raise names what it raises. "
        "Where a fault lies in memory, copies, streams, ops or the KV pool, the other requirements of that track that "
        "it fails are listed too.\n\n" + _table(("Mutant", "Fault", "Found by"), rows)
    )


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(markdown())

__all__ = ["markdown"]
