"""The certificates that this machine has: kept by runs, or shipped inside a package. Knows folders; runs nothing."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from packaging.utils import canonicalize_name
from packaging.version import Version

from anychip_sdk.conformance.cases import suite_digest, suite_version
from anychip_sdk.conformance.certify.certificate import FILE, Certificate, KillScore, load_certificate, seal_problems
from anychip_sdk.conformance.results import FILE as RESULTS
from anychip_sdk.errors import IntegrityFailed
from anychip_sdk.home import home
from anychip_sdk.installed import installed_digest, installed_modules
from anychip_sdk.profiles import PROFILES


@dataclass(frozen=True)
class Found:
    """A certificate of a distribution; `problem` says why it doesn't count, and is empty where it does."""

    certificate: Certificate
    path: Path
    problem: str = ""


def keep(folder: Path, certificate: Certificate) -> Path:
    """Copy a run's certificate and results to where `valid_certificate_for` looks."""
    identity = certificate.identity
    name = f"{canonicalize_name(identity.distribution)}-{identity.version}-{certificate.profile}-{identity.digest[:12]}"
    target = home() / "certificates" / name
    target.mkdir(parents=True, exist_ok=True, mode=0o700)
    for file in (RESULTS, FILE):
        shutil.copyfile(folder / file, target / file)
    return target


def valid_certificate_for(distribution: str, digest: str | None = None) -> Certificate | None:
    """The best certificate that holds for what is installed: the highest profile, signed rather than not, the newest.

    Args:
        distribution: its name.
        digest: of its files; None: computed from the installed package.
    """
    valid = [one.certificate for one in certificates_for(distribution, digest) if not one.problem]
    return max(valid, key=lambda one: (PROFILES.index(one.profile), one.is_signed, one.issued), default=None)


def certificates_for(distribution: str, digest: str | None = None) -> tuple[Found, ...]:
    """Every certificate of a distribution on this machine, with the reason why it does not count."""
    found = []
    for path in _paths(distribution):
        try:
            certificate = load_certificate(path)
        except IntegrityFailed:
            continue  # of a distribution that can't be told
        if canonicalize_name(certificate.identity.distribution) == canonicalize_name(distribution):
            found.append(Found(certificate, path, _problem(certificate, distribution, digest)))
    return tuple(found)


def store_kill_score(score: KillScore) -> None:
    """Remember what the selftest of this very suite found."""
    path = _score_path()
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    path.write_text(json.dumps({"killed": score.killed, "mutants": score.mutants}) + "\n", encoding="utf-8")


def stored_kill_score() -> KillScore | None:
    """What the selftest of this very suite found here; None where it was not run."""
    try:
        value = json.loads(_score_path().read_text(encoding="utf-8"))
        return KillScore(int(value["killed"]), int(value["mutants"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _score_path() -> Path:
    return home() / "selftest" / f"{suite_digest()}.json"


def _paths(distribution: str) -> Iterator[Path]:
    yield from sorted((home() / "certificates").glob(f"*/{FILE}"))
    for module in installed_modules(distribution):
        spec = find_spec(module.partition(".")[0])
        for location in (spec.submodule_search_locations or ()) if spec is not None else ():
            if (Path(location) / FILE).is_file():
                yield Path(location) / FILE


def _problem(certificate: Certificate, distribution: str, digest: str | None) -> str:
    wrong = seal_problems(certificate)
    if wrong:
        return "; ".join(wrong)
    if not certificate.is_conformant:
        return f"its verdict is {certificate.verdict}"
    present = digest or installed_digest(distribution, certificate.identity.backend)
    if present != certificate.identity.digest:
        return f"it is for other files (version {certificate.identity.version}) than those installed"
    if not _is_current(certificate.suite_version):
        return f"it was made by suite {certificate.suite_version}; this is {suite_version()}"
    return ""


def _is_current(text: str) -> bool:
    """Made by this minor version of the suite, or the one behind it."""
    made, present = Version(text), Version(suite_version())
    return made.major == present.major and 0 <= present.minor - made.minor <= 1


__all__ = ["Found", "certificates_for", "keep", "store_kill_score", "stored_kill_score", "valid_certificate_for"]
