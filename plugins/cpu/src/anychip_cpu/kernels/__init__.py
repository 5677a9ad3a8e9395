"""Every kernel of the CPU backend and what it is offered for. Knows op names; decides nothing at run time."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from anychip_cpu import native
from anychip_cpu.kernels import (
    blocks,
    cache,
    dense,
    elementwise,
    experts,
    latent_native,
    linear,
    norm,
    packed,
    penalties,
    quantized,
    rope,
    routing,
    sampling,
)
from anychip_cpu.kernels.attention import NativeAttention, PagedAttention
from anychip_cpu.kernels.drawing import Drawing
from anychip_cpu.kernels.latent import LatentAttention, latent_write
from anychip_cpu.kernels.latent_native import NativeLatent
from anychip_cpu.kernels.recurrent import Recurrent
from anychip_cpu.kernels.rows import Rows
from anychip_sdk.ops import apply_logit_bias, moe_experts
from anychip_sdk.ops.quantized import BLOCK
from anychip_sdk.registry import KernelFunction, Need, Registrar, at_most, multiple_of, one_of

FLOATS = (torch.bfloat16, torch.float32, torch.float16)
PLAIN_SCORES: Mapping[str, Need] = {"soft_cap": one_of(None), "sinks": one_of(None)}


def register(registry: Registrar) -> None:
    """Offer the kernels; those on packed weights first and only where they were found to work."""
    gathered = PagedAttention()
    library = native.library()
    loaded = None if isinstance(library, native.Absent) else library
    attention, rows = NativeAttention(loaded, gathered), Rows(loaded)
    _register_dense(registry, dense.Dense(loaded), attention, rows)
    usable = tuple(dtype for dtype in packed.usable_dtypes() if dtype != dense.DTYPE or dense.lack() is not None)
    if usable:
        _register_packed(registry, attention, rows, usable)
    registry.register("linear", linear.linear_plain, dtypes=FLOATS)
    registry.register("lm_head", linear.lm_head_plain, dtypes=FLOATS)
    registry.register("ffn", blocks.Ffn(blocks.plain, rows), dtypes=FLOATS, name="ffn_plain")
    mha = blocks.Mha(blocks.plain, attention, rows)
    registry.register("mha", mha, dtypes=FLOATS, prepare=mha.prepare, name="mha_plain")
    registry.register(
        "paged_attention",
        attention,
        dtypes=FLOATS,
        requires=_needs(library),
        prepare=attention.prepare,
        name="native",
    )
    registry.register(
        "paged_attention",
        gathered,
        dtypes=FLOATS,
        requires=PLAIN_SCORES,
        prepare=gathered.prepare,
        name="gathered_flash",
    )
    _register_latent(registry, library, LatentAttention(gathered))
    products = quantized.Products(loaded)
    needs = {**_absence(library), "group_size": multiple_of(BLOCK)}
    for name in quantized.OPS:
        kernel = getattr(products, name)
        blocks_need = {} if name == "linear_int4" else {"block": one_of(BLOCK)}
        registry.register(
            name, kernel, dtypes=FLOATS, requires={**needs, **blocks_need}, prepares_weight=True, name="native"
        )
    _register_mixtures(registry, library)
    for name, kernel in {**_natives(rows), **_choosers(Drawing(loaded)), **_recurrent(Recurrent(loaded))}.items():
        registry.register(name, kernel, dtypes=FLOATS, requires=_absence(library), name="native")
    for name, kernel in _SIMPLE.items():
        registry.register(name, kernel, dtypes=FLOATS, name=name)


def _needs(library: native.Library | native.Absent) -> Mapping[str, Need]:
    """What the native attention needs."""
    limits = f"a multiple of {native.HEAD_DIM_STEP} up to {native.HEAD_DIM_MAX}"
    return _absence(library) or {"head_dim": Need(native.is_supported_head_dim, limits)}


def _register_latent(registry: Registrar, library: native.Library | native.Absent, gathered: LatentAttention) -> None:
    absorbed = NativeLatent(None if isinstance(library, native.Absent) else library, gathered)
    size = Need(latent_native.is_size, f"a multiple of {latent_native.STEP} up to {latent_native.MOST}")
    needs = _absence(library) or {"rank": size, "rope_dim": size, "nope_dim": at_most(latent_native.MOST)}
    for name, kernel, requires in (("native", absorbed, needs), ("latent_flash", gathered, {})):
        registry.register(
            "latent_attention", kernel, dtypes=FLOATS, requires=requires, prepare=kernel.prepare, name=name
        )


def _absence(library: native.Library | native.Absent) -> Mapping[str, Need]:
    """Without a library, a need that no model meets: so the reason is shown."""
    if isinstance(library, native.Absent):
        return {"library": Need(lambda _: False, f"native kernels, which are {library}")}
    return {}


def _natives(rows: Rows) -> dict[str, KernelFunction]:
    return {
        "add_rms_norm": rows.add_rms_norm,
        "argmax": rows.argmax,
        "kv_write": rows.kv_write,
        "qk_norm_rope": rows.qk_norm_rope,
        "rms_norm": rows.rms_norm,
        "rms_norm_offset": rows.rms_norm_offset,
        "rope": rows.rope,
        "scale": rows.scale,
        **{name: rows.gated(name) for name in elementwise.GATES},
    }


def _recurrent(states: Recurrent) -> dict[str, KernelFunction]:
    return {"causal_conv_silu": states.causal_conv_silu, "gated_delta_rule": states.gated_delta_rule}


def _register_dense(registry: Registrar, products: dense.Dense, attention: NativeAttention, rows: Rows) -> None:
    """Kernels whose weights go through `dense.prepare`; where they lack something, `_register_packed`'s take over."""
    lack = dense.lack()
    mha = blocks.Mha(products.linear, attention, rows)
    kernels: dict[str, KernelFunction] = {
        "linear": products.linear,
        "lm_head": products.lm_head,
        "ffn": blocks.Ffn(products.linear, rows),
        "mha": mha,
    }
    needs = {} if lack is None else {"machine": Need(lambda _: False, lack)}
    for name, kernel in kernels.items():
        registry.register(
            name,
            kernel,
            dtypes=(dense.DTYPE,),
            requires=needs,
            prepares_weight=True,
            prepare=mha.prepare if name == "mha" else None,
            name="native",
        )


