"""Every CPU kernel against the float64 reference, over dtypes and shapes. Knows the SDK's test kit."""

import threading
from dataclasses import replace

import pytest
import torch

import anychip_cpu
from anychip_cpu import host
from anychip_cpu.kernels import FLOATS, dense, packed, sampling
from anychip_cpu.kernels.attention_plan import bucketed
from anychip_sdk import CATALOGUE, load_backend
from anychip_sdk.ops import paged_attention, sample
from anychip_sdk.registry import REFERENCE, with_prepared
from anychip_sdk.step import Paged
from anychip_sdk.testing import check_kernel, random_case, random_step
from support.kernel_calls import call_facts, called, row_step

BACKEND = load_backend("cpu", anychip_cpu, distribution="anychip-cpu", version="0")
KERNELS = {
    f"{kernel.op}-{kernel.name}": kernel
    for op in CATALOGUE
    for kernel in BACKEND.ops.kernels(op)
    if kernel.provider != REFERENCE
}
GATHERED = KERNELS["paged_attention-gathered_flash"]
#: tails of vectors and blocks, one row, many rows
SIZES = [
    {"tokens": 1, "rows": 1, "hidden": 64, "inner": 64, "out": 32},
    {"tokens": 2, "hidden": 33, "inner": 17, "out": 1},
    {"tokens": 16, "hidden": 576, "inner": 96, "out": 130},
    {"tokens": 67, "rows": 9, "hidden": 40, "inner": 200, "out": 64},
]
HEADS = [
    {"heads": 4, "kv_heads": 4, "head_dim": 16, "page_size": 1},
    {"heads": 6, "kv_heads": 3, "head_dim": 32, "page_size": 3},
    {"heads": 9, "kv_heads": 3, "head_dim": 64, "page_size": 16},
    {"heads": 8, "kv_heads": 1, "head_dim": 80, "page_size": 16},
    {"heads": 2, "kv_heads": 1, "head_dim": 128, "page_size": 1},
]
#: what torch's own products do with a row's bits: seen on processors with AVX-512, not promised elsewhere
REPEATABLE = pytest.mark.skipif("avx512f" not in host.instruction_sets(), reason="needs avx512f")


def preparer(kernel):
    """What the engine does to the kernel's weights, or None."""
    if not kernel.prepares_weight:
        return None

    def prepare(name, weight):
        if kernel.name == "native" and kernel.op in packed.OPS:  # where the plugin prefers oneDNN's, too
            prepared = dense.prepare(name, weight)
        else:
            prepared = anychip_cpu.anychip_prepare_weight(name, weight, kernel.op)
        return weight if prepared is None else prepared.value

    return prepare


def check(kernel, dtype, seed, **dimensions):
    if dtype not in kernel.dtypes:
        pytest.skip(f"this processor has no {kernel.name} in {dtype}")
    op = CATALOGUE[kernel.op]
    args = random_case(kernel.op, dtype, seed, strided=seed % 2 == 1, bias=seed % 3 != 2, **dimensions)
    with torch.inference_mode():
        found = check_kernel(op, kernel, args, dtype, prepare=preparer(kernel), facts=call_facts(kernel.op, args))
    assert found.passed, (kernel.name, dtype, dimensions, found)


def uses_heads(kernel):
    return any({"head_dim", "entry"} & set(arg.shape) for arg in CATALOGUE[kernel.op].args)


def test_every_op_has_a_kernel_of_the_backend_in_every_float_dtype():
    for name in CATALOGUE:
        covered = {dtype for kernel in KERNELS.values() if kernel.op == name for dtype in kernel.dtypes}
        assert covered == set(FLOATS), name


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", [name for name, kernel in KERNELS.items() if not uses_heads(kernel)])
def test_kernels_on_rows_are_within_the_error_model(name, dtype):
    for seed, sizes in enumerate(SIZES * 2):
        check(KERNELS[name], dtype, seed, **sizes)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", [name for name, kernel in KERNELS.items() if uses_heads(kernel)])
def test_kernels_on_heads_are_within_the_error_model(name, dtype):
    for seed, sizes in enumerate(HEADS * 2):
        check(KERNELS[name], dtype, seed, pages=320, window=(0, 5, 1)[seed % 3], **sizes)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", ["rope-rope", "qk_norm_rope-qk_norm_rope"])
def test_heads_are_turned_in_part_where_rotary_dim_is_short(name, dtype):
    for seed in range(2):
        check(KERNELS[name], dtype, seed, head_dim=16, rotary_dim=6)


@pytest.mark.parametrize("name", ["rope-rope", "qk_norm_rope-qk_norm_rope"])
def test_long_inputs_are_turned_in_blocks(name):
    for seed in range(2):
        check(KERNELS[name], torch.bfloat16, seed, tokens=700, heads=6, kv_heads=2, head_dim=64)


@pytest.mark.parametrize("name", [name for name, kernel in KERNELS.items() if kernel.op not in ("sample", "argmax")])
def test_no_tokens_give_no_results(name):
    kernel = KERNELS[name]
    empty = {"tokens": 0, "rows": 0, "decode_rows": 0, "prefill_rows": 0}
    check(kernel, torch.float32, 0, **empty)


