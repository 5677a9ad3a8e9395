"""What a vendor claims of a backend: `conformance.yaml` in its package. Knows claims; tests nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date
from typing import Literal

#: what a manifest may claim, and what it means
CAPABILITIES: Mapping[str, str] = {
    "async_streams": "streams run behind the host's back, and Device.delay keeps one busy",
    "concurrent_streams": "two streams run at the same time",
    "exact_accounting": "Device.memory counts every byte that Device.alloc gives and takes",
    "multi_device": "several devices work side by side in one process",
    "deterministic": "the same call gives the same bits each time",
    "batch_invariant": "a row's result does not depend on its batch mates",
    "thread_safe": "several threads may call kernels at the same time, each on its own tensors",
    "serving": "the engine serves models on it",
}


@dataclass(frozen=True)
class Waiver:
    """A known failure, dated: it must fail until then, and no longer."""

    requirement: str  #: AC-OP-001 or one case, AC-OP-001[linear-float16-tail]
    reason: str
    link: str
    expires: date
    versions: str = ""  #: of the plugin, a PEP 440 specifier; empty: all


@dataclass(frozen=True)
class Claims:
    """What is claimed is tested and must hold; what isn't is recorded as not claimed.

    Attributes:
        dtypes: names of the dtypes that the device computes in, e.g. "bfloat16".
        ops: op -> names of the dtypes for which the backend has kernels of its own.
        capabilities: async_streams, concurrent_streams, deterministic, batch_invariant, kv_pool ...
        accumulator: op -> dtype name that sums are kept in; float32 where absent.
        subnormals: "preserve" or "flush".
        limits: alignment_bytes, allocation_granularity_bytes.
    """

    name: str
    dtypes: tuple[str, ...]
    ops: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    capabilities: Mapping[str, bool] = field(default_factory=dict)
    accumulator: Mapping[str, str] = field(default_factory=dict)
    subnormals: Literal["preserve", "flush"] = "preserve"
    limits: Mapping[str, int] = field(default_factory=dict)
    waivers: tuple[Waiver, ...] = ()
    fusions: tuple[str, ...] = ()

    def holds(self, claim: str) -> bool:
        """Whether a claim is made.

        Claims are "async_streams" (a capability), "dtype:bfloat16", "op:linear", "op:linear:bfloat16", "fusion:mha".
        """
        kind, _, rest = claim.partition(":")
        if kind == "dtype":
            return rest in self.dtypes
        if kind == "op":
            op, _, dtype = rest.partition(":")
            return op in self.ops and (not dtype or dtype in self.ops[op])
        if kind == "fusion":
            return rest in self.fusions
        return self.capabilities.get(claim, False)


__all__ = ["CAPABILITIES", "Claims", "Waiver"]
