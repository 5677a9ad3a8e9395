"""Run `platform` as a process of its own, and make keys for it to sign with. Knows no verb."""

import os
import subprocess
import sys
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat


def platform(*arguments: str, home: Path, timeout_s: float = 280, **environ: str) -> subprocess.CompletedProcess[str]:
    """`platform ARGUMENTS` with its state in `home`."""
    environment = {**os.environ, "ANYCHIP_HOME": str(home), "OMP_NUM_THREADS": "1", **environ}
    command = [sys.executable, "-m", "anychip", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=timeout_s)


def write_keys(folder: Path) -> tuple[Path, Path]:
    """The files of a new private key and of its public one."""
    key = Ed25519PrivateKey.generate()
    private, public = folder / "key.pem", folder / "key.pub.pem"
    private.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    public.write_bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    return private, public