@pytest.mark.parametrize(("decode", "prefill"), [(4, 0), (0, 3), (1, 0), (0, 1)])
def test_attention_takes_steps_of_one_kind(decode, prefill):
    for seed in range(3):
        sizes = {"decode_rows": decode, "prefill_rows": prefill, "context_max": 30}
        check(GATHERED, torch.float32, seed, **sizes)


def test_attention_over_long_ragged_contexts():
    """Several buckets of decode rows, prefill in several blocks behind a cached prefix, with and without a window."""
    generator = torch.Generator().manual_seed(0)
    step = random_step(generator, 4, 1200, [900, 3, 880, 310, 20], [(700, 1500), (600, 600), (1, 5)])
    q = torch.randn(5 + 700 + 600 + 1, 2, 16, generator=generator)
    k, v = (torch.randn(1200, 4, 1, 16, generator=generator) for _ in range(2))
    for window in (None, 128, 1200):
        expected = paged_attention(q, k, v, step, 0.25, window)
        torch.testing.assert_close(called(GATHERED, q, k, v, step, 0.25, window), expected, rtol=1e-5, atol=1e-5)


def test_attention_reads_neighbouring_pages_in_place():
    generator = torch.Generator().manual_seed(0)
    k, v = (torch.randn(40, 2, 2, 16, generator=generator) for _ in range(2))
    scattered = random_step(generator, 2, 40, [], [(9, 64)])
    table = torch.arange(3, 35, dtype=torch.int32).unsqueeze(0)
    step = replace(scattered, groups=(Paged(table, scattered.paged(0).slots),))
    q = torch.randn(9, 4, 16, generator=generator)
    torch.testing.assert_close(called(GATHERED, q, k, v, step, 0.25), paged_attention(q, k, v, step, 0.25))
    args = (q, k, v, step, 0.25, None, 0)
    prepared = with_prepared(GATHERED, args, call_facts("paged_attention", args))[3]
    assert prepared.plan.prefills[0].keys.slots is None


def test_attention_and_writes_take_caches_whose_memory_is_in_another_order():
    k, v, k_cache, v_cache, step, group = random_case("kv_write", torch.float32, 0)
    heads_first = [cache.transpose(1, 2).contiguous().transpose(1, 2) for cache in (k_cache, v_cache)]
    for caches in ((k_cache, v_cache), heads_first):
        called(KERNELS["kv_write-kv_write"], k, v, *caches, step, group)
    assert all(torch.equal(*pair) for pair in zip(heads_first, (k_cache, v_cache), strict=True))
    q, k_cache, v_cache, *rest = random_case("paged_attention", torch.float32, 0)
    heads_first = [cache.transpose(1, 2).contiguous().transpose(1, 2) for cache in (k_cache, v_cache)]
    assert torch.equal(called(GATHERED, q, *heads_first, *rest), called(GATHERED, q, k_cache, v_cache, *rest))


def test_a_steps_own_embeddings_take_the_place_of_its_ids():
    step, weight = random_case("embedding", torch.bfloat16, 0)
    own = torch.randn(step.tokens, weight.shape[1], generator=torch.Generator().manual_seed(0))
    assert torch.equal(called(KERNELS["embedding-embedding"], replace(step, embeddings=own), weight), own.bfloat16())


@REPEATABLE
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("contexts", [(33, 20, 7, 64), (300, 512, 129, 511), (900, 100, 1500, 40)])
def test_a_decode_row_does_not_depend_on_its_mates(contexts, dtype):
    generator = torch.Generator().manual_seed(0)
    step = random_step(generator, 4, 700, contexts, [])
    k, v = (torch.randn(700, 4, 2, 64, generator=generator).to(dtype) for _ in range(2))
    q = torch.randn(len(contexts), 6, 64, generator=generator).to(dtype)
    together = called(GATHERED, q, k, v, step, 0.125)
    for row, context in enumerate(contexts):
        alone = row_step(step, row, context - 1, context)
        assert torch.equal(called(GATHERED, q[row : row + 1], k, v, alone, 0.125), together[row : row + 1])


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 1e-2)])
@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_gathered_attention_stays_close_however_a_prompt_is_cut(chunk, dtype, tolerance):
    """torch's kernel sums in blocks that depend on the cut; the native kernel promises the same bits."""
    length = 210
    generator = torch.Generator().manual_seed(0)
    step = random_step(generator, 4, 100, [], [(length, length)])
    k, v = (torch.randn(100, 4, 2, 64, generator=generator).to(dtype) for _ in range(2))
    q = torch.randn(length, 6, 64, generator=generator).to(dtype)
    whole = called(GATHERED, q, k, v, step, 0.125)
    for start in range(0, length, chunk):
        stop = min(start + chunk, length)
        part = row_step(step, 0, start, stop)
        got = called(GATHERED, q[start:stop], k, v, part, 0.125)
        torch.testing.assert_close(got, whole[start:stop], rtol=tolerance, atol=tolerance)


