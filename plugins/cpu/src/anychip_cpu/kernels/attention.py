"""Attention over pages: gather each row's keys, then torch's flash kernel. Knows the step's plan; knows no model."""

from __future__ import annotations

import torch
from torch.nn.functional import scaled_dot_product_attention

from anychip_cpu.kernels.attention_plan import Block, DecodeBucket, Keys, StepPlan, plan_step
from anychip_sdk.ops.base import AttentionBatch

Pair = tuple[torch.Tensor, torch.Tensor]


class PagedAttention:
    """The kernel, with the memory that it gathers into.

    That memory is kept from call to call: fresh pages from the operating system for each layer cost more than the
    gathering itself.
    """

    def __init__(self) -> None:
        self._buffers: dict[tuple[str, torch.dtype], torch.Tensor] = {}

    def __call__(
        self,
        q: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        batch: AttentionBatch,
        scale: float,
        window: int | None = None,
    ) -> torch.Tensor:
        key = f"cpu.attention {window} {q.dtype}"
        plan: StepPlan = batch.once(key, lambda: plan_step(batch, window, q.dtype))
        out = torch.empty(q.shape, dtype=q.dtype)
        for bucket in plan.decodes:
            self._decode(out, q, (k_cache, v_cache), bucket, scale)
        for row in plan.prefills:
            k, v = self._gather((k_cache, v_cache), row.keys, q.dtype)
            for block in row.blocks:
                _prefill(out, q, k, v, block, scale)
        return out

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
        buffer = self._buffer(name, keys.tokens * width, cache.dtype).view(keys.tokens, width)
        torch.index_select(by_slot.view(-1, width), 0, keys.slots, out=buffer)
        return buffer.view(keys.tokens, *cache.shape[2:])

    def _buffer(self, name: str, elements: int, dtype: torch.dtype) -> torch.Tensor:
        found = self._buffers.get((name, dtype))
        if found is None or found.numel() < elements:
            with torch.inference_mode(False):  # an inference tensor could not be written outside that mode later
                found = torch.empty(elements + elements // 4, dtype=dtype)
            self._buffers[name, dtype] = found
        return found[:elements]


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


__all__ = ["PagedAttention"]
