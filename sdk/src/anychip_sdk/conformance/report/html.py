"""The report as one HTML file that needs nothing else: no script, no font, no network. Knows results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from html import escape
from importlib.resources import files

from anychip_sdk.conformance.cases import load_checks
from anychip_sdk.conformance.certify.certificate import Certificate
from anychip_sdk.conformance.certify.verdict import Verdict, verdict, waiver_uses
from anychip_sdk.conformance.profiles import SCOPES
from anychip_sdk.conformance.report.charts import bars, heat_map, number
from anychip_sdk.conformance.report.diff import headroom
from anychip_sdk.conformance.report.tables import op_state
from anychip_sdk.conformance.requirements import REQUIREMENTS
from anychip_sdk.conformance.results import CaseResult, Results

FAILURES_SHOWN = 100


def report_html(results: Results, certificate: Certificate | None = None) -> str:
    """The whole page: the verdict first, then what led to it."""
    load_checks()
    found = verdict(results)
    title = f"Conformance of {results.identity.backend} {results.identity.version}"
    parts = [
        _head(results, found, certificate),
        _section("Identity", _facts(_identity(results))),
        _section("Profile and claims", _claims(results)),
        _section("Failures", _failures(results, found)),
        _section("Waivers", _waivers(results)),
        _section("Not claimed", _not_claimed(results)),
        _section("Errors as a share of their bound", _headroom(results)),
        _section("Operators", _ops(results)),
        _section("Streams, memory and leaks", _measured(results)),
        _section("Time", _time(results)),
        _section("Requirements", _requirements(results)),
        _section("Environment", _facts([*results.host.items(), *_suite(results, certificate)])),
    ]
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        '<meta name="viewport" content="width=device-width,initial-scale=1"><link rel="icon" href="data:,">'
        f"<style>{_style()}</style></head><body><main>{''.join(parts)}</main></body></html>\n"
    )


def _style() -> str:
    return files(__package__ or "").joinpath("report.css").read_text(encoding="utf-8")


def _head(results: Results, found: Verdict, certificate: Certificate | None) -> str:
    counts = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in results.counts().items() if count)
    signed = "no certificate" if certificate is None else certificate.signer
    signed = f"signed by {signed}" if certificate is not None and certificate.is_signed else signed
    emulated = " · EMULATED, no real device" if results.identity.emulated else ""
    return (
        f"<h1>Conformance of {escape(results.identity.backend)}</h1>"
        f'<div class="verdict {found.kind}"><b>{escape(found.word)}</b>'
        f"profile {results.profile} · level {results.level} · "
        f"{escape(f'{results.identity.distribution} {results.identity.version}')} · {escape(signed)}{emulated}</div>"
        f'<p class="soft">{escape(counts)} · {escape(results.finished)}</p>'
        + "".join(f"<p>Not everything was run: {escape(gap)}.</p>" for gap in found.gaps)
    )


def _identity(results: Results) -> list[tuple[str, str]]:
    one = results.identity
    versions = ", ".join(f"{name} {text}" for name, text in one.versions.items())
    return [
        ("backend", f"{one.backend} ({one.vendor})"),
        ("package", f"{one.distribution} {one.version}, API {one.api}"),
        ("files, SHA-256", one.digest),
        ("device", f"{one.product} ({one.device}), {one.memory_bytes / 2**30:.1f} GiB"),
        ("versions", versions or "none reported"),
        *((name, text) for name, text in one.attributes.items()),
        ("emulated", "yes" if one.emulated else "no"),
    ]


def _claims(results: Results) -> str:
    claims = results.claims
    true = [name for name, value in claims.capabilities.items() if value]
    false = [name for name, value in claims.capabilities.items() if not value]
    return _facts(
        [
            ("profile", f"{results.profile}: tracks {', '.join(SCOPES[results.profile].tracks)}"),
            ("dtypes", ", ".join(claims.dtypes)),
            ("capabilities", ", ".join(true) or "none"),
            ("not claimed", ", ".join(false) or "-"),
            ("ops", f"{len(claims.ops)}: {', '.join(sorted(claims.ops))}"),
            ("fusions", ", ".join(claims.fusions) or "none"),
            ("sums are kept in", ", ".join(f"{op}: {dtype}" for op, dtype in claims.accumulator.items()) or "float32"),
            ("subnormals", claims.subnormals),
            ("limits", ", ".join(f"{name} {value}" for name, value in claims.limits.items()) or "none"),
        ]
    )


def _failures(results: Results, found: Verdict) -> str:
    bad = [case for case in results.cases if case.status in ("failed", "waiver_violated")]
    parts = [_failure(case) for case in sorted(bad, key=lambda case: case.force)[:FAILURES_SHOWN]]
    if len(bad) > FAILURES_SHOWN:
        parts.append(f"<p>and {len(bad) - FAILURES_SHOWN} more, in results.json</p>")
    known = tuple(f"{case.id}: " for case in bad)
    parts += [f'<p class="bad">{escape(line)}</p>' for line in found.failures if not line.startswith(known or "\0")]
    return "".join(parts) or "<p>None.</p>"


def _failure(case: CaseResult) -> str:
    rule = REQUIREMENTS.get(case.requirement)
    evidence = f'<p>inputs, got, expected, bound: <a href="{escape(case.evidence)}">{escape(case.evidence)}</a></p>'
    return (
        f'<section class="failure"><b class="bad">{escape(case.id)}</b> '
        f'<span class="soft">{case.force}{", waiver violated" if case.status == "waiver_violated" else ""}</span>'
        f"<p>{escape(rule.text if rule else '')}</p><pre>{escape(case.message)}</pre>"
        + (f"<pre>$ {escape(case.replay)}</pre>" if case.replay else "")
        + (evidence if case.evidence else "")
        + "</section>"
    )


def _waivers(results: Results) -> str:
    uses = waiver_uses(results)
    if not uses:
        return "<p>None.</p>"
    rows = [
        (
            use.waiver.requirement,
            use.waiver.reason,
            use.waiver.link,
            str(use.waiver.expires),
            use.problem or f"holds for {len(use.cases)} cases",
        )
        for use in uses
    ]
    return _table(("waives", "reason", "link", "expires", "state"), rows)


def _not_claimed(results: Results) -> str:
    cases = [case for case in results.cases if case.outcome == "not_claimed"]
    if not cases:
        return "<p>Everything is claimed.</p>"
    rows = [
        (key, _text(key), ", ".join(sorted({need for case in group for need in case.missing})), str(len(group)))
        for key, group in _grouped(cases, lambda case: case.requirement)
    ]
    return _table(("requirement", "text", "lacks the claims", "cases"), rows)


def _headroom(results: Results) -> str:
    values = headroom(results)
    if not values:
        return "<p>Nothing was measured.</p>"
    ops = sorted({op for op, _ in values})
    note = '<p class="soft">Largest error of all cases: 0 is exact, above 1 fails. By shape class: numerics.csv.</p>'
    return note + heat_map(ops, results.claims.dtypes, values)


def _ops(results: Results) -> str:
    dtypes = results.claims.dtypes
    ops = sorted({case.op for case in results.cases if case.op})
    rows = [
        (op, *(op_state(case for case in results.cases if (case.op, case.dtype) == (op, dtype)) for dtype in dtypes))
        for op in ops
    ]
    return _table(("op", *dtypes), rows) if rows else "<p>No op was tested.</p>"


def _measured(results: Results) -> str:
    """A chart per figure and unit, of the tracks where time and growth matter."""
    found: dict[str, list[tuple[str, float]]] = {}
    for case in results.cases:
        if case.track in ("device", "memory", "copy", "stream"):
            for name, value in case.measured.items():
                found.setdefault(name, []).append((case.id, value))
    charts = []
    for name, values in sorted(found.items()):
        unit = "s" if name.endswith("_s") else "B" if "bytes" in name else ""
        worst = max(abs(value) for _, value in values)
        charts.append(
            f"<h3>{escape(name.replace('_', ' '))} <span class='soft'>up to {number(worst)} {unit}</span></h3>"
        )
        charts.append(bars(values[:40], unit))
    return "".join(charts) or "<p>Nothing was measured.</p>"


def _time(results: Results) -> str:
    tracks = _grouped(results.cases, lambda case: case.track)
    total = [(track, sum(case.seconds for case in group)) for track, group in tracks]
    slowest = sorted(results.cases, key=lambda case: -case.seconds)[:10]
    return (
        bars(total, "s")
        + "<details><summary>the ten slowest cases</summary>"
        + bars([(case.id, case.seconds) for case in slowest], "s")
        + "</details>"
    )


def _requirements(results: Results) -> str:
    rows = []
    for key, group in _grouped(results.cases, lambda case: case.requirement):
        states = {status: sum(case.status == status for case in group) for status in results.counts()}
        text = ", ".join(f"{count} {status.replace('_', ' ')}" for status, count in states.items() if count)
        rows.append((key, _text(key), text))
    return _table(("requirement", "text", "cases"), rows)


def _suite(results: Results, certificate: Certificate | None) -> list[tuple[str, str]]:
    score = certificate.kill_score if certificate is not None else None
    killed = f"{score.killed} of {score.mutants} broken devices are caught" if score else "selftest was not run here"
    return [
        ("suite", f"{results.suite.version}, sources {results.suite.digest}"),
        ("suite's kill score", killed),
        ("seeds", results.seeds),
        ("started", results.started),
        ("finished", results.finished),
    ]


def _text(key: str) -> str:
    return REQUIREMENTS[key].text if key in REQUIREMENTS else ""


def _grouped(cases: Iterable[CaseResult], key: Callable[[CaseResult], str]) -> list[tuple[str, list[CaseResult]]]:
    groups: dict[str, list[CaseResult]] = {}
    for case in cases:
        groups.setdefault(key(case), []).append(case)
    return list(groups.items())


def _section(title: str, body: str) -> str:
    return f"<h2>{escape(title)}</h2>{body}"


def _facts(facts: Iterable[tuple[str, str]]) -> str:
    rows = "".join(f'<tr><th scope="row">{escape(name)}</th><td>{escape(value)}</td></tr>' for name, value in facts)
    return f'<table class="facts"><tbody>{rows}</tbody></table>'


def _table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in headers)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<table class="list"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'


__all__ = ["report_html"]
