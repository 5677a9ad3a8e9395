"""What the suite's commands do, for both command lines: `platform conformance` and `python -m`. Knows no terminal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from anychip_sdk.conformance.cases import load_checks
from anychip_sdk.conformance.certify.store import keep, store_kill_score, stored_kill_score
from anychip_sdk.conformance.certify.verdict import Verdict, verdict
from anychip_sdk.conformance.certify.verify import verify
from anychip_sdk.conformance.profiles import SCOPES
from anychip_sdk.conformance.report.diff import difference
from anychip_sdk.conformance.report.report import finish, rewrite
from anychip_sdk.conformance.requirements import REQUIREMENTS
from anychip_sdk.conformance.results import Results, load_results
from anychip_sdk.conformance.run.runner import Listener, Options, run
from anychip_sdk.conformance.run.target import find_target
from anychip_sdk.errors import ConformanceFailed, Inconclusive, Regression, UsageError
from anychip_sdk.profiles import Profile

FAILURES_SHOWN = 20


@dataclass(frozen=True)
class Answer:
    """What a command says and how it exits."""

    code: int
    value: dict[str, Any]
    text: str


def list_requirements(profile: Profile | None = None) -> Answer:
    """Every requirement, or those of a profile."""
    load_checks()
    tracks = SCOPES[profile].tracks if profile is not None else None
    found = [rule for rule in REQUIREMENTS.values() if tracks is None or rule.track in tracks]
    rows = [
        {
            "id": rule.id,
            "track": rule.track,
            "force": rule.force,
            "text": rule.text,
            "since": rule.since,
            "needs": list(rule.needs),
            "covers": list(rule.covers),
        }
        for rule in found
    ]
    lines = [
        f"{rule.id:<15} {rule.force:<6} {rule.text}" + (f" [{', '.join(rule.needs)}]" if rule.needs else "")
        for rule in found
    ]
    return Answer(0, {"requirements": rows}, "\n".join(lines))


def conduct(
    name: str,
    options: Options,
    *,
    out: Path | None = None,
    claims: Path | None = None,
    key: Path | None = None,
    listen: Listener | None = None,
) -> Answer:
    """Run the suite, write the reports and the certificate; keep that where the verdict is good.

    Args:
        name: an installed backend, module:attribute of a plugin object, or the path of a shared object.
        options: which cases.
        out: the folder to write; None: one named after the backend, in the present folder.
        claims: another manifest than the package's.
        key: to sign with.
        listen: is told of each case as it ends.
    """
    emulate = options.config.emulate
    target = find_target(name, claims, emulate=emulate)
    folder = out or Path("conformance") / "-".join(
        (target.claims.name, options.profile, options.level, *(("part",) if options.only else ()))
    )
    results = run(target, options, folder, listen)
    if find_target(name, claims, emulate=emulate).digest != target.digest:
        message = f"the files of backend '{name}' changed while it was tested, so the results are of no one version"
        raise ConformanceFailed(message, hint="run it again")
    certificate = finish(folder, results, key=key, kill_score=stored_kill_score())
    found = verdict(results)
    kept = keep(folder, certificate) if found.is_conformant else None
    value = {
        **_summary(results, found),
        "folder": str(folder),
        "signed": certificate.is_signed,
        "certificate": str(kept or folder / "certificate.json"),
    }
    lines = [_text(results, found), f"report: {folder / 'report.html'}"]
    signed = f"signed by {certificate.signer}" if certificate.is_signed else "unsigned: anybody could have written it"
    if kept is not None:
        lines.append(f"certificate: {kept / 'certificate.json'} ({signed})")
    return Answer(_code(found), value, "\n".join(lines))


def report(folder: Path) -> Answer:
    """Write the reports of a run again."""
    written = rewrite(folder)
    return Answer(0, {"files": [str(path) for path in written]}, "\n".join(map(str, written)))


def check(folder: Path, public_key: Path | None = None) -> Answer:
    """Verify a folder; exits as its recomputed verdict says."""
    found = verify(folder, public_key)
    by = f"signed by {found.signed_by}" if found.signed_by else "unsigned: anybody could have written it"
    value = {**_summary(found.results, found.verdict), "signed_by": found.signed_by, "notes": list(found.notes)}
    lines = [f"intact, {by}", *found.notes, _text(found.results, found.verdict)]
    return Answer(_code(found.verdict), value, "\n".join(lines))


def compare(old: Path, new: Path) -> Answer:
    """What changed between two runs; exits 6 where something got worse."""
    found = difference(load_results(old), load_results(new))
    parts = (
        ("regressions", found.regressions),
        ("fixed", found.fixed),
        ("drift of errors", found.drifts),
        ("new cases", found.added),
    )
    lines = [
        f"{title}: {len(items)}" + "".join(f"\n  {str(item).splitlines()[0]}" for item in items[:FAILURES_SHOWN])
        for title, items in parts
    ]
    return Answer(Regression.exit_code if found.regressions else 0, asdict(found), "\n".join(lines))


def self_test(only: Sequence[str] = (), listen: Callable[[str], None] | None = None) -> Answer:
    """Let the suite judge devices that are broken on purpose; exits 7 where it misses one."""
    try:
        module = import_module("anychip_sdk.conformance.selftest")
    except ModuleNotFoundError as error:
        message = "this installation of anychip-sdk comes without broken devices, so the suite can't test itself"
        raise UsageError(message, hint="pip install anychip-sdk[conformance]") from error
    found = module.selftest(only=tuple(only), listen=listen)
    if not only:
        store_kill_score(found.score)
    return Answer(0 if found.passed else ConformanceFailed.exit_code, found.to_json(), found.text())


def _summary(results: Results, found: Verdict) -> dict[str, Any]:
    return {
        "verdict": found.word,
        "backend": results.identity.backend,
        "distribution": results.identity.distribution,
        "version": results.identity.version,
        "device": results.identity.product,
        "emulated": results.identity.emulated,
        "profile": results.profile,
        "level": results.level,
        "counts": results.counts(),
        "failures": list(found.failures),
        "warnings": list(found.warnings),
        "gaps": list(found.gaps),
        "waived": list(found.waived),
    }


def _text(results: Results, found: Verdict) -> str:
    counts = ", ".join(f"{count} {status.replace('_', ' ')}" for status, count in results.counts().items() if count)
    emulated = ", EMULATED" if results.identity.emulated else ""
    lines = [f"{found.word}  ({results.identity.backend}, {results.profile}, {results.level}{emulated}: {counts})"]
    lines += [f"  not everything was run: {gap}" for gap in found.gaps]
    replays = {case.id: case.replay for case in results.cases if case.replay}
    for line in found.failures[:FAILURES_SHOWN]:
        lines.append(f"  FAILED {line.splitlines()[0]}")
        command_line = replays.get(line.partition(": ")[0])
        lines += [f"         {command_line}"] if command_line else []
    if len(found.failures) > FAILURES_SHOWN:
        lines.append(f"  and {len(found.failures) - FAILURES_SHOWN} more failures, see the report")
    lines += [f"  warning: {line.splitlines()[0]}" for line in found.warnings[:FAILURES_SHOWN]]
    return "\n".join(lines)


def _code(found: Verdict) -> int:
    if found.kind == "not_conformant":
        return ConformanceFailed.exit_code
    return Inconclusive.exit_code if found.kind == "partial" else 0


__all__ = ["Answer", "check", "compare", "conduct", "list_requirements", "report", "self_test"]
