"""Write everything that a run's folder holds besides results.json. Knows which file is whose; computes nothing."""

from __future__ import annotations

from pathlib import Path

from anychip_sdk.conformance.certify.certificate import FILE as CERTIFICATE
from anychip_sdk.conformance.certify.certificate import Certificate, KillScore, issue, load_certificate
from anychip_sdk.conformance.report.html import report_html
from anychip_sdk.conformance.report.tables import junit_xml, numerics_csv, ops_markdown
from anychip_sdk.conformance.results import Results, load_results


def write_reports(folder: Path, results: Results, certificate: Certificate | None = None) -> tuple[Path, ...]:
    """junit.xml, ops.md, numerics.csv and report.html."""
    texts = {
        "report.html": report_html(results, certificate),
        "junit.xml": junit_xml(results),
        "ops.md": ops_markdown(results),
        "numerics.csv": numerics_csv(results),
    }
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    return tuple(folder / name for name in texts)


def finish(
    folder: Path, results: Results, *, key: Path | None = None, kill_score: KillScore | None = None
) -> Certificate:
    """The certificate and the reports of a run that just ended."""
    certificate = issue(folder, results, key=key, kill_score=kill_score)
    write_reports(folder, results, certificate)
    return certificate


def rewrite(folder: Path) -> tuple[Path, ...]:
    """The reports once more, from results.json.

    Raises:
        IntegrityFailed: the folder holds no results, or damaged ones.
    """
    results = load_results(folder)
    certificate = load_certificate(folder) if (folder / CERTIFICATE).is_file() else None
    return write_reports(folder, results, certificate)


__all__ = ["finish", "rewrite", "write_reports"]
