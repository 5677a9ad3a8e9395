"""What a run says of each op and dtype, as Markdown and CSV, and of each case as JUnit XML. Knows results."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Sequence
from xml.etree import ElementTree

from anychip_sdk.conformance.certify.verdict import verdict
from anychip_sdk.conformance.requirements import TRACKS
from anychip_sdk.conformance.results import CaseResult, Results
from anychip_sdk.ops import CATALOGUE

#: what XML can't hold
_ILLEGAL = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def op_state(cases: Iterable[CaseResult]) -> str:
    """How an op is served in one dtype: full, partial, fallback, none (not claimed), or how many cases fail."""
    own = [case for case in cases if case.track in ("op", "kv", "device")]
    run = [case for case in own if case.outcome != "not_claimed"]
    failed = sum(case.status in ("failed", "waived", "waiver_violated") for case in run)
    if failed:
        return f"{failed} failed"
    if not run:
        return "none"
    through = sum(case.outcome == "passed_via_fallback" for case in run)
    if not through:
        return "full"
    judged = sum(case.track != "device" for case in run)
    return "fallback" if through == judged else "partial"


def ops_markdown(results: Results) -> str:
    """A table op x dtype."""
    dtypes = results.claims.dtypes
    lines = [
        f"# Operators of {results.identity.backend} ({results.identity.distribution} {results.identity.version})",
        "",
        f"{verdict(results).word}, profile {results.profile}, level {results.level}, {results.finished}.",
        "",
        "full: every case passes on the backend's own kernels. partial: some cases run on the reference.",
        "fallback: all run on the reference. none: not claimed, so not tested; the reference serves it.",
        "",
        "| op | " + " | ".join(dtypes) + " |",
        "|---|" + "---|" * len(dtypes),
    ]
    for op in sorted(CATALOGUE):
        cells = [op_state(case for case in results.cases if (case.op, case.dtype) == (op, dtype)) for dtype in dtypes]
        lines.append(f"| {op} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def numerics_csv(results: Results) -> str:
    """The largest error of each op, dtype and shape class, as a share of its bound."""
    worst: dict[tuple[str, str, str, str], float] = {}
    for case in results.cases:
        if case.op and "headroom" in case.measured:
            key = (case.op, case.dtype, case.shape_class, case.requirement)
            worst[key] = max(worst.get(key, 0.0), case.measured["headroom"])
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(("op", "dtype", "shape_class", "requirement", "error_over_bound"))
    writer.writerows((*key, f"{value:.6g}") for key, value in sorted(worst.items()))
    return stream.getvalue()


def junit_xml(results: Results) -> str:
    """One test suite a track. A SHOULD that fails is no failure there, what is not claimed or waived is skipped."""
    root = ElementTree.Element("testsuites", name=f"conformance of {results.identity.backend}")
    for track in TRACKS:
        cases = [case for case in results.cases if case.track == track]
        if cases:
            root.append(_suite(track, cases, results))
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def _suite(track: str, cases: Sequence[CaseResult], results: Results) -> ElementTree.Element:
    bad = sum(_fails(case) for case in cases)
    skipped = sum(case.status in ("not_claimed", "waived") for case in cases)
    suite = ElementTree.Element(
        "testsuite",
        name=track,
        tests=str(len(cases)),
        failures=str(bad),
        errors="0",
        skipped=str(skipped),
        time=f"{sum(case.seconds for case in cases):.3f}",
        timestamp=results.started,
    )
    for case in cases:
        one = ElementTree.SubElement(
            suite, "testcase", classname=f"{track}.{case.requirement}", name=case.id, time=f"{case.seconds:.4f}"
        )
        message = _ILLEGAL.sub("?", case.message)
        if _fails(case):
            element = ElementTree.SubElement(one, "failure", message=message.partition("\n")[0], type=case.status)
            element.text = f"{message}\n{case.replay}"
        elif case.status == "not_claimed":
            ElementTree.SubElement(one, "skipped", message="not claimed: " + ", ".join(case.missing))
        elif case.status == "waived":
            ElementTree.SubElement(one, "skipped", message=f"waived: {message}")
        elif case.status == "failed":
            ElementTree.SubElement(one, "system-out").text = f"SHOULD: {message}"
    return suite


def _fails(case: CaseResult) -> bool:
    return case.force == "MUST" and case.status in ("failed", "waiver_violated")


__all__ = ["junit_xml", "numerics_csv", "op_state", "ops_markdown"]
