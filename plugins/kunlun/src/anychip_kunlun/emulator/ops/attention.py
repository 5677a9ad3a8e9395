"""Attention of kunlun_ops: prefill over raw or paged keys, decode of both generations. Knows nothing of sampling."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import NamedTuple

import torch

from anychip_kunlun.emulator.contract import FLOATS, Contract, vendor_op
from anychip_kunlun.emulator.machine import Machine
from anychip_kunlun.emulator.ops.attention_maths import attend, gathered

BATCH_MAX = 1023
QUERY_MAX = 2
BLOCK_SIZES = (16, 32, 64, 128)


class Caches(NamedTuple):
    """Paged keys and values, and the absmax of each channel where they are int8."""

    k: torch.Tensor
    v: torch.Tensor
    k_absmax: torch.Tensor | None
    v_absmax: torch.Tensor | None

    def present(self) -> tuple[torch.Tensor, ...]:
        return tuple(one for one in self if one is not None)


class AttentionOps:
    """q is [tokens, heads, head_dim], paged caches are [blocks, kv_heads, block_size, head_dim]."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine

    @vendor_op
    def prefill_attention(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        out: torch.Tensor,
        is_causal: bool = True,
        is_prefix_cache: bool = False,
        block_table: torch.Tensor | None = None,
        alpha: float | None = None,
        context_qlen_lod_cpu: torch.Tensor | None = None,
        context_qlen_lod_xpu: torch.Tensor | None = None,
        context_kvlen_lod_cpu: torch.Tensor | None = None,
        context_kvlen_lod_xpu: torch.Tensor | None = None,
        alibi_slopes: torch.Tensor | None = None,
        softmax_lse: torch.Tensor | None = None,
        swa_left: int = -1,
        swa_right: int = -1,
        sink: torch.Tensor | None = None,
        k_perchannel_scale: torch.Tensor | None = None,
        v_perchannel_scale: torch.Tensor | None = None,
    ) -> None:
        """Ragged rows of queries; the scale is alpha / sqrt(head_dim). A prefix is read from the paged caches."""
        contract = Contract("prefill_attention")
        _unsupported(contract.op, alibi_slopes=alibi_slopes, softmax_lse=softmax_lse, sink=sink)
        tokens, heads, head_dim = _check_queries(contract, q, out)
        query_at = contract.lod("context_qlen_lod", context_qlen_lod_cpu, context_qlen_lod_xpu, tokens)
        if context_kvlen_lod_cpu is None and not is_prefix_cache:
            key_at = query_at
        else:
            total = None if is_prefix_cache else k.shape[0]
            key_at = contract.lod("context_kvlen_lod", context_kvlen_lod_cpu, context_kvlen_lod_xpu, total)
        contract.need(len(key_at) == len(query_at), "the lods differ in rows")
        contract.need(swa_right in (-1, 0), f"swa_right {swa_right}")
        caches = Caches(k, v, k_perchannel_scale, v_perchannel_scale)
        if is_prefix_cache:
            _check_caches(contract, caches, q, heads)
            _check_table(contract, block_table, len(query_at) - 1, max(_steps(key_at)), k.shape[2])
        else:
            contract.contiguous(k=k, v=v)
            contract.dtype((q.dtype,), k=k, v=v)
            contract.need(k.dim() == 3 and k.shape[2] == head_dim and heads % k.shape[1] == 0, f"k is {tuple(k.shape)}")
            contract.shape(k.shape, v=v)
        scale = self._scale(1.0 if alpha is None else alpha, head_dim)

        def run() -> None:
            for row, (here, part) in enumerate(zip(pairwise(query_at), pairwise(key_at), strict=True)):
                context = part[1] - part[0]
                if block_table is not None and is_prefix_cache:
                    keys, values = gathered(caches, block_table[row : row + 1], context)
                else:
                    keys, values = (one[slice(*part)].float().transpose(0, 1)[None] for one in (k, v))
                queries, lengths = q[slice(*here)][None], torch.tensor([context])
                out[slice(*here)] = attend(queries, keys, values, lengths, scale, is_causal, swa_left)[0]

        reads = (q, *caches.present(), *(() if block_table is None else (block_table,)))
        self.machine.launch(contract.op, reads, (out,), run)

    @vendor_op
    def speculative_attention(
        self,
        out: torch.Tensor,
        q: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        context_lens_cpu: torch.Tensor,
        context_lens_xpu: torch.Tensor,
        batch_num: int,
        qlen: int,
        max_context_len: int,
        head_num: int,
        head_dim: int,
        scale: float,
        kv_head_num: int,
        block_size: int,
        max_num_blocks_per_seq: int,
        max_window_size: int = -1,
        block_tables: torch.Tensor | None = None,
        sink: torch.Tensor | None = None,
        qlod_cpu: torch.Tensor | None = None,
        qlod_xpu: torch.Tensor | None = None,
        k_perchannel_scale: torch.Tensor | None = None,
        v_perchannel_scale: torch.Tensor | None = None,
    ) -> None:
        """Decode: q [1, rows, heads, head_dim] or [rows, qlen, heads, head_dim]; scale 0.0 is 1 / sqrt(head_dim)."""
        contract = Contract("speculative_attention")
        _unsupported(contract.op, sink=sink, qlod_cpu=qlod_cpu, qlod_xpu=qlod_xpu)
        contract.need(1 <= qlen <= QUERY_MAX, f"qlen {qlen} is not 1..{QUERY_MAX}")
        wanted = (batch_num, qlen, head_num, head_dim)
        flat = (1, batch_num * qlen, head_num, head_dim)
        contract.need(tuple(q.shape) in (wanted, flat), f"q is {tuple(q.shape)}, not {wanted} or {flat}")
        contract.need(out.numel() == q.numel(), f"out is {tuple(out.shape)}")
        contract.need(max_num_blocks_per_seq * block_size >= 1, "no blocks")
        caches = Caches(k_cache, v_cache, k_perchannel_scale, v_perchannel_scale)
        contract.need(
            tuple(k_cache.shape[1:]) == (kv_head_num, block_size, head_dim), f"k_cache {tuple(k_cache.shape)}"
        )
        if block_tables is not None:
            contract.shape((batch_num, max_num_blocks_per_seq), block_tables=block_tables)
        queries, target = q.view(wanted), out.view(wanted)
        effective = scale or 1 / math.sqrt(head_dim)
        lengths = (context_lens_cpu, context_lens_xpu)
        longest = self._decode(contract, queries, target, caches, block_tables, lengths, effective, max_window_size)
        contract.need(longest <= max_context_len, f"{longest} tokens, max_context_len {max_context_len}")

    @vendor_op
    def paged_attention(
        self,
        out: torch.Tensor,
        x: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        block_tables: torch.Tensor,
        context_lens_cpu: torch.Tensor,
        context_lens_xpu: torch.Tensor,
        is_context: bool = False,
        is_causal: bool = True,
        vo_head_dim: int = -1,
        kv_lora_rank: int = -1,
        qk_rope_dim: int = -1,
        softmax_scale: float = 0.0,
        alibi_sqrt: int = 0,
        alibi_slopes: torch.Tensor | None = None,
        sink: torch.Tensor | None = None,
        k_perchannel_scale: torch.Tensor | None = None,
        v_perchannel_scale: torch.Tensor | None = None,
    ) -> None:
        """Decode of the older generation: x [rows, heads, head_dim]; softmax_scale 0.0 is 1 / sqrt(head_dim)."""
        contract = Contract("paged_attention")
        _unsupported(contract.op, alibi_slopes=alibi_slopes, sink=sink)
        contract.need(not is_context, "is_context is not supported")
        contract.need(kv_lora_rank == -1 and qk_rope_dim == -1, "MLA is not emulated")
        contract.need(x.dim() == 3, f"x is {tuple(x.shape)}, not [rows, heads, size]")
        contract.need(vo_head_dim in (-1, x.shape[2]), f"vo_head_dim {vo_head_dim}, head size {x.shape[2]}")
        contract.need(out.numel() == x.numel(), f"out is {tuple(out.shape)}")
        caches = Caches(k_cache, v_cache, k_perchannel_scale, v_perchannel_scale)
        scale = softmax_scale or 1 / math.sqrt(x.shape[2])
        lengths = (context_lens_cpu, context_lens_xpu)
        self._decode(contract, x[:, None], out.view(x[:, None].shape), caches, block_tables, lengths, scale, -1)

    def _decode(
        self,
        contract: Contract,
        q: torch.Tensor,
        out: torch.Tensor,
        caches: Caches,
        table: torch.Tensor | None,
        lengths: tuple[torch.Tensor, torch.Tensor],
        scale: float,
        window: int,
    ) -> int:
        """Rows of q [rows, queries, heads, head_dim] over the paged caches; the longest row's tokens."""
        rows, _, heads, _ = q.shape
        contract.need(1 <= rows <= BATCH_MAX, f"batch_num {rows} is not 1..{BATCH_MAX}")
        _check_queries(contract, q.flatten(0, 1), out.flatten(0, 1))
        contract.contiguous(q=q, out=out)
        _check_caches(contract, caches, q, heads)
        context = contract.on_both_sides("context_lens", *lengths)
        contract.need(len(context) == rows and min(context) >= q.shape[1], f"context_lens are {context[:8]}")
        longest = max(context)
        _check_table(contract, table, rows, longest, caches.k.shape[2])
        assert table is not None
        tokens = torch.tensor(context)  # the kernel's host argument is read at the launch

        def run() -> None:
            keys, values = gathered(caches, table, longest)
            out.copy_(attend(q, keys, values, tokens, scale, True, window))

        self.machine.launch(contract.op, (q, *caches.present(), table, lengths[1]), (out,), run)
        return longest

    def _scale(self, alpha: float, head_dim: int) -> float:
        return alpha if self.machine.profile.plain_alpha else alpha / math.sqrt(head_dim)


