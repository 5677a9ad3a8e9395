"""Attention over pages: the native kernel, or gathered keys and torch's. Knows the step's plan; knows no model."""

from __future__ import annotations

import threading

import torch
from torch.nn.functional import scaled_dot_product_attention

from anychip_cpu import host, native
from anychip_cpu.kernels.attention_plan import Block, DecodeBucket, Keys, StepPlan, plan_step
from anychip_sdk.ops.base import AttentionBatch

Pair = tuple[torch.Tensor, torch.Tensor]


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

    def __call__(
        self,
        q: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        batch: AttentionBatch,
        scale: float,
        window: int | None = None,
    ) -> torch.Tensor:
        if self._library is None or not _is_readable(q, k_cache, v_cache):
            return self._gathered(q, k_cache, v_cache, batch, scale, window)
        library = self._library
        rows = batch.decode_rows if self._has_tiles and q.dtype == torch.bfloat16 else batch.rows
        key = f"cpu.native {q.dtype} {q.shape[1]} {k_cache.shape[2]} {rows}"
        call: native.AttentionCall = batch.once(
            key, lambda: native.AttentionCall(library, batch, q, k_cache.shape[2], rows)
        )
        out = torch.empty(q.shape, dtype=q.dtype)
        call(out, q, k_cache, v_cache, scale, window)
        if rows < batch.rows:
            self._gathered.prefill(out, q, k_cache, v_cache, batch, scale, window)
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

    def __call__(
        self,
        q: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        batch: AttentionBatch,
        scale: float,
        window: int | None = None,
    ) -> torch.Tensor:
        out = torch.empty(q.shape, dtype=q.dtype)
        for bucket in _plan(batch, window, q.dtype).decodes:
            self._decode(out, q, (k_cache, v_cache), bucket, scale)
        self.prefill(out, q, k_cache, v_cache, batch, scale, window)
        return out

    def prefill(
        self,
        out: torch.Tensor,
        q: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        batch: AttentionBatch,
        scale: float,
        window: int | None,
    ) -> None:
        """Fill in the prefill rows' part of `out`."""
        for row in _plan(batch, window, q.dtype).prefills:
            k, v = self._gather((k_cache, v_cache), row.keys, q.dtype)
            for block in row.blocks:
                _prefill(out, q, k, v, block, scale)

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
        k, v = (self._tokens(name, cache, keys) for name, cache in zip(("k", "v"), caches, strict=True))
        return k.to(dtype), v.to(dtype)

    def _tokens(self, name: str, cache: torch.Tensor, keys: Keys) -> torch.Tensor:
        by_slot = cache.view(-1, *cache.shape[2:])
        if keys.slots is None:
            return by_slot[keys.first : keys.first + keys.tokens]
        width = by_slot[0].numel()
        buffer = self._scratch.take(name, keys.tokens * width, cache.dtype).view(keys.tokens, width)
        torch.index_select(by_slot.view(-1, width), 0, keys.slots, out=buffer)
        return buffer.view(keys.tokens, *cache.shape[2:])


def _plan(batch: AttentionBatch, window: int | None, dtype: torch.dtype) -> StepPlan:
    plan: StepPlan = batch.once(f"cpu.attention {window} {dtype}", lambda: plan_step(batch, window, dtype))
    return plan


def _prefill(out: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, block: Block, scale: float) -> None:
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


__all__ = ["NativeAttention", "PagedAttention"]
