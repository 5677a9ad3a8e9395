"""Attention over pages: the native kernel, or gathered keys and torch's. Knows the step's plan; knows no model."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch.nn.functional import scaled_dot_product_attention

from anychip_cpu import host, native
from anychip_cpu.kernels.attention_plan import Block, DecodeBucket, Keys, StepPlan, plan_step
from anychip_cpu.kernels.cache import are_slots_even
from anychip_sdk.ops import paged_attention
from anychip_sdk.registry import Facts, Prepare
from anychip_sdk.step import Step, StepLimits

Pair = tuple[torch.Tensor, torch.Tensor]

_reference: Callable[..., torch.Tensor] = paged_attention.reference

#: what a step's preparation reads
FACTS = ("heads", "kv_heads", "head_dim", "window", "dtype", "kv_dtype", "group", "soft_cap", "sinks")


class AttentionStep(NamedTuple):
    """What one step's attention needs in each layer."""

    step: Step
    dtype: torch.dtype  #: of the queries that it was made for
    call: native.AttentionCall | None  #: of the first rows; None: the library has none
    rows: int  #: how many these are
    plan: StepPlan | None  #: of the other rows; None: there are none


def heads_of(facts: Facts) -> native.Heads:
    """What layers with these facts work on."""
    dtype: torch.dtype = getattr(torch, str(facts["dtype"]))
    counts = (facts["heads"], facts["kv_heads"], facts["head_dim"])
    return native.Heads(dtype, *(int(count or 0) for count in counts))


def is_kept_in(facts: Facts) -> bool:
    """Whether keys and values are kept in the dtype that they are computed in."""
    return facts.get("kv_dtype") in (None, facts["dtype"])


def _group_and_window(facts: Facts) -> tuple[int, int | None]:
    group, window = facts.get("group"), facts.get("window")
    return int(group or 0), None if window is None else int(window)


