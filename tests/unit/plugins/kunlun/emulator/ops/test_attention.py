"""Attention of the imitated kunlun_ops, against the catalogue's reference in float64."""

from __future__ import annotations

import math

import pytest
import torch

from anychip_kunlun.emulator.ops.attention import BATCH_MAX
from anychip_kunlun.stack import Stack
from anychip_sdk import ops as catalogue
from anychip_sdk.step import Paged, Step

HEADS, KV_HEADS, DIM, BLOCK_SIZE, BLOCKS = 4, 2, 32, 16, 12
SCALE = 0.11


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


def int32(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def caches() -> tuple[torch.Tensor, torch.Tensor]:
    return random(BLOCKS, KV_HEADS, BLOCK_SIZE, DIM, seed=1), random(BLOCKS, KV_HEADS, BLOCK_SIZE, DIM, seed=2)


def table(rows: int) -> torch.Tensor:
    order = torch.randperm(BLOCKS, generator=torch.Generator().manual_seed(3))
    return order.repeat(-(-rows * 3 // BLOCKS))[: rows * 3].view(rows, 3).int()


def lod(lengths: list[int]) -> torch.Tensor:
    return int32(0, *torch.tensor(lengths).cumsum(0).tolist())


def expected(q: torch.Tensor, queries: list[int], contexts: list[int], scale: float, window: int | None = None):
    k_cache, v_cache = (one.double().transpose(1, 2).contiguous() for one in caches())
    nothing = torch.zeros(0, dtype=torch.int64)
    step = Step(
        token_ids=nothing,
        positions=nothing,
        query_start=lod(queries),
        context_lens=int32(*contexts),
        logit_rows=nothing,
        groups=(Paged(table(len(queries)), nothing),),
        page_size=BLOCK_SIZE,
        decode_rows=0,
        query_lens_host=tuple(queries),
        context_lens_host=tuple(contexts),
    )
    return catalogue.paged_attention.reference(q.double(), k_cache, v_cache, step, scale, window).bfloat16()


def prefill(stack: Stack, q: torch.Tensor, queries: list[int], contexts: list[int], **change: object) -> torch.Tensor:
    out = torch.full_like(q, float("nan"))
    k, v = caches()
    given = {
        "q": q,
        "k": k,
        "v": v,
        "out": out,
        "is_causal": True,
        "is_prefix_cache": True,
        "block_table": table(len(queries)),
        "alpha": SCALE * math.sqrt(DIM),
        "context_qlen_lod_cpu": lod(queries),
        "context_qlen_lod_xpu": lod(queries),
        "context_kvlen_lod_cpu": lod(contexts),
        "context_kvlen_lod_xpu": lod(contexts),
    }
    stack.load("kunlun_ops").prefill_attention(**{**given, **change})
    return out


QUERIES, CONTEXTS = [5, 16, 1], [30, 16, 48]


def test_prefill_reads_the_prefix_from_the_pages(host: Stack) -> None:
    q = random(sum(QUERIES), HEADS, DIM)
    out = prefill(host, q, QUERIES, CONTEXTS)
    torch.testing.assert_close(out, expected(q, QUERIES, CONTEXTS, SCALE), rtol=0.02, atol=0.01)


def test_prefill_over_raw_keys_is_the_same(host: Stack) -> None:
    queries = [16, 5]
    q, (k_cache, v_cache) = random(21, HEADS, DIM), caches()
    pages = table(2)
    k, v = (
        torch.cat([one[pages[row, 0]].transpose(0, 1)[:length] for row, length in enumerate(queries)])
        for one in (k_cache, v_cache)
    )
    out = prefill(
        host,
        q,
        queries,
        queries,
        k=k,
        v=v,
        is_prefix_cache=False,
        block_table=None,
        context_kvlen_lod_cpu=None,
        context_kvlen_lod_xpu=None,
    )
    torch.testing.assert_close(out, expected(q, queries, queries, SCALE), rtol=0.02, atol=0.01)


def test_a_window_hides_what_is_further_back(host: Stack) -> None:
    q = random(sum(QUERIES), HEADS, DIM)
    out = prefill(host, q, QUERIES, CONTEXTS, swa_left=7, swa_right=0)
    torch.testing.assert_close(out, expected(q, QUERIES, CONTEXTS, SCALE, window=7), rtol=0.02, atol=0.01)


def test_alpha_is_divided_by_the_root_of_the_head_size(open_host) -> None:
    q = random(sum(QUERIES), HEADS, DIM)
    plain = prefill(open_host(plain_alpha=True), q, QUERIES, CONTEXTS, alpha=SCALE)
    torch.testing.assert_close(plain, expected(q, QUERIES, CONTEXTS, SCALE), rtol=0.02, atol=0.01)
    default = prefill(open_host(), q, QUERIES, CONTEXTS, alpha=None)
    torch.testing.assert_close(default, expected(q, QUERIES, CONTEXTS, 1 / math.sqrt(DIM)), rtol=0.02, atol=0.01)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"context_qlen_lod_xpu": int32(0, 5, 20, 22)}, "context_qlen_lod_cpu and context_qlen_lod_xpu differ"),
        ({"context_qlen_lod_xpu": None}, "context_qlen_lod is needed on both sides"),
        ({"context_kvlen_lod_cpu": None}, "context_kvlen_lod is needed on both sides"),
        ({"context_qlen_lod_cpu": lod(QUERIES).long()}, "context_qlen_lod_cpu is int64"),
        ({"block_table": table(3).long()}, "block_table is int64"),
        ({"block_table": table(3)[:, :2].contiguous()}, "the block table is"),
        ({"block_table": None}, "a block table is needed"),
        ({"k": random(BLOCKS, BLOCK_SIZE, KV_HEADS, DIM)}, "v_cache is"),
        ({"swa_right": 3}, "swa_right 3"),
    ],
)
def test_prefill_refuses(host: Stack, change: dict[str, object], why: str) -> None:
    with pytest.raises(ValueError, match=f"prefill_attention failed .{why}"):
        prefill(host, random(sum(QUERIES), HEADS, DIM), QUERIES, CONTEXTS, **change)