def test_threads_gather_into_memory_of_their_own():
    cases = [random_case("paged_attention", torch.float32, seed, context_max=300, pages=400) for seed in range(2)]
    steps = [with_prepared(GATHERED, case, call_facts("paged_attention", case)) for case in cases]
    alone = [GATHERED.function(*step) for step in steps]
    wrong = []
    start = threading.Barrier(len(steps), timeout=60)

    def work(step, expected):
        start.wait()
        wrong.extend(1 for _ in range(200) if not torch.equal(GATHERED.function(*step), expected))

    threads = [threading.Thread(target=work, args=pair) for pair in zip(steps, alone, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_decode_rows_are_grouped_by_length():
    assert bucketed([]) == []
    assert bucketed([100, 90, 10]) == [[0, 1, 2]]  # short rows are padded: another call costs more
    assert bucketed([10, 1000, 950, 2000]) == [[3], [1, 2], [0]]


@REPEATABLE
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(64, 48), (192, 64), (97, 65), (576, 192)])
def test_a_packed_products_row_does_not_depend_on_its_mates(shape, dtype):
    if dtype not in packed.usable_dtypes():
        pytest.skip(f"this processor has no packed {dtype} product")
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(40, shape[1], generator=generator).to(dtype)
    weight = packed.pack(torch.randn(shape, generator=generator).to(dtype))
    whole = packed.multiply(x, weight)
    for rows in (1, 2, 3, 7, 16, 33):
        assert torch.equal(packed.multiply(x[:rows], weight), whole[:rows])


def test_weights_are_packed_for_the_ops_that_ask_and_vectors_are_left():
    weight = torch.randn(32, 16)
    assert packed.prepare(weight, "linear").layout == "blocked"
    assert packed.prepare(weight, "linear").nbytes >= weight.nbytes
    assert packed.prepare(weight, "embedding") is None
    assert packed.prepare(weight[0], "linear") is None
    assert packed.prepare(weight.double(), "linear") is None


def test_weights_are_left_where_the_processor_has_no_packed_product(monkeypatch):
    monkeypatch.setattr(packed, "usable_dtypes", lambda: (torch.float32,))
    assert packed.prepare(torch.randn(32, 16), "linear") is not None
    assert packed.prepare(torch.randn(32, 16).half(), "linear") is None


def _settings(rows, generator, **fixed):
    """Sampling settings for some rows; each may be fixed."""

    def uniform(low, high):
        return torch.rand(rows, generator=generator) * (high - low) + low

    drawn = {
        "temperature": uniform(0.1, 1.2),
        "top_k": torch.randint(1, 2500, (rows,), generator=generator),
        "top_p": uniform(0.2, 1.0),
        "min_p": uniform(0.0, 0.1),
    }
    for name, value in fixed.items():
        drawn[name] = torch.full((rows,), value, dtype=drawn[name].dtype)
    return tuple(drawn.values())


OFF = {"top_k": 0, "top_p": 1.0, "min_p": 0.0}


@pytest.mark.parametrize("scale", [0.1, 4.0])
@pytest.mark.parametrize("kept", [(), ("top_k",), ("top_p",), ("min_p",), ("top_k", "top_p", "min_p")])
def test_sampling_from_candidates_gives_the_references_tokens(kept, scale):
    generator = torch.Generator().manual_seed(len(kept))
    rows, vocabulary = 24, 5000
    logits = torch.randn(rows, vocabulary, generator=generator) * scale
    settings = _settings(rows, generator, **{name: off for name, off in OFF.items() if name not in kept})
    uniform = torch.rand(rows, generator=generator, dtype=torch.float64)
    assert torch.equal(sampling.sample(logits, *settings, uniform), sample(logits, *settings, uniform))


def test_sampling_from_candidates_keeps_the_order_among_equals():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randint(0, 6, (16, 5000), generator=generator).float()
    logits[8:] = logits[8:].clamp(min=4)
    for fixed in (OFF, {**OFF, "top_k": 700}, {**OFF, "top_p": 0.4}):
        settings = _settings(16, generator, **fixed)
        uniform = torch.rand(16, generator=generator, dtype=torch.float64)
        assert torch.equal(sampling.sample(logits, *settings, uniform), sample(logits, *settings, uniform))


def test_the_largest_logit_with_the_lowest_id_is_greedy():
    logits = torch.randint(0, 50, (40, 3000), generator=torch.Generator().manual_seed(0)).float()
    assert torch.equal(sampling.argmax(logits), (logits == logits.amax(-1, keepdim=True)).int().argmax(-1))


def test_most_draws_from_peaked_logits_need_no_full_sort():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(32, 20_000, generator=generator) * 4
    uniform = torch.rand(32, generator=generator, dtype=torch.float64)
    settings = _settings(32, generator, **{**OFF, "top_p": 0.9, "temperature": 0.7})
    assert bool(sampling._from_candidates(sampling.CANDIDATES[1], logits, *settings, uniform)[1].all())