def _register_mixtures(registry: Registrar, library: native.Library | native.Absent) -> None:
    """Routers and experts, all of whose products are the library's."""
    loaded = None if isinstance(library, native.Absent) else library
    needs = _absence(library)
    registry.register(
        routing.OP,
        routing.Router(loaded),
        dtypes=FLOATS,
        requires={**needs, "experts": at_most(routing.EXPERTS_MAX)},
        prepares_weight=True,
        name="native",
    )
    # expert after expert, with torch's products
    registry.register("moe_experts", moe_experts.reference, dtypes=(torch.float16,), name="looped")
    mixtures = experts.Experts(loaded)
    for name in experts.OPS:
        is_plain = name == "moe_experts"
        groups: dict[str, Need] = {} if is_plain else {"group_size": multiple_of(BLOCK)}
        blocks_need: dict[str, Need] = {"block": one_of(BLOCK)} if name == "moe_experts_int8" else {}
        registry.register(
            name,
            mixtures.kernel(name),
            dtypes=experts.DTYPES if is_plain else FLOATS,
            requires={**needs, **groups, **blocks_need},
            prepares_weight=True,
            name="native",
        )


def _choosers(drawing: Drawing) -> dict[str, KernelFunction]:
    return {"apply_penalties": drawing.apply_penalties, "sample": drawing.sample}


def _register_packed(
    registry: Registrar, attention: NativeAttention, rows: Rows, dtypes: tuple[torch.dtype, ...]
) -> None:
    """Kernels whose weights go through `packed.prepare`."""
    mha = blocks.Mha(packed.multiply, attention, rows)
    registry.register("linear", linear.linear_packed, dtypes=dtypes, prepares_weight=True)
    registry.register("lm_head", linear.lm_head_packed, dtypes=dtypes, prepares_weight=True)
    registry.register("ffn", blocks.Ffn(packed.multiply, rows), dtypes=dtypes, prepares_weight=True, name="ffn_packed")
    registry.register("mha", mha, dtypes=dtypes, prepares_weight=True, prepare=mha.prepare, name="mha_packed")


_SIMPLE: dict[str, KernelFunction] = {
    "add_rms_norm": norm.add_rms_norm,
    "apply_logit_bias": apply_logit_bias.reference,  # plain torch already, and it runs rarely
    "apply_penalties": penalties.apply_penalties,
    "argmax": sampling.argmax,
    "embedding": linear.embedding,
    "kv_write": cache.kv_write,
    "latent_write": latent_write,
    "layer_norm": norm.layer_norm,
    "qk_norm_rope": rope.qk_norm_rope,
    "rms_norm": norm.rms_norm,
    "rms_norm_offset": norm.rms_norm_offset,
    "rope": rope.rope,
    "sample": sampling.sample,
    "select_rows": linear.select_rows,
    **{name: one.function for name, one in elementwise.OPS.items()},
}

__all__ = ["FLOATS", "register"]