def test_prefill_refuses_strided_queries(host: Stack) -> None:
    with pytest.raises(ValueError, match="q is not contiguous"):
        prefill(host, random(HEADS, 22, DIM).transpose(0, 1), QUERIES, CONTEXTS)


def test_head_sizes_that_no_kernel_has_are_refused(host: Stack) -> None:
    with pytest.raises(ValueError, match="head size 48 is none of"):
        prefill(host, random(22, HEADS, 48), QUERIES, CONTEXTS)


def decode(stack: Stack, q: torch.Tensor, contexts: list[int], **change: object) -> torch.Tensor:
    rows, queries = len(contexts), q.shape[1]
    out = torch.full_like(q, float("nan"))
    k_cache, v_cache = caches()
    given = {
        "out": out,
        "q": q,
        "k_cache": k_cache,
        "v_cache": v_cache,
        "context_lens_cpu": int32(*contexts),
        "context_lens_xpu": int32(*contexts),
        "batch_num": rows,
        "qlen": queries,
        "max_context_len": 48,
        "head_num": HEADS,
        "head_dim": DIM,
        "scale": SCALE,
        "kv_head_num": KV_HEADS,
        "block_size": BLOCK_SIZE,
        "max_num_blocks_per_seq": 3,
        "max_window_size": -1,
        "block_tables": table(rows),
        "sink": None,
    }
    stack.load("kunlun_ops").speculative_attention(**{**given, **change})
    return out


@pytest.mark.parametrize("queries", [1, 2])
@pytest.mark.parametrize("window", [-1, 9])
def test_decode_is_the_references(host: Stack, queries: int, window: int) -> None:
    contexts = [30, 2, 48]
    q = random(3, queries, HEADS, DIM)
    out = decode(host, q, contexts, max_window_size=window)
    limit = None if window < 0 else window
    wanted = expected(q.flatten(0, 1), [queries] * 3, contexts, SCALE, limit).view(q.shape)
    torch.testing.assert_close(out, wanted, rtol=0.02, atol=0.01)


