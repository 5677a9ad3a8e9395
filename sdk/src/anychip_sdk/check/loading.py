"""Load a plugin in a process of its own and compare it with its claims. Knows the hooks; knows no wheel.

Started by `anychip_sdk.check` as `python -c`, with a job on stdin and a file for the answer: whatever the plugin
prints, patches or breaks stays in this process.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from packaging.specifiers import SpecifierSet

from anychip_sdk.backend import Backend
from anychip_sdk.conformance.checks._tasks import identity, purity
from anychip_sdk.conformance.claims import CAPABILITIES, Claims
from anychip_sdk.conformance.manifest import FILE, ManifestInvalid, find_manifest, read_claims
from anychip_sdk.conformance.run.target import Loader
from anychip_sdk.device import Capabilities, DeviceInfo
from anychip_sdk.errors import AnychipError
from anychip_sdk.fusion import POLICIES
from anychip_sdk.ops import CATALOGUE
from anychip_sdk.registry import REFERENCE, dtype_name

PLATFORM = "anychip"
#: claims that the device's own capabilities answer
ANSWERED = tuple(field.name for field in fields(Capabilities) if field.name in CAPABILITIES)


def main() -> None:
    """Do the job on stdin."""
    job: dict[str, str] = json.loads(sys.stdin.readline())
    loader = Loader(job["name"], job["module"], job["distribution"], job["version"])
    answer = examine(loader)
    Path(job["answer"]).write_text(json.dumps(answer), encoding="utf-8")


def examine(loader: Loader) -> dict[str, Any]:
    """Facts, problems as (area, text), and notes."""
    found: dict[str, Any] = {"facts": {}, "problems": [], "notes": []}
    claims = _claims(loader, found["problems"])
    backend = _loaded(loader, found["problems"])
    if backend is None:
        return found
    devices = _probed(backend, found["problems"])
    found["facts"] = _facts(backend, devices)
    found["notes"] += _api_notes(backend)
    if claims is not None:
        found["problems"] += [("claims", text) for text in contradictions(claims, backend, devices)]
        found["notes"] += unclaimed(claims, backend)
    return found


def _claims(loader: Loader, problems: list[tuple[str, str]]) -> Claims | None:
    path = find_manifest(loader.module.partition(":")[0])
    if path is None:
        text = f"there is no {FILE} in the package of {loader.module}; nothing is claimed, so nothing can be certified"
        problems.append(("manifest", text))
        return None
    try:
        return read_claims(path, loader.name)
    except ManifestInvalid as error:
        place = f"{path.parents[0].parent}/"
        problems += [("manifest", text.replace(place, "")) for text in error.problems]
        return None


def _loaded(loader: Loader, problems: list[tuple[str, str]]) -> Backend | None:
    """The backend, and what loading it did to everything else."""
    kept: list[Backend] = []
    before = _imported_platform()

    def load() -> Backend:
        kept.append(loader())
        return kept[-1]

    def answer(found: Mapping[str, Any]) -> None:
        if found["replaced"]:
            problems.append(("contract", f"loading it replaces {', '.join(found['replaced'][:10])}"))
        if found["state"]:
            problems.append(("contract", f"loading it changes {', '.join(found['state'])}"))
        if found["threads"] > 0:
            problems.append(("contract", f"loading it starts {found['threads']} threads"))

    try:
        purity(load, _nowhere, answer)
    except AnychipError as error:
        problems.append(("contract", str(error)))
    if _imported_platform() - before:
        problems.append(("contract", f"it imports {PLATFORM}; a plugin uses anychip_sdk only"))
    return kept[0] if kept else None


def _nowhere() -> Any:
    message = "loading opens no device"
    raise AssertionError(message)


def _imported_platform() -> set[str]:
    return {name for name in sys.modules if name.partition(".")[0] == PLATFORM}


def _probed(backend: Backend, problems: list[tuple[str, str]]) -> tuple[DeviceInfo, ...]:
    """What the probe finds, asked twice."""
    try:
        first, again = backend.probe(), backend.probe()
    except AnychipError as error:
        problems.append(("contract", str(error)))
        return ()
    if [identity(one) for one in first] != [identity(one) for one in again]:
        names = [[one.name for one in devices] for devices in (first, again)]
        problems.append(("contract", f"anychip_probe finds {names[0]}, then {names[1]}: not the same devices twice"))
    return first


def _facts(backend: Backend, devices: tuple[DeviceInfo, ...]) -> dict[str, Any]:
    return {
        "vendor": backend.info.vendor,
        "api": backend.info.api,
        "hooks": [name.removeprefix("anychip_") for name in backend.hooks_implemented()],
        "kernels": [op for op in CATALOGUE if _own(backend, op)],
        "fusions": [fusion.name for fusion in backend.fusions],
        "devices": [device.name for device in devices],
    }


def _api_notes(backend: Backend) -> Iterator[str]:
    if "999" in SpecifierSet(backend.info.api):
        yield f"its API range {backend.info.api} has no upper end: a later API will not be refused"


def contradictions(claims: Claims, backend: Backend, devices: tuple[DeviceInfo, ...]) -> Iterator[str]:
    """What conformance.yaml says and the plugin denies."""
    for op, dtypes in claims.ops.items():
        own = _own(backend, op)
        missing = [dtype for dtype in dtypes if dtype not in own]
        if missing:
            has = f"for {', '.join(own)}" if own else "not at all"
            yield f"op '{op}' is claimed for {', '.join(missing)}; the plugin registers it {has}"
    known = {*POLICIES, *(fusion.name for fusion in backend.fusions), *(fusion.policy for fusion in backend.fusions)}
    for name in claims.fusions:
        if name not in known:
            yield f"fusion '{name}' is claimed; there is none, neither built in nor the plugin's"
    for device in devices:
        yield from _denied(claims, device)


def _denied(claims: Claims, device: DeviceInfo) -> Iterator[str]:
    capabilities = device.capabilities
    has = [dtype_name(dtype) for dtype in capabilities.dtypes]
    for dtype in claims.dtypes:
        if dtype not in has:
            yield f"dtype {dtype} is claimed; {device.name} says that it has {', '.join(has)}"
    for name in ANSWERED:
        if claims.holds(name) and getattr(capabilities, name) is not True:
            yield f"{name} is claimed; {device.name} says that it hasn't got it"


def unclaimed(claims: Claims, backend: Backend) -> Iterator[str]:
    """Kernels that run and that nothing tests."""
    for op in CATALOGUE:
        left = [one for one in _own(backend, op) if one not in claims.ops.get(op, ())]
        if left:
            yield f"op '{op}' has a kernel for {', '.join(left)} that is not claimed, so the suite does not test it"


def _own(backend: Backend, op: str) -> list[str]:
    """Dtypes for which the plugin itself has a kernel."""
    own = [kernel for kernel in backend.ops.kernels(op) if kernel.provider != REFERENCE]
    return list(dict.fromkeys(dtype_name(dtype) for kernel in own for dtype in kernel.dtypes))


__all__ = ["contradictions", "examine", "main", "unclaimed"]
