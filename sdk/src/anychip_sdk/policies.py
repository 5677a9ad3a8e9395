"""The names of the built-in fusions, in the order in which they are applied. Knows names; imports no torch."""

from __future__ import annotations

#: whole blocks first, so that the smaller fusions meet what is left
POLICIES = (
    "mha",
    "ffn",
    "shared_experts",
    "qkv_proj",
    "gate_up_proj",
    "add_rms_norm",
    "qk_norm_rope",
    "silu_mul",
)

__all__ = ["POLICIES"]
