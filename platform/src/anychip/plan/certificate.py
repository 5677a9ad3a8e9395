"""Find the certificate that this machine has of a backend's files, for a device. Knows folders; requires nothing."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

from anychip.plan.plan import HeldCertificate
from anychip_sdk.backend import Backend
from anychip_sdk.device import DeviceInfo
from anychip_sdk.profiles import PROFILES

if TYPE_CHECKING:
    from anychip_sdk.conformance.certify.store import Found


def find_certificate(
    backend: Backend, device: DeviceInfo, *, emulate: bool = False, library: str | None = None
) -> HeldCertificate | None:
    """The best certificate: one that counts rather than not, of the highest profile, signed, the newest.

    Args:
        backend: whose installed files it must be for.
        device: whose product and driver it must be for.
        emulate: the device is emulated, so certificates made on the emulator count too.
        library: the path of the shared object, where the backend is one.
    """
    from anychip_sdk.conformance.certify.store import certificates_for

    digest = None if library is None else hashlib.sha256(Path(library).read_bytes()).hexdigest()
    held = [_held(one, device, emulate=emulate) for one in certificates_for(backend.distribution, digest)]
    return max(held, key=_rank, default=None)


def _held(found: Found, device: DeviceInfo, *, emulate: bool) -> HeldCertificate:
    certificate = found.certificate
    driver = device.versions.get("driver", "")
    problem = found.problem
    if not problem and certificate.identity.product != device.product:
        problem = f"it is for {certificate.identity.product}, this is {device.product}"
    elif not problem and certificate.driver != driver:
        problem = f"it was made with driver {certificate.driver or 'of no version'}, this is {driver or 'of none'}"
    elif not problem and certificate.emulated and not emulate:
        problem = "it was made on an emulator and counts only with backend.emulate: true"
    return HeldCertificate(
        certificate.verdict,
        certificate.profile,
        certificate.level,
        certificate.issued.partition("T")[0],
        certificate.is_signed,
        certificate.emulated,
        problem,
    )


def _rank(one: HeldCertificate) -> tuple[bool, int, bool, str]:
    return not one.problem, PROFILES.index(one.profile), one.signed, one.date


__all__ = ["find_certificate"]
