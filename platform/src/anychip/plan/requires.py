"""Whether what a recipe requires of its backend is there: versions and a certificate. Knows ranges; opens no device."""

from __future__ import annotations

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from anychip.plan.plan import HeldCertificate
from anychip.recipe.schema import Recipe
from anychip_sdk.backend import Backend
from anychip_sdk.device import DeviceInfo
from anychip_sdk.errors import ConformanceFailed, PreconditionFailed
from anychip_sdk.profiles import PROFILES, Profile


def check_requires(
    recipe: Recipe, backend: Backend, device: DeviceInfo, certificate: HeldCertificate | None = None
) -> None:
    """backend.requires against what is there.

    Raises:
        PreconditionFailed: versions do not fit; all problems at once.
        ConformanceFailed: there is no certificate that will do.
    """
    required = recipe.backend.requires
    problems = []
    driver, runtime = device.versions.get("driver"), device.versions.get("runtime")
    wanted = (
        ("backend.requires.plugin", required.plugin, backend.version),
        ("backend.requires.driver", required.driver, driver),
        ("the backend's own driver range", backend.info.requirements.driver, driver),
        ("the backend's own runtime range", backend.info.requirements.runtime, runtime),
    )
    for what, specifier, present in wanted:
        if not specifier:
            continue
        if present is None:
            problems.append(f"{what} is '{specifier}'; device {device.name} reports no such version")
        elif not satisfies(present, specifier):
            problems.append(f"{what} is '{specifier}'; {present} is there")
    if problems:
        raise PreconditionFailed(f"backend '{backend.name}' ({backend.distribution}): " + "; ".join(problems))
    if required.conformance is None:
        return
    reason = _why_not(certificate, required.conformance)
    if reason:
        package = f"{backend.distribution} {backend.version}"
        message = f"backend.requires.conformance is '{required.conformance}'; {package} {reason}"
        name = recipe.backend.plugin_path or backend.name
        hint = f"run: platform conformance run {name} --profile {required.conformance}"
        raise ConformanceFailed(message, hint=hint)


def _why_not(held: HeldCertificate | None, wanted: Profile) -> str:
    """What keeps the certificate from being enough; empty where nothing does."""
    if held is None:
        return "holds no certificate"
    found = f"holds a certificate of {held.date} for profile {held.profile} that says {held.word}"
    if held.problem:
        return f"{found}, which does not count: {held.problem}"
    return found if PROFILES.index(held.profile) < PROFILES.index(wanted) else ""


def satisfies(present: str, specifier: str) -> bool:
    """Whether a version is in a range; one that is no version is in none."""
    try:
        return SpecifierSet(specifier).contains(Version(present), prereleases=True)
    except InvalidVersion:
        return False


__all__ = ["check_requires", "satisfies"]