def test_decode_takes_all_rows_as_one_sequence_too(host: Stack) -> None:
    contexts, q = [30, 2, 48], random(1, 3, HEADS, DIM)
    out = decode(host, q, contexts, qlen=1)
    assert torch.equal(out[0], decode(host, q.transpose(0, 1), contexts)[:, 0])


def test_a_scale_of_zero_is_the_default(host: Stack) -> None:
    q, contexts = random(2, 1, HEADS, DIM), [30, 48]
    assert torch.equal(decode(host, q, contexts, scale=0.0), decode(host, q, contexts, scale=1 / math.sqrt(DIM)))


def test_what_lies_behind_a_rows_tokens_does_not_matter(host: Stack) -> None:
    q, contexts = random(2, 1, HEADS, DIM), [17, 33]
    before = decode(host, q, contexts)
    k_cache, v_cache = caches()
    pages = table(2)
    for cache in (k_cache, v_cache):
        cache[pages[0, 1], :, 1:] = float("nan")
    pages[0, 2] = 10_000
    assert torch.equal(decode(host, q, contexts, k_cache=k_cache, v_cache=v_cache, block_tables=pages), before)


def test_decode_takes_int8_pages(host: Stack) -> None:
    q, contexts = random(2, 1, HEADS, DIM), [30, 48]
    absmax = torch.full((KV_HEADS * DIM,), 5.0)
    small = [(one.float() / 5.0 * 127).round().clamp(-127, 127).to(torch.int8) for one in caches()]
    out = decode(
        host, q, contexts, k_cache=small[0], v_cache=small[1], k_perchannel_scale=absmax, v_perchannel_scale=absmax
    )
    torch.testing.assert_close(out, decode(host, q, contexts), rtol=0.05, atol=0.05)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"qlen": 3}, "qlen 3 is not 1..2"),
        ({"context_lens_xpu": int32(30, 47)}, "context_lens_cpu and context_lens_xpu differ"),
        ({"block_tables": table(2).long()}, "block_table is int64"),
        ({"head_num": HEADS + 1}, "q is"),
        ({"block_size": 32}, "k_cache"),
        ({"max_context_len": 47}, "48 tokens, max_context_len 47"),
    ],
)
def test_decode_refuses(host: Stack, change: dict[str, object], why: str) -> None:
    with pytest.raises(ValueError, match=f"speculative_attention failed .{why}"):
        decode(host, random(2, 1, HEADS, DIM), [30, 48], **change)


def test_decode_refuses_a_thousand_and_twenty_four_rows(host: Stack) -> None:
    rows = BATCH_MAX + 1
    q = random(rows, 1, HEADS, DIM)
    pages = torch.zeros(rows, 3, dtype=torch.int32)
    with pytest.raises(ValueError, match="batch_num 1024"):
        decode(host, q, [1] * rows, block_tables=pages)
    assert bool(decode(host, q[:-1], [1] * BATCH_MAX, block_tables=pages[:-1]).isfinite().all())


def test_the_older_decode_is_paged_attention(open_host) -> None:
    stack, contexts, q = open_host(generation="torch251"), [30, 2, 48], random(3, HEADS, DIM)
    out = torch.full_like(q, float("nan"))
    k_cache, v_cache = caches()
    stack.load("kunlun_ops").paged_attention(
        x=q,
        k_cache=k_cache,
        v_cache=v_cache,
        block_tables=table(3),
        context_lens_cpu=int32(*contexts),
        context_lens_xpu=int32(*contexts),
        is_context=False,
        is_causal=True,
        out=out,
        vo_head_dim=DIM,
        softmax_scale=SCALE,
    )
    torch.testing.assert_close(out, expected(q, [1] * 3, contexts, SCALE), rtol=0.02, atol=0.01)


def test_mla_and_sinks_are_refused_by_name(host: Stack) -> None:
    with pytest.raises(NotImplementedError, match="speculative_attention has no sink"):
        decode(host, random(2, 1, HEADS, DIM), [30, 48], sink=torch.zeros(HEADS))