class NativeAttention:
    """Reads pages in place. What the library can't do, and bfloat16 prefill on tile units, is left to torch.

    torch multiplies bfloat16 in tiles where the processor has them and is two to three times faster there. All prefill
    rows go to it then, the short ones too: which way a row takes must not depend on its mates.

    Args:
        library: the native kernels, None where there are none.
        gathered: does what the library doesn't.
    """

    def __init__(self, library: native.Library | None, gathered: PagedAttention) -> None:
        self._library = library
        self._gathered = gathered
        self._has_tiles = "amx_bf16" in host.instruction_sets()
        self.prepare = Prepare(self.make, facts=FACTS)

    def make(self, facts: Facts, constants: Mapping[str, Any], limits: StepLimits) -> Callable[[Step], AttentionStep]:
        heads, library = heads_of(facts), self._library
        group, window = _group_and_window(facts)
        is_native = native.supports(heads.dtype, heads.head_dim) and is_kept_in(facts)
        are_plain = facts.get("soft_cap") is None and facts.get("sinks") is None  # torch has neither
        has_tiles = self._has_tiles and heads.dtype == torch.bfloat16 and are_plain

        def prepare(step: Step) -> AttentionStep:
            rows = step.decode_rows if has_tiles else step.rows
            if library is None or not is_native or not rows:
                return AttentionStep(step, heads.dtype, None, 0, plan_step(step, group, window, heads.dtype))
            call = native.AttentionCall(library, step, group, heads, rows)
            plan = plan_step(step, group, window, heads.dtype, rows) if rows < step.rows else None
            return AttentionStep(step, heads.dtype, call, rows, plan)

        return prepare

    def __call__(
        self,
        q: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        prepared: AttentionStep,
        scale: float,
        window: int | None = None,
        group: int = 0,
        soft_cap: float | None = None,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        if prepared.call is None or prepared.dtype != q.dtype or not _is_readable(q, k_cache, v_cache):
            if soft_cap is None and sinks is None:
                return self._gathered(q, k_cache, v_cache, prepared, scale, window, group)
            step = prepared.step
            return _reference(q, k_cache, v_cache, step, scale, window, group, soft_cap, sinks)
        out = torch.empty(q.shape, dtype=q.dtype)
        scores = native.Scores(scale, window, soft_cap, None if sinks is None else sinks.float().contiguous())
        prepared.call(out, q, k_cache, v_cache, scores)
        if prepared.plan is not None:
            self._gathered.prefill(out, q, (k_cache, v_cache), prepared.plan, scale)
        return out


def _is_readable(q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor) -> bool:
    return (
        native.supports(q.dtype, q.shape[-1])
        and k_cache.dtype == q.dtype == v_cache.dtype
        and q.stride(-1) == k_cache.stride(-1) == 1
        and k_cache.stride() == v_cache.stride()
    )


class _Scratch(threading.local):
    """Memory that is kept from call to call, for each thread its own."""

    def __init__(self) -> None:
        self._buffers: dict[tuple[str, torch.dtype], torch.Tensor] = {}

    def take(self, name: str, elements: int, dtype: torch.dtype) -> torch.Tensor:
        """The thread's buffer of that name; what it held is lost."""
        found = self._buffers.get((name, dtype))
        if found is None or found.numel() < elements:
            with torch.inference_mode(False):  # an inference tensor could not be written outside that mode later
                found = torch.empty(elements + elements // 4, dtype=dtype)
            self._buffers[name, dtype] = found
        return found[:elements]


class PagedAttention:
    """Keys are gathered for torch's flash kernel. It keeps the memory that it gathers into.

    Fresh pages from the operating system for each layer would cost more than the gathering itself.
    """

    def __init__(self) -> None:
        self._scratch = _Scratch()

        self.prepare = Prepare(self.make, facts=FACTS)

    def make(self, facts: Facts, constants: Mapping[str, Any], limits: StepLimits) -> Callable[[Step], AttentionStep]:
        heads = heads_of(facts)
        group, window = _group_and_window(facts)

        def prepare(step: Step) -> AttentionStep:
            return AttentionStep(step, heads.dtype, None, 0, plan_step(step, group, window, heads.dtype))

        return prepare

    def __call__(
        self,
        q: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        prepared: AttentionStep,
        scale: float,
        window: int | None = None,
        group: int = 0,
        soft_cap: float | None = None,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        plan = prepared.plan
        if plan is None or prepared.rows or prepared.dtype != q.dtype:
            # the library was to do it, but can't read these strides or dtypes, which facts don't tell
            plan = plan_step(prepared.step, group, window, q.dtype)
        return self.mixed(q, (k_cache, v_cache), plan, scale)

    def mixed(self, q: torch.Tensor, caches: Pair, plan: StepPlan, scale: float) -> torch.Tensor:
        """What the rows of a plan see, [tokens, heads, head_dim]."""
        out = torch.empty(q.shape, dtype=q.dtype)
        for bucket in plan.decodes:
            self._decode(out, q, caches, bucket, scale)
        self.prefill(out, q, caches, plan, scale)
        return out

    def prefill(self, out: torch.Tensor, q: torch.Tensor, caches: Pair, plan: StepPlan, scale: float) -> None:
        """Fill in the prefill rows' part of `out`."""
        for row in plan.prefills:
            k, v = self._gather(caches, row.keys, q.dtype)
            for block in row.blocks:
                prefill_block(out, q, k, v, block, scale)

    def _decode(self, out: torch.Tensor, q: torch.Tensor, caches: Pair, bucket: DecodeBucket, scale: float) -> None:
        """The query heads of a group share their keys, so they are the rows of one product."""
        kv_heads, head_dim = caches[0].shape[2:]
        queries = q[: bucket.size] if bucket.rows is None else q.index_select(0, bucket.rows)
        queries = queries.reshape(bucket.size, kv_heads, -1, head_dim)
        shape = (bucket.size, bucket.length, kv_heads, head_dim)
        k, v = (part.view(shape).transpose(1, 2) for part in self._gather(caches, bucket.keys, q.dtype))
        mixed = scaled_dot_product_attention(queries, k, v, attn_mask=bucket.mask, scale=scale)
        mixed = mixed.reshape(bucket.size, -1, head_dim)
        if bucket.rows is None:
            out[: bucket.size] = mixed
        else:
            out.index_copy_(0, bucket.rows, mixed)

    def _gather(self, caches: Pair, keys: Keys, dtype: torch.dtype) -> Pair:
        """Keys and values [tokens, kv_heads, head_dim] in the queries' dtype."""
        k, v = (self.tokens(name, cache, keys) for name, cache in zip(("k", "v"), caches, strict=True))
        return k.to(dtype), v.to(dtype)

    def tokens(self, name: str, cache: torch.Tensor, keys: Keys) -> torch.Tensor:
        """Entries [tokens, ...] of a cache, in memory that the next ones of that name get."""
        if not are_slots_even(cache):
            slots = torch.arange(keys.first, keys.first + keys.tokens) if keys.slots is None else keys.slots
            return cache[slots // cache.shape[1], slots % cache.shape[1]]
        by_slot = cache.view(-1, *cache.shape[2:])
        if keys.slots is None:
            return by_slot[keys.first : keys.first + keys.tokens]
        width = by_slot[0].numel()
        buffer = self._scratch.take(name, keys.tokens * width, cache.dtype).view(keys.tokens, width)
        torch.index_select(by_slot.flatten(1), 0, keys.slots, out=buffer)
        return buffer.view(keys.tokens, *cache.shape[2:])


def prefill_block(
    out: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, block: Block, scale: float
) -> None:
    """q: [tokens, heads, head_dim]; k, v: [context, kv_heads, head_dim]."""

    def heads_first(x: torch.Tensor) -> torch.Tensor:
        return x.transpose(0, 1).unsqueeze(0)

    mixed = scaled_dot_product_attention(
        heads_first(q[block.start : block.stop]),
        heads_first(k[block.key_start : block.key_stop]),
        heads_first(v[block.key_start : block.key_stop]),
        attn_mask=block.mask,
        is_causal=block.causal,
        scale=scale,
        enable_gqa=q.shape[1] != k.shape[1],
    )
    out[block.start : block.stop] = mixed.squeeze(0).transpose(0, 1)


__all__ = ["FACTS", "AttentionStep", "NativeAttention", "PagedAttention", "heads_of", "is_kept_in", "prefill_block"]
