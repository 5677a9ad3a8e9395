"""The certificate of a run: what was tested, by what, with which verdict; sealed, and signed if there is a key.

Unsigned, it shows every accident and every hasty edit, but anybody can write one. Signed, only who has the key can.
Knows results; runs nothing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anychip_sdk.conformance.certify.verdict import Verdict, verdict
from anychip_sdk.conformance.requirements import Level
from anychip_sdk.conformance.results import FILE as RESULTS
from anychip_sdk.conformance.results import Identity, Results
from anychip_sdk.conformance.run.host import now
from anychip_sdk.errors import IntegrityFailed, UsageError
from anychip_sdk.profiles import Profile

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

SCHEMA_VERSION = 1
FILE = "certificate.json"
_SEAL = b"anychip conformance certificate 1\n"  #: so that a signature of it is a signature of nothing else
_UNSEALED = ("digest", "signature")


@dataclass(frozen=True)
class KillScore:
    """How many of the deliberately broken backends this suite catches."""

    killed: int
    mutants: int


@dataclass(frozen=True)
class Certificate:
    """What a run proves.

    Attributes:
        verdict: the word; recomputed by `verify`, never believed.
        counts: status -> cases.
        results_digest: SHA-256 of results.json.
        identity: of the plugin and the device, with the versions of driver and runtime.
        emulated: the device was an emulator.
        kill_score: of the suite that made it; None where its selftest was not run.
        validity: for which versions it holds.
        public_key: of the signer, hexadecimal; empty where it is unsigned.
        digest: SHA-256 over all the other fields but the signature.
    """

    profile: Profile
    level: Level
    verdict: str
    is_conformant: bool
    counts: Mapping[str, int]
    warnings: int
    results_digest: str
    identity: Identity
    emulated: bool
    suite_version: str
    suite_digest: str
    host: Mapping[str, str]
    kill_score: KillScore | None
    started: str
    finished: str
    issued: str
    validity: str
    public_key: str = ""
    digest: str = ""
    signature: str = ""
    schema_version: int = SCHEMA_VERSION

    @property
    def is_signed(self) -> bool:
        return bool(self.signature)

    @property
    def driver(self) -> str:
        return self.identity.versions.get("driver", "")

    @property
    def signer(self) -> str:
        """A short name of the key."""
        return hashlib.sha256(self.public_key.encode()).hexdigest()[:16] if self.is_signed else "unsigned"


def issue(
    folder: Path, results: Results, *, key: Path | None = None, kill_score: KillScore | None = None
) -> Certificate:
    """Write certificate.json beside the results.json of a run.

    Args:
        folder: where results.json is.
        results: the same.
        key: an ed25519 private key in PEM; None: unsigned.
        kill_score: of the suite.

    Raises:
        UsageError: the key can't be read.
    """
    bare = certificate_of(results, _digest_of(folder / RESULTS), kill_score)
    sealed = seal(bare, _private_key(key) if key is not None else None)
    (folder / FILE).write_text(to_json(sealed), encoding="utf-8")
    return sealed


def certificate_of(results: Results, results_digest: str, kill_score: KillScore | None = None) -> Certificate:
    """An unsealed certificate: everything in it follows from the results, but the date of issue and the kill score."""
    found: Verdict = verdict(results)
    major, minor, *_ = results.suite.version.split(".")
    versions = ", ".join(f"{name} {text}" for name, text in results.identity.versions.items()) or "no driver versions"
    identity = results.identity
    validity = (
        f"{identity.distribution} {identity.version} with exactly these files, on {identity.product} with {versions}, "
        f"for anychip {major}.{minor} and the minor version behind it"
    )
    return Certificate(
        profile=results.profile,
        level=results.level,
        verdict=found.word,
        is_conformant=found.is_conformant,
        counts=results.counts(),
        warnings=len(found.warnings),
        results_digest=results_digest,
        identity=identity,
        emulated=identity.emulated,
        suite_version=results.suite.version,
        suite_digest=results.suite.digest,
        host=results.host,
        kill_score=kill_score,
        started=results.started,
        finished=results.finished,
        issued=now(),
        validity=validity,
    )


def seal(bare: Certificate, key: Ed25519PrivateKey | None = None) -> Certificate:
    """With its digest, and signed where there is a key."""
    public = key.public_key().public_bytes_raw().hex() if key is not None else ""
    unsigned = replace(bare, public_key=public, digest="", signature="")
    sealed = replace(unsigned, digest=digest_of(unsigned))
    if key is None:
        return sealed
    return replace(sealed, signature=key.sign(_SEAL + sealed.digest.encode()).hex())


def digest_of(certificate: Certificate) -> str:
    fields = {name: value for name, value in asdict(certificate).items() if name not in _UNSEALED}
    return hashlib.sha256(json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def seal_problems(certificate: Certificate, public_key: Path | None = None) -> list[str]:
    """What is wrong with the digest and the signature.

    Args:
        certificate: as it was read.
        public_key: ed25519, PEM; then it must be signed by this key. None: by any, or by none.
    """
    problems = []
    if digest_of(certificate) != certificate.digest:
        problems.append("a field of the certificate was changed: its digest does not fit")
    if not certificate.is_signed:
        if public_key is not None or certificate.public_key:
            problems.append("the certificate is not signed")
        return problems
    key = _public_key(public_key).public_bytes_raw().hex() if public_key is not None else certificate.public_key
    if key != certificate.public_key:
        problems.append(f"the certificate is signed by another key ({certificate.signer})")
    elif not _is_signature(certificate):
        problems.append("the certificate's signature is wrong")
    return problems


def to_json(certificate: Certificate) -> str:
    return json.dumps(asdict(certificate), indent=1, ensure_ascii=False) + "\n"


def load_certificate(path: Path) -> Certificate:
    """Read a certificate, or a folder's.

    Raises:
        IntegrityFailed: there is none, or it is damaged.
    """
    path = path / FILE if path.is_dir() else path
    try:
        value: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if value.get("schema_version") != SCHEMA_VERSION:
            message = f"schema_version is {value.get('schema_version')!r}, this is {SCHEMA_VERSION}"
            raise ValueError(message)
        score = KillScore(**value["kill_score"]) if value["kill_score"] is not None else None
        return Certificate(**{**value, "identity": Identity(**value["identity"]), "kill_score": score})
    except OSError as error:
        message = f"{path}: can't be read: {error.strerror}"
        raise IntegrityFailed(message, hint="name the folder that a conformance run wrote") from error
    except (ValueError, TypeError, KeyError) as error:
        message = f"{path}: is damaged: {error}"
        raise IntegrityFailed(message) from error


def _digest_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _is_signature(certificate: Certificate) -> bool:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(certificate.public_key))
        key.verify(bytes.fromhex(certificate.signature), _SEAL + certificate.digest.encode())
    except (InvalidSignature, ValueError):
        return False
    return True


def _private_key(path: Path) -> Ed25519PrivateKey:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        key = load_pem_private_key(path.read_bytes(), password=None)
    except (OSError, ValueError, TypeError) as error:
        message = f"{path}: no private key can be read: {error}"
        raise UsageError(message, hint="openssl genpkey -algorithm ed25519 -out key.pem") from error
    if not isinstance(key, Ed25519PrivateKey):
        message = f"{path}: holds a key of another kind, expected ed25519"
        raise UsageError(message, hint="openssl genpkey -algorithm ed25519 -out key.pem")
    return key


def _public_key(path: Path) -> Ed25519PublicKey:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    try:
        key = load_pem_public_key(path.read_bytes())
    except (OSError, ValueError) as error:
        message = f"{path}: no public key can be read: {error}"
        raise UsageError(message, hint="openssl pkey -in key.pem -pubout -out key.pub.pem") from error
    if not isinstance(key, Ed25519PublicKey):
        message = f"{path}: holds a key of another kind, expected ed25519"
        raise UsageError(message)
    return key


__all__ = [
    "FILE",
    "Certificate",
    "KillScore",
    "certificate_of",
    "digest_of",
    "issue",
    "load_certificate",
    "seal",
    "seal_problems",
    "to_json",
]