def _check_queries(contract: Contract, q: torch.Tensor, out: torch.Tensor) -> tuple[int, int, int]:
    contract.contiguous(q=q, out=out)
    contract.dtype(FLOATS, q=q)
    contract.dtype((q.dtype,), out=out)
    contract.need(q.dim() == 3, f"q is {tuple(q.shape)}, not [tokens, heads, size]")
    tokens, heads, head_dim = q.shape
    contract.shape(q.shape, out=out)
    contract.head_dim(head_dim)
    return tokens, heads, head_dim


def _check_caches(contract: Contract, caches: Caches, q: torch.Tensor, heads: int) -> None:
    k, v = caches.k, caches.v
    contract.contiguous(k_cache=k, v_cache=v)
    contract.need(k.dim() == 4 and k.shape[3] == q.shape[-1], f"k_cache is {tuple(k.shape)}")
    contract.shape(k.shape, v_cache=v)
    contract.need(heads % k.shape[1] == 0, f"{heads} heads on {k.shape[1]} kv heads")
    contract.need(k.shape[2] in BLOCK_SIZES, f"block size {k.shape[2]} is none of {BLOCK_SIZES}")
    is_int8 = caches.k_absmax is not None
    contract.dtype((torch.int8,) if is_int8 else (q.dtype,), k_cache=k, v_cache=v)
    if is_int8:
        contract.dtype((torch.float32,), k_perchannel_scale=caches.k_absmax, v_perchannel_scale=caches.v_absmax)
        shape = (k.shape[1] * k.shape[3],)
        contract.shape(shape, k_perchannel_scale=caches.k_absmax, v_perchannel_scale=caches.v_absmax)


def _check_table(contract: Contract, table: torch.Tensor | None, rows: int, longest: int, block_size: int) -> None:
    contract.need(table is not None, "a block table is needed")
    assert table is not None
    contract.dtype((torch.int32,), block_table=table)
    contract.contiguous(block_table=table)
    fits = table.dim() == 2 and table.shape[0] == rows and table.shape[1] * block_size >= longest
    contract.need(fits, f"the block table is {tuple(table.shape)}, {rows} rows of up to {longest} tokens")


def _steps(lod: list[int]) -> list[int]:
    return [second - first for first, second in pairwise(lod)]


def _unsupported(op: str, **given: object) -> None:
    names = [name for name, value in given.items() if value is not None]
    if names:
        message = f"the emulator's {op} has no {', '.join(names)}"
        raise NotImplementedError(message)


__all__ = ["BATCH_MAX", "BLOCK_SIZES", "QUERY_MAX", "AttentionOps", "Caches"]
