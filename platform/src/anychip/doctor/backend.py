"""One backend on this machine: does it load, what does it find, what does it say itself. Opens no device."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import metadata

from anychip.doctor.diagnosis import problem
from anychip.doctor.host import packages
from anychip.plan.certificate import find_certificate
from anychip.plan.requires import satisfies
from anychip_sdk.backend import Backend
from anychip_sdk.device import DeviceInfo
from anychip_sdk.errors import AnychipError
from anychip_sdk.finding import Finding
from anychip_sdk.hooks import API_VERSION

MEMORY_SHARE_MIN = 0.5  #: with less of the device's memory free, somebody else has most of it


def backend_findings(backend: Backend, *, share: float = MEMORY_SHARE_MIN, library: str | None = None) -> list[Finding]:
    """All about a backend that is wanted: a device that is not there is a failure.

    Args:
        backend: loaded.
        share: of the device's memory that must be free, 0 to 1.
        library: the path of the shared object, where the backend is one.
    """
    return [
        *_plugin(backend),
        *_devices(backend, share, library),
        *_own(backend),
    ]


def _plugin(backend: Backend) -> Iterator[Finding]:
    hooks = ", ".join(name.removeprefix("anychip_") for name in backend.hooks_implemented())
    what = f"{backend.distribution} {backend.version} loads, for API {backend.info.api}; hooks: {hooks}"
    yield Finding("plugin", "ok", what, f"API {API_VERSION}")
    if backend.emulated:
        yield Finding("plugin", "info", "EMULATED: what follows is said of the emulator, not of the chip")
    try:
        metadata.distribution(backend.distribution)
    except metadata.PackageNotFoundError:
        return  # a shared object has no metadata
    yield from packages((backend.distribution,))


def _devices(backend: Backend, share: float, library: str | None) -> Iterator[Finding]:
    try:
        devices = backend.probe()
    except AnychipError as error:
        yield problem("device", error, hint=f"repair or reinstall {backend.distribution}")
        return
    if not devices:
        what = backend.info.absence or "the probe finds no device"
        hint = "put in place what is missing, or use another backend: platform devices shows what is here"
        yield Finding("device", "fail", what, "a device that the probe finds", hint)
        return
    for device in devices:
        yield Finding("device", "ok", f"{device.name}, {device.product}{_pairs(device)}")
        yield _memory(device, share)
    yield from _versions(backend, devices[0])
    yield _certificate(backend, devices[0], library)


def _memory(device: DeviceInfo, share: float) -> Finding:
    free, total = device.memory_bytes_free, device.memory_bytes_total
    what = f"{device.name}: {free / 2**30:.1f} GiB free of {total / 2**30:.1f} GiB"
    if free >= share * total:
        return Finding("device memory", "ok", what)
    return Finding("device memory", "warn", what, f"{share:.0%} free", "end what else runs on the device")


def _versions(backend: Backend, device: DeviceInfo) -> Iterator[Finding]:
    """The device's driver and runtime against the backend's own ranges."""
    for name in ("driver", "runtime"):
        wanted, present = getattr(backend.info.requirements, name), device.versions.get(name)
        if not wanted:
            continue
        if present is not None and satisfies(present, wanted):
            yield Finding(name, "ok", present, wanted)
        else:
            what = f"{present} is there" if present else f"{device.name} reports none"
            yield Finding(name, "fail", what, wanted, f"install a {name} in that range")


def _certificate(backend: Backend, device: DeviceInfo, library: str | None) -> Finding:
    held = find_certificate(backend, device, emulate=backend.emulated, library=library)
    command = f"platform conformance run {library or backend.name}{' --emulate' if backend.emulated else ''}"
    if held is None:
        return Finding("certificate", "info", "this machine holds none for the installed files", hint=command)
    signed = "signed" if held.signed else "unsigned"
    emulated = ", EMULATED" if held.emulated else ""
    what = f"{held.word}, profile {held.profile}, level {held.level}, {held.date}, {signed}{emulated}"
    if held.problem:
        return Finding("certificate", "warn", f"{what}; does not count: {held.problem}", hint=command)
    return Finding("certificate", "ok", what)


def _own(backend: Backend) -> tuple[Finding, ...]:
    try:
        return backend.diagnose()
    except AnychipError as error:
        return (problem("diagnosis", error, hint=f"repair or reinstall {backend.distribution}"),)


def _pairs(device: DeviceInfo) -> str:
    return "".join(f", {name} {value}" for name, value in device.versions.items())


__all__ = ["MEMORY_SHARE_MIN", "backend_findings"]
