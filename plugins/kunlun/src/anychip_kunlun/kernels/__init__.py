"""Every kernel of the backend and what it is offered for. Knows op names; decides nothing at run time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch

from anychip_kunlun.kernels import plain, preparing
from anychip_kunlun.kernels.attention import Attention
from anychip_kunlun.kernels.blocks import Blocks
from anychip_kunlun.kernels.cache import Cache
from anychip_kunlun.kernels.linear import Linear
from anychip_kunlun.kernels.quantized import QUANTIZED, ROW_NEEDS, Int8Rows
from anychip_kunlun.kernels.rope import Rope
from anychip_kunlun.kernels.rows import Rows
from anychip_kunlun.kv import PAGE_SIZES
from anychip_kunlun.vendor import VendorOps
from anychip_sdk.ops import apply_logit_bias, apply_penalties
from anychip_sdk.registry import KernelFunction, Need, Prepare, Registrar, dtype_name, one_of

FLOATS = (torch.bfloat16, torch.float16, torch.float32)
#: heads that the attention ops take
HEAD_DIMS = (32, 64, 80, 96, 112, 120, 128, 192, 256, 512)
PREFILL = "prefill_attention"
DECODES = ("speculative_attention", "paged_attention")
WRITE = "reshape_and_cache_flash"
ROTARY = "rotary_embedding"


def register(registry: Registrar, vendor: VendorOps, has_kernels: Callable[[], bool]) -> None:
    """Offer the kernels.

    Args:
        registry: takes them in.
        vendor: the fused ops, looked at when a kernel is asked for.
        has_kernels: whether the fused ops run on the chip that is there.
    """
    offer = _Offers(registry, vendor, has_kernels)
    rows, linear, attention, sampling = Rows(vendor), Linear(vendor), Attention(vendor), plain.Sampling(vendor)
    rope = Rope(vendor, rows)
    blocks = Blocks(vendor, rows, rope, linear, attention)
    offer.fused("rms_norm", rows.rms_norm, "rmsnorm")
    offer.fused("add_rms_norm", rows.add_rms_norm, "add_rmsnorm")
    offer.fused("silu_mul", rows.silu_mul, "swiglu")
    offer.fused("ffn", blocks.ffn, "swiglu", prepares_weight=True)
    offer.fused("rope", rope.rope, ROTARY, prepare=preparing.TURNS)
    offer.fused("qk_norm_rope", rope.qk_norm_rope, "rmsnorm", ROTARY, prepare=preparing.TURNS)
    offer.on_pages("kv_write", Cache(vendor).kv_write, WRITE, prepare=preparing.SLOTS)
    offer.on_pages("paged_attention", attention, PREFILL, prepare=preparing.ATTENTION, decodes=True)
    offer.on_pages(
        "mha",
        blocks.mha,
        PREFILL,
        WRITE,
        "rmsnorm",
        ROTARY,
        prepare=preparing.BLOCK,
        decodes=True,
        prepares_weight=True,
    )
    # before the one on slices: so whole rows are rounded where the vendor has the ops
    int8 = Int8Rows(vendor).linear_int8
    offer.fused("linear_int8", int8, "quant2d", "matmul", prepares_weight=True, further=ROW_NEEDS)
    offer.plain("linear", linear.linear, prepares_weight=True)
    offer.plain("lm_head", linear.lm_head, prepares_weight=True)
    own: dict[str, KernelFunction] = {
        "argmax": sampling.argmax,
        "sample": sampling.sample,
        # the references of these two are plain torch already and run rarely
        "apply_logit_bias": apply_logit_bias.reference,
        "apply_penalties": apply_penalties.reference,
    }
    for name, kernel in {**plain.PLAIN, **QUANTIZED, **own}.items():
        offer.plain(name, kernel)


class _Offers:
    """Registers kernels with the contracts of the ops that they call."""

    def __init__(self, registry: Registrar, vendor: VendorOps, has_kernels: Callable[[], bool]) -> None:
        self._registry = registry
        self._vendor = vendor
        self._has_kernels = has_kernels

    def plain(self, op: str, kernel: KernelFunction, *, prepares_weight: bool = False) -> None:
        self._registry.register(op, kernel, dtypes=FLOATS, name="torch", prepares_weight=prepares_weight)

    def fused(
        self,
        op: str,
        kernel: KernelFunction,
        *names: str,
        prepares_weight: bool = False,
        prepare: Prepare | None = None,
        further: Mapping[str, Need] = MappingProxyType({}),
    ) -> None:
        self._registry.register(
            op,
            kernel,
            dtypes=FLOATS,
            requires={**self._contract(names), **further},
            name="+".join(names),
            prepares_weight=prepares_weight,
            prepare=prepare,
        )

    def on_pages(
        self,
        op: str,
        kernel: KernelFunction,
        *names: str,
        prepare: Prepare,
        decodes: bool = False,
        prepares_weight: bool = False,
    ) -> None:
        """A kernel per dtype: pages must hold what is written to them."""
        needs = {**self._contract(names), "page_size": one_of(*PAGE_SIZES), "head_dim": one_of(*HEAD_DIMS)}
        if decodes:
            plain = dict.fromkeys(("window", "soft_cap", "sinks"), one_of(None))
            needs = {**needs, "decode op": self._either(DECODES), **plain}
        for dtype in FLOATS:
            name = dtype_name(dtype)
            self._registry.register(
                op,
                kernel,
                dtypes=(dtype,),
                requires={**needs, "kv_dtype": one_of(name)},
                name=f"{names[0]} {name}",
                prepares_weight=prepares_weight,
                prepare=prepare,
            )

    def _contract(self, names: tuple[str, ...]) -> dict[str, Need]:
        # neither is a fact of a model: they are asked of the machine when a kernel is chosen
        chip = Need(lambda _: self._has_kernels(), "a chip that kunlun_ops runs on (P800)")
        return {"chip": chip, **{name: self._one(name) for name in names}}

    def _one(self, name: str) -> Need:
        return Need(lambda _: self._vendor.has(name), f"kunlun_ops with {name}")

    def _either(self, names: tuple[str, ...]) -> Need:
        text = f"kunlun_ops with {' or '.join(names)}"
        return Need(lambda _: any(map(self._vendor.has, names)), text)


__all__ = ["FLOATS", "HEAD_DIMS", "register"]
