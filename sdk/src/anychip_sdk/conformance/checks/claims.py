"""The device track: what the manifest claims is what the plugin registers and the device reports. Knows no kernel."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from anychip_sdk.conformance.claims import Claims
from anychip_sdk.conformance.context import Context
from anychip_sdk.conformance.requirements import Case, Level, expect, requirement
from anychip_sdk.registry import REFERENCE, dtype_name

#: claims that the device's own capabilities answer
ANSWERED = ("async_streams",)


def _cases(claims: Claims, level: Level) -> Iterable[Case]:
    for dtype in claims.dtypes:
        yield Case(f"dtype-{dtype}", {"claim": "dtype", "dtype": dtype})
    for op, dtypes in claims.ops.items():
        for dtype in dtypes:
            yield Case(f"op-{op.replace('_', '-')}-{dtype}", {"claim": "op", "op": op, "dtype": dtype})
    for name in ANSWERED:
        yield Case(f"capability-{name.replace('_', '-')}", {"claim": "capability", "name": name}, (name,))


@requirement(
    "AC-DEVICE-020",
    level="MUST",
    text="Every claim of conformance.yaml MUST be what the plugin registers and what its device says of itself.",
    covers=(
        "hook:anychip_register_ops",
        "capability:async_streams",
        "capability:dtypes",
    ),
    cases=_cases,
)
def claims_are_true(context: Context, case: Case) -> None:
    capabilities = context.device.capabilities
    kind, dtype = case.params["claim"], case.params.get("dtype", "")
    if kind == "dtype":
        has = ", ".join(map(dtype_name, capabilities.dtypes))
        expect(getattr(torch, dtype) in capabilities.dtypes, f"{dtype} is claimed; the device says that it has {has}")
    elif kind == "op":
        op = case.params["op"]
        own = [kernel for kernel in context.backend.ops.kernels(op) if kernel.provider != REFERENCE]
        expect(
            any(getattr(torch, dtype) in kernel.dtypes for kernel in own),
            f"op '{op}' is claimed for {dtype}; the plugin registers "
            + (", ".join(f"{one.name} ({' '.join(map(dtype_name, one.dtypes))})" for one in own) or "no kernel for it"),
        )
    else:
        name = case.params["name"]
        expect(getattr(capabilities, name) is True, f"{name} is claimed; the device says that it hasn't got it")


@requirement(
    "AC-DEVICE-021",
    level="SHOULD",
    text="Every kernel that a plugin registers SHOULD be claimed: what isn't claimed is not tested, and yet it serves.",
    covers=("hook:anychip_register_ops",),
)
def kernels_are_claimed(context: Context) -> None:
    registered = {
        f"{op} {dtype_name(dtype)}"
        for op in context.backend.ops.catalogue
        for kernel in context.backend.ops.kernels(op)
        for dtype in kernel.dtypes
        if kernel.provider != REFERENCE
    }
    claimed = {f"{op} {dtype}" for op, dtypes in context.claims.ops.items() for dtype in dtypes}
    silent = sorted(registered - claimed)
    expect(not silent, f"{len(silent)} kernels are registered and not claimed: {', '.join(silent[:20])}")


__all__ = ["claims_are_true", "kernels_are_claimed"]
