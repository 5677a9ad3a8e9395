"""Check a run's folder: recompute the verdict and every digest, believe no stored word. Knows results; runs nothing."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from anychip_sdk.conformance.cases import plan_cases, suite_digest
from anychip_sdk.conformance.certify.certificate import Certificate, certificate_of, load_certificate, seal_problems
from anychip_sdk.conformance.certify.verdict import Verdict, untruths, verdict
from anychip_sdk.conformance.profiles import SCOPES
from anychip_sdk.conformance.results import FILE as RESULTS
from anychip_sdk.conformance.results import Results, load_results
from anychip_sdk.errors import IntegrityFailed

#: not in the results, so only the digest and the signature protect them
_OWN = ("issued", "kill_score", "public_key", "digest", "signature", "schema_version")


@dataclass(frozen=True)
class Verified:
    """A folder that holds what it says.

    Attributes:
        signed_by: the key's short name; None: unsigned, so it proves nothing about who made it.
        notes: what could not be checked here.
    """

    verdict: Verdict
    certificate: Certificate
    results: Results
    signed_by: str | None
    notes: tuple[str, ...] = ()


def verify(folder: Path, public_key: Path | None = None) -> Verified:
    """Recompute everything that a folder's certificate says.

    Args:
        folder: with results.json and certificate.json.
        public_key: ed25519, PEM: the only one that may have signed it. None: any may, and nobody need.

    Raises:
        IntegrityFailed: all that does not fit.
    """
    stored = load_certificate(folder)
    results = load_results(folder)
    problems = seal_problems(stored, public_key)
    try:
        right = certificate_of(results, hashlib.sha256((folder / RESULTS).read_bytes()).hexdigest())
        problems += [*contradictions(stored, right), *untruths(results)]
    except (ValueError, TypeError, AttributeError) as error:  # a date, version or number that is none
        message = f"{folder / RESULTS}: is damaged: {error}"
        raise IntegrityFailed(message) from error
    notes = []
    if results.suite.digest == suite_digest():
        problems += left_out(results)
    else:
        notes.append(
            f"made by suite {results.suite.version} ({results.suite.digest[:12]}), which is not installed here"
        )
    if problems:
        shown = "\n".join(f"  {problem}" for problem in problems[:20])
        more = f"\n  and {len(problems) - 20} more" if len(problems) > 20 else ""
        message = f"{folder}: not what the suite wrote:\n{shown}{more}"
        raise IntegrityFailed(message, hint="run the suite again; edited results prove nothing")
    return Verified(verdict(results), stored, results, stored.signer if stored.is_signed else None, tuple(notes))


def contradictions(stored: Certificate, right: Certificate) -> list[str]:
    """Fields of the certificate that the results contradict, the verdict by its words."""
    problems = []
    if stored.verdict != right.verdict or stored.is_conformant != right.is_conformant:
        problems.append(f"the certificate says {stored.verdict}; recomputed from results.json it is {right.verdict}")
    said, found = asdict(stored), asdict(right)
    for name in found:
        if name in (*_OWN, "verdict", "is_conformant") or said[name] == found[name]:
            continue
        problems.append(f"{name}: the certificate says {_short(said[name])}, the results give {_short(found[name])}")
    return problems


def left_out(results: Results) -> Sequence[str]:
    """Cases that this very suite runs for these claims and that the results lack, invent or describe otherwise."""
    planned = {
        one.id: one for one in plan_cases(results.claims, results.level, SCOPES[results.profile].tracks, results.only)
    }
    found = {case.id: case for case in results.cases}
    absent = set(results.suite.absent)
    problems = [
        f"{name} is missing in the results"
        for name, one in planned.items()
        if name not in found and one.requirement.track not in absent
    ]
    for name, case in found.items():
        if name not in planned:
            if not absent:  # another machine may lack tracks that are here, not the other way round
                problems.append(f"{name} is no case of this suite")
            continue
        one = planned[name]
        if case.force != one.requirement.force or case.requirement != one.requirement.id:
            problems.append(f"{name} is a {case.force} of {case.requirement} in the results")
        if (case.outcome == "not_claimed") != bool(one.missing):
            problems.append(f"{name} is {case.outcome}, though its claims are {'not ' if one.missing else ''}made")
    return problems


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 80 else text[:77] + "..."


__all__ = ["Verified", "contradictions", "left_out", "verify"]
