"""The checks of ops and pools on the reference chip or another backend, as far as it claims. Knows faults by name."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import torch

from anychip_sdk.backend import Backend
from anychip_sdk.conformance.claims import Claims
from anychip_sdk.conformance.context import Context, derived_seed
from anychip_sdk.conformance.reference import ReferenceLoader, reference_claims
from anychip_sdk.conformance.reference.faults import FAULTS
from anychip_sdk.conformance.requirements import REQUIREMENTS, Case, Violation
from anychip_sdk.device import DeviceConfig

for _module in ("kv", "kv_content", "kv_machine", "op", "op_behaviour", "op_large", "op_special", "registry"):
    import_module(f"anychip_sdk.conformance.checks.{_module}")

OP_IDS = [key for key in REQUIREMENTS if key.startswith("AC-OP-")]
KV_IDS = [key for key in REQUIREMENTS if key.startswith("AC-KV-")]
#: what the reference chip could claim besides
MORE = {"thread_safe": True}


def kills(track: str) -> list[tuple[str, str]]:
    """(fault, requirement) of a track."""
    return [(fault.name, key) for fault in FAULTS.values() for key in fault.kills if key.startswith(track)]


def claims_for(fault: str | None = None, dtypes: tuple[str, ...] = (), more: Mapping[str, bool] = MORE) -> Claims:
    """The reference chip's claims; of a fault in one op's kernel, of that op alone."""
    whole = reference_claims()
    broken = getattr(FAULTS[fault].plugin, "broken_op", None) if fault else None
    ops = {name: dtypes or had for name, had in whole.ops.items() if broken in (None, name)}
    return replace(whole, ops=ops, dtypes=dtypes or whole.dtypes, capabilities={**whole.capabilities, **more})


def claimed_cases(key: str, claims: Claims) -> list[Case | None]:
    """The cases of a requirement that apply under the claims, None for one without cases."""
    requirement = REQUIREMENTS[key]
    if not all(claims.holds(need) for need in requirement.needs):
        return []
    cases = requirement.cases(claims, "smoke") if requirement.cases else [None]
    return [case for case in cases if case is None or all(claims.holds(need) for need in case.needs)]


def violations(key: str, load: str | Callable[[], Backend] | None, claims: Claims) -> list[str]:
    """What one requirement finds on the reference chip (healthy for None, or with a fault) or on another backend."""
    torch.set_num_threads(1)
    backend = load() if callable(load) else ReferenceLoader(load)()
    loader = load if callable(load) else ReferenceLoader(load)
    info, config = backend.probe()[0], DeviceConfig(threads=1)
    device = backend.open(info, config)
    found = []
    try:
        for case in claimed_cases(key, claims):
            name = key + (f"[{case.id}]" if case else "")
            with tempfile.TemporaryDirectory() as scratch:
                seed = derived_seed(name)
                context = Context(backend, info, config, device, claims, "smoke", seed, loader, Path(scratch))
                try:
                    REQUIREMENTS[key].check(context, *([case] if case else []))
                except Violation as violation:
                    found.append(f"{name}: {violation.message}")
    finally:
        device.close()
    return found
