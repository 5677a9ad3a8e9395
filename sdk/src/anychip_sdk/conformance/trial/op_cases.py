"""Which sizes each op is checked with, by class and level. Knows shapes; runs nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import torch

from anychip_sdk.conformance.claims import Claims
from anychip_sdk.conformance.requirements import Case, Level
from anychip_sdk.ops.base import CATALOGUE, Op
from anychip_sdk.ops.routing_parts import ROUTINGS
from anychip_sdk.testing.bounds import has_own_dtype

Sizes = Mapping[str, int]

#: ops over states in slots
SLOT_OPS = tuple(name for name, op in sorted(CATALOGUE.items()) if op.keeps_slots)
#: ops over heads, pages and slots; their classes are those of `geometries`
HEAD_OPS = ("kv_write", "latent_attention", "latent_write", "mha", "paged_attention", "qk_norm_rope", "rope", *SLOT_OPS)
#: with a batch of sequences, which is never empty
BATCH_OPS = ("latent_attention", "mha", "paged_attention", *SLOT_OPS)
#: over experts
EXPERT_OPS = ("moe_experts", "moe_experts_int4", "moe_experts_int8", "router_topk")
#: over one vector per token
LATENT_OPS = ("latent_attention", "latent_write")
#: ops over float32 logits
LOGIT_OPS = ("apply_logit_bias", "apply_penalties", "argmax", "cap_logits", "sample")
IN_PLACE = tuple(name for name, op in CATALOGUE.items() if op.mutated)

WIDTHS: Mapping[str, tuple[int, ...]] = {
    "ones": (1,),
    "small": (2, 3, 7, 8),
    "tails": (15, 16, 17, 31, 33),
    "blocks": (127, 129),
    "wide": (1000,),
}
WIDE_DEEP = (1000, 4097)
#: (heads, kv_heads)
GROUPS = ((2, 2), (4, 2), (3, 1), (8, 2), (7, 1), (8, 1))
HEAD_DIMS = (64, 80, 96, 128)
PAGE_SIZES = (1, 16, 64, 128)
CONTEXTS = (1, 15, 16, 17, 31, 33, 127, 129)
WINDOWS = (1, 5, 16, 100)
#: (key_heads, value_heads) and (key_dim, value_dim) of recurrent layers
STATE_HEADS = ((1, 1), (2, 2), (2, 4), (1, 3), (4, 16))
STATE_DIMS = ((16, 16), (64, 64), (128, 128), (32, 48), (7, 19))
CONVOLUTIONS = ({"taps": 1, "channels": 1}, {"taps": 2, "channels": 16}, {"taps": 3, "channels": 129}, {"taps": 7})
#: (experts, experts of each row)
EXPERTS = ((4, 1), (8, 2), (60, 4), (64, 6), (128, 8), (160, 9))
#: (heads, rank, rope_dim, nope_dim, value_dim), those of released models' heads among them
LATENTS = ((3, 16, 16, 8, 8), (2, 512, 64, 128, 128), (2, 256, 32, 64, 64), (5, 48, 16, 33, 31), (20, 64, 32, 192, 256))
#: of a row's query tokens: all rows are expanded, or none is
FORMS = (1, 1 << 20)


class Geometry(NamedTuple):
    """A class of sizes of an op over heads."""

    name: str
    sizes: tuple[Sizes, ...]


def per_op(
    classes: Callable[[Op, Claims, Level], Iterable[str]] = lambda op, claims, level: ("",),
    only: Sequence[str] | None = None,
) -> Callable[[Claims, Level], Iterator[Case]]:
    """Cases of every op of the catalogue, or of some: per claimed dtype and class one, else one that is not claimed."""

    def cases(claims: Claims, level: Level) -> Iterator[Case]:
        for name in only if only is not None else sorted(CATALOGUE):
            op = CATALOGUE[name]
            dtypes = [dtype for dtype in claims.ops.get(name, ()) if getattr(torch, dtype).is_floating_point]
            missing = [dtype for dtype in claims.dtypes if dtype not in dtypes and is_float(dtype)]
            if not has_own_dtype(op):  # ids and float32 logits are the same for every dtype
                dtypes, missing = dtypes[:1], [] if dtypes else missing[:1]
            for dtype in dtypes:
                for kind in classes(op, claims, level):
                    label = f"{name}-{dtype}-{kind}" if kind else f"{name}-{dtype}"
                    params = {"op": name, "dtype": dtype, "class": kind}
                    yield Case(label.replace("_", "-"), params, (f"op:{name}:{dtype}",))
            for dtype in missing:
                yield Case(f"{name}-{dtype}".replace("_", "-"), {}, (f"op:{name}:{dtype}",))

    return cases


def is_float(dtype: str) -> bool:
    """Whether the dtype of that name is one that models compute in."""
    found = getattr(torch, dtype, None)
    return isinstance(found, torch.dtype) and found.is_floating_point and found.itemsize > 1


def width_classes(op: Op, claims: Claims, level: Level) -> Iterable[str]:
    """The classes of an op over rows, or the plain one of an op over heads."""
    return ("plain",) if op.name in HEAD_OPS else tuple(WIDTHS)


def widths(op: str, kind: str, level: Level) -> Iterator[Sizes]:
    """The sizes of a class: as rows, as inner and as outer dimension, each with another of the same class."""
    if op in HEAD_OPS:
        yield {}
        yield {"heads": 3, "kv_heads": 1, "head_dim": 64, "page_size": 16, "pages": 16, "tokens": 7}
        return
    values = WIDE_DEEP if kind == "wide" and level in ("deep", "soak") else WIDTHS[kind]
    for i, width in enumerate(values):
        other, rows = values[(i + 1) % len(values)], values[(i + 2) % len(values)]
        rows = min(rows, 33)
        tokens = min(rows, rows * width) if op in LOGIT_OPS else rows
        yield {"tokens": tokens, "rows": rows, "hidden": width, "inner": other, "out": other, "vocab": width}


def geometry_classes(op: Op, claims: Claims, level: Level) -> Iterable[str]:
    return tuple(one.name for one in geometries(op.name, level))


def geometries(op: str, level: Level) -> tuple[Geometry, ...]:
    """Heads and their dimensions, page sizes, contexts, windows, caps, sinks, rotary dimensions: as the op has them."""
    if op in EXPERT_OPS:
        return _mixtures(op)
    thorough = level != "smoke"
    if op in SLOT_OPS:
        return _slot_geometries()
    dims = (*HEAD_DIMS, *((32, 256) if thorough else ()))
    usual = {"head_dim": 64, "page_size": 16, "pages": 32, "hidden": 64, "tokens": 9}
    found = [
        Geometry("groups", tuple({**usual, "heads": heads, "kv_heads": kv} for heads, kv in GROUPS)),
        Geometry("head-dims", tuple({**usual, "head_dim": dim} for dim in dims)),
    ]
    if op in LATENT_OPS:
        names = ("heads", "rank", "rope_dim", "nope_dim", "value_dim")
        found = [Geometry("latents", tuple({**usual, **dict(zip(names, one, strict=True))} for one in LATENTS))]
    if op in ("rope", "qk_norm_rope", "mha"):
        found.append(Geometry("rotary-part", ({**usual, "rotary_dim": usual["head_dim"] // 2},)))
    if op == "latent_attention":
        found.append(Geometry("forms", tuple({**_paged(usual, 16, 70), "expand_from": least} for least in FORMS)))
    if op in ("kv_write", "latent_write", *BATCH_OPS):
        found.append(Geometry("page-sizes", tuple(_paged(usual, size, 140) for size in PAGE_SIZES)))
    if op in BATCH_OPS:
        contexts = CONTEXTS if thorough else CONTEXTS[:7]
        exact = tuple({**_paged(usual, 16, context), "context_min": context} for context in contexts)
        found.append(Geometry("contexts", exact))
        if op not in LATENT_OPS:
            found.append(Geometry("windows", tuple({**_paged(usual, 16, 140), "window": window} for window in WINDOWS)))
        alone = ({**usual, "decode_rows": 1, "prefill_rows": 0}, {**usual, "decode_rows": 0, "prefill_rows": 1})
        found.append(Geometry("one-row", alone))
    if op == "paged_attention":
        scores = ({"soft_cap": 2}, {"sinks": 1}, {"soft_cap": 3, "sinks": 1, "window": 16})
        found.append(Geometry("scores", tuple({**_paged(usual, 16, 140), **one} for one in scores)))
    return tuple(found)


def _slot_geometries() -> tuple[Geometry, ...]:
    alone = ({"decode_rows": 1, "prefill_rows": 0}, {"decode_rows": 0, "prefill_rows": 1})
    dims = tuple({"key_dim": key, "value_dim": value} for key, value in STATE_DIMS)
    return (
        Geometry("groups", tuple({"key_heads": keys, "value_heads": values} for keys, values in STATE_HEADS)),
        Geometry("head-dims", dims),
        Geometry("convolutions", CONVOLUTIONS),
        Geometry("contexts", tuple({"context_min": one, "context_max": one} for one in (1, 2, 3, 4, 5, 70))),
        Geometry("one-row", alone),
    )


def _mixtures(op: str) -> tuple[Geometry, ...]:
    """Numbers of experts and of columns; more rows than experts, and one row; ways of routing."""
    usual = {"hidden": 64, "inner": 32, "tokens": 9}
    counts = tuple({**usual, "experts": experts, "columns": of, "top_k": of} for experts, of in EXPERTS)
    found = [
        Geometry("experts", counts),
        Geometry("many-rows", ({**usual, "experts": 4, "columns": 2, "top_k": 2, "tokens": 67},)),
        Geometry("one-row", ({**usual, "experts": 32, "columns": 5, "top_k": 5, "tokens": 1},)),
    ]
    if op == "router_topk":
        ways = tuple({**usual, "tokens": 33, "experts": 32, "routing": way} for way in range(1, len(ROUTINGS) + 1))
        found.append(Geometry("routings", ways))
    return tuple(found)


def _paged(usual: Sizes, page_size: int, context_max: int) -> Sizes:
    """Five sequences of at most that context on pages of that size, a few pages more than they need."""
    return {**usual, "page_size": page_size, "context_max": context_max, "pages": 5 * -(-context_max // page_size) + 9}


def geometry(op: str, kind: str, level: Level) -> tuple[Sizes, ...]:
    """The sizes of one class of `geometries`."""
    return next(one.sizes for one in geometries(op, level) if one.name == kind)


def empties(op: str) -> Iterator[Sizes]:
    """Sizes without any row; a step has at least one sequence, so attention is never empty."""
    if op in BATCH_OPS:
        return
    rows = 3 if op in LOGIT_OPS and op not in ("argmax", "cap_logits", "sample") else 0
    yield {"tokens": 0, "rows": rows}
    if op == "select_rows":
        yield {"tokens": 5, "rows": 0}


def usual(op: str) -> Sizes:
    """Sizes with tails in every dimension, small enough to be run often."""
    if op in BATCH_OPS:
        return {"head_dim": 64, "page_size": 16, "pages": 32, "hidden": 64, "context_max": 70}
    if op in HEAD_OPS:
        return {"head_dim": 64, "page_size": 16, "pages": 32, "tokens": 17, "rows": 5}
    if op in LOGIT_OPS:
        return {"rows": 5, "vocab": 301, "tokens": 9}
    return {"tokens": 17, "rows": 9, "hidden": 130, "inner": 66, "out": 67, "vocab": 33}


__all__ = [
    "BATCH_OPS",
    "EXPERT_OPS",
    "HEAD_OPS",
    "IN_PLACE",
    "LATENT_OPS",
    "LOGIT_OPS",
    "PAGE_SIZES",
    "SLOT_OPS",
    "Geometry",
    "Sizes",
    "empties",
    "geometries",
    "geometry",
    "geometry_classes",
    "is_float",
    "per_op",
    "usual",
    "width_classes",
    "widths",
]
