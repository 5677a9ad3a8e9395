"""The native attention against the float64 reference, bit for bit among its own calls. Knows the SDK's test kit."""

import shutil
from pathlib import Path

import pytest
import torch

from anychip_cpu import native, native_build
from anychip_cpu.kernels import _needs
from anychip_cpu.kernels.attention import NativeAttention, PagedAttention
from anychip_sdk import CATALOGUE
from anychip_sdk.ops import paged_attention
from anychip_sdk.testing import check_kernel, random_case
from anychip_sdk.testing import random_step as scattered_step
from support.kernel_calls import alone as called_alone
from support.kernel_calls import row_step as rows_of

LIBRARY = native.load()
BUILT = pytest.mark.skipif(isinstance(LIBRARY, native.Absent), reason=f"native kernels: {LIBRARY}")
SETS = ("portable", "avx2", "avx512", "avx512_bf16")
SHAPES = [
    {"heads": 2, "kv_heads": 2, "head_dim": 16, "page_size": 1},
    {"heads": 4, "kv_heads": 2, "head_dim": 48, "page_size": 3},
    {"heads": 9, "kv_heads": 3, "head_dim": 64, "page_size": 16},
    {"heads": 8, "kv_heads": 1, "head_dim": 80, "page_size": 128, "pages": 8},
    {"heads": 2, "kv_heads": 1, "head_dim": 256, "page_size": 1},
    {"heads": 70, "kv_heads": 1, "head_dim": 16, "page_size": 4},
    {"heads": 20, "kv_heads": 4, "head_dim": 32, "page_size": 16},
    {"heads": 24, "kv_heads": 2, "head_dim": 32, "page_size": 16},
]


def attend(q, k, v, step, scale, window=None, group=0, soft_cap=None, sinks=None):
    """All rows natively."""
    heads = native.Heads(q.dtype, q.shape[1], *k.shape[2:])
    call = native.AttentionCall(LIBRARY, step, group, heads, step.rows)
    out = torch.full(q.shape, torch.nan, dtype=q.dtype)
    call(out, q, k, v, native.Scores(scale, window, soft_cap, None if sinks is None else sinks.float()))
    return out


def random_step(dtype, page_size, decode, prefill, heads=6, kv_heads=2, head_dim=64):
    generator = torch.Generator().manual_seed(0)
    contexts = [*decode, *(context for _, context in prefill)]
    pages = sum(-(-context // page_size) for context in contexts) + 3
    rows = scattered_step(generator, page_size, pages, decode, prefill)
    tokens = len(decode) + sum(length for length, _ in prefill)
    shape = (pages, page_size, kv_heads, head_dim)
    k, v = (torch.randn(shape, generator=generator).to(dtype) for _ in range(2))
    return torch.randn(tokens, heads, head_dim, generator=generator).to(dtype), k, v, rows


@BUILT
@pytest.mark.parametrize("instruction_set", SETS, indirect=True)
@pytest.mark.parametrize("dtype", list(native.DTYPES))
def test_attention_is_within_the_error_model(instruction_set, dtype):
    for seed, shape in enumerate(SHAPES):
        for window in (0, 7):
            sizes = {"pages": 320, "decode_rows": 2, **shape, "window": window}
            args = random_case("paged_attention", dtype, seed, strided=seed % 2 == 1, **sizes)
            found = check_kernel(CATALOGUE["paged_attention"], attend, args, dtype)
            assert found.passed, (shape, window, found)


@BUILT
@pytest.mark.parametrize("instruction_set", SETS, indirect=True)
@pytest.mark.parametrize("dtype", list(native.DTYPES))
def test_capped_scores_and_sinks_are_within_the_error_model(instruction_set, dtype):
    for seed, shape in enumerate(SHAPES):
        for scores in ({"soft_cap": 2}, {"sinks": 1}, {"soft_cap": 50, "sinks": 1, "window": 7}):
            sizes = {"pages": 320, "decode_rows": 2, **shape, **scores}
            args = random_case("paged_attention", dtype, seed, strided=seed % 2 == 1, **sizes)
            found = check_kernel(CATALOGUE["paged_attention"], attend, args, dtype)
            assert found.passed, (shape, scores, found)


@BUILT
@pytest.mark.parametrize("instruction_set", SETS, indirect=True)
def test_long_rows_with_caps_and_sinks_equal_the_reference(instruction_set):
    step = random_step(torch.float32, 16, [700, 3, 256, 257], [(130, 600), (90, 90)], head_dim=32)
    sinks = torch.tensor([-300.0, -2.0, 0.0, 3.0, 40.0, 500.0])  # from none at all to nothing else
    args = (*step, 0.25, 300, 0, 1.5, sinks)
    torch.testing.assert_close(attend(*args), paged_attention(*args), rtol=1e-5, atol=1e-5)


@BUILT
@pytest.mark.parametrize("instruction_set", SETS, indirect=True)
@pytest.mark.parametrize("window", [None, 1, 100, 300])
def test_long_ragged_rows_equal_the_reference(instruction_set, window):
    step = random_step(torch.float32, 16, [700, 3, 256, 257], [(130, 600), (90, 90)], head_dim=32)
    torch.testing.assert_close(attend(*step, 0.25, window), paged_attention(*step, 0.25, window), rtol=1e-5, atol=1e-5)


@BUILT
@pytest.mark.parametrize("instruction_set", SETS, indirect=True)
@pytest.mark.parametrize("dtype", list(native.DTYPES))
def test_a_row_does_not_depend_on_its_mates_or_the_threads(instruction_set, dtype):
    q, k, v, rows = random_step(dtype, 3, [33, 300, 900, 64], [(70, 400), (5, 5)])
    together = attend(q, k, v, rows, 0.125)
    torch.set_num_threads(2)
    try:
        assert torch.equal(attend(q, k, v, rows, 0.125), together)
    finally:
        torch.set_num_threads(1)
    start = 0
    for row, (length, context) in enumerate(zip(rows.query_lens_host, rows.context_lens_host, strict=True)):
        alone = attend(q[start : start + length], k, v, rows_of(rows, row, context - length, context), 0.125)
        assert torch.equal(alone, together[start : start + length])
        start += length


@BUILT
@pytest.mark.parametrize("instruction_set", SETS, indirect=True)
@pytest.mark.parametrize("window", [None, 40, 600])
@pytest.mark.parametrize(
    ("page_size", "heads", "kv_heads"), [(3, 6, 2), (300, 6, 2), (16, 3, 3), (16, 4, 2), (16, 9, 1)]
)
def test_rows_that_begin_with_the_same_pages_get_what_each_gets_alone(
    instruction_set, window, page_size, heads, kv_heads
):
    """Some share a whole span, some a part of one, some nothing; more than are worked on together."""
    for dtype in (torch.bfloat16, torch.float32):
        shared = [900, 512, 512, 300, 0, 900, 255, 256, 770, 900, 900, 512]
        contexts = [shared[0], *(tokens + 10 * (row % 4 + 1) for row, tokens in enumerate(shared[1:]))]
        q, k, v, rows = random_step(dtype, page_size, contexts, [(5, 40)], heads, kv_heads, head_dim=32)
        for row, tokens in enumerate(shared):
            same = tokens // page_size
            rows.paged(0).page_table[row, :same] = rows.paged(0).page_table[0, :same]
        for threads in (1, 2):
            torch.set_num_threads(threads)
            try:
                together = attend(q, k, v, rows, 0.125, window)
            finally:
                torch.set_num_threads(1)
            for row, context in enumerate(contexts):
                alone = attend(q[row : row + 1], k, v, rows_of(rows, row, context - 1, context), 0.125, window)
                assert torch.equal(alone, together[row : row + 1]), (row, threads)


@BUILT
@pytest.mark.parametrize("instruction_set", SETS, indirect=True)
@pytest.mark.parametrize("window", [None, 40])
@pytest.mark.parametrize("dtype", list(native.DTYPES))
def test_a_query_does_not_depend_on_how_its_prompt_is_cut(instruction_set, dtype, window):
    q, k, v, rows = random_step(dtype, 4, [], [(330, 330)], heads=4)
    whole = attend(q, k, v, rows, 0.125, window)
    for chunk in (1, 7, 64):
        for start in [0, 252, 322] if chunk == 7 else range(0, 330, 64):
            stop = min(start + chunk, 330)
            part = attend(q[start:stop], k, v, rows_of(rows, 0, start, stop), 0.125, window)
            assert torch.equal(part, whole[start:stop]), (chunk, start)


@BUILT
@pytest.mark.parametrize("instruction_set", SETS, indirect=True)
@pytest.mark.parametrize("readers", [1, 2, 3, 4, 5, 6, 7, 8, 12, 20])
def test_a_token_gets_the_same_alone_and_with_others_however_many_heads_share_keys(instruction_set, readers):
    for dtype in (torch.bfloat16, torch.float32):
        q, k, v, rows = random_step(dtype, 16, [], [(20, 150)], heads=7 * readers, kv_heads=7, head_dim=48)
        whole = attend(q, k, v, rows, 0.125)
        for token in (0, 19):
            alone = attend(q[token : token + 1], k, v, rows_of(rows, 0, 130 + token, 131 + token), 0.125)
            assert torch.equal(alone, whole[token : token + 1]), token


@BUILT
@pytest.mark.parametrize("instruction_set", SETS, indirect=True)
def test_what_no_query_sees_is_not_read(instruction_set):
    q, k, v, rows = random_step(torch.bfloat16, 4, [70, 9], [(5, 11)])
    expected = attend(q, k, v, rows, 0.125, 20)
    seen = torch.zeros(k.shape[0] * 4, dtype=torch.bool)
    for row, (length, context) in enumerate(zip(rows.query_lens_host, rows.context_lens_host, strict=True)):
        for p in range(max(0, context - length - 19), context):
            seen[int(rows.paged(0).page_table[row, p // 4]) * 4 + p % 4] = True
    for cache in (k, v):
        cache.view(-1, 2, 64)[~seen] = torch.nan
    assert torch.equal(attend(q, k, v, rows, 0.125, 20), expected)


@BUILT
@pytest.mark.parametrize("instruction_set", SETS, indirect=True)
def test_not_a_number_in_a_query_stays_with_its_head(instruction_set):
    q, k, v, rows = random_step(torch.float32, 4, [40, 41], [(6, 30)])
    clean = attend(q, k, v, rows, 0.125)
    q[1, 2] = torch.nan
    out = attend(q, k, v, rows, 0.125)
    assert bool(out[1, 2].isnan().all())
    out[1, 2] = clean[1, 2]
    assert torch.equal(out, clean)


@BUILT
@pytest.mark.parametrize("instruction_set", SETS, indirect=True)
def test_large_scores_do_not_overflow(instruction_set):
    q, k, v, rows = random_step(torch.float32, 4, [300], [(6, 30)])
    step = (q * 300, k, v, rows)
    torch.testing.assert_close(attend(*step, 1.0), paged_attention(*step, 1.0), rtol=1e-3, atol=1e-3)


@BUILT
def test_strided_queries_and_caches_are_read_in_place():
    q, k, v, rows = random_step(torch.bfloat16, 4, [70, 9], [(5, 11)])
    wide = torch.cat((q, q), dim=1)
    both = torch.stack((k, v), dim=1)
    out = attend(wide[:, :6], both[:, 0], both[:, 1], rows, 0.125)
    assert torch.equal(out, attend(q, k, v, rows, 0.125))


@BUILT
def test_caches_of_unlike_strides_are_left_to_torch():
    q, k, v, rows = random_step(torch.float32, 4, [30, 9], [(4, 9)])
    strided = torch.stack((v, v), dim=1)[:, 0]
    out = called_alone("paged_attention", NativeAttention(LIBRARY, PagedAttention()), q, k, strided, rows, 0.2)
    torch.testing.assert_close(out, paged_attention(q, k, v, rows, 0.2))


@BUILT
def test_each_group_of_states_has_pages_of_its_own():
    generator = torch.Generator().manual_seed(0)
    rows = scattered_step(generator, 4, 64, [30, 9], [(4, 9)], groups=2)
    q = torch.randn(6, 4, 32, generator=generator)
    k, v = (torch.randn(64, 4, 2, 32, generator=generator) for _ in range(2))
    for group in (0, 1):
        expected = paged_attention(q, k, v, rows, 0.2, None, group)
        out = called_alone(
            "paged_attention", NativeAttention(LIBRARY, PagedAttention()), q, k, v, rows, 0.2, None, group
        )
        torch.testing.assert_close(out, expected)


@BUILT
def test_a_step_without_rows_gives_nothing():
    q, k, v, rows = random_step(torch.float32, 4, [], [])
    assert attend(q, k, v, rows, 1.0).shape == (0, 6, 64)


def test_only_one_openmp_runtime_is_loaded():
    maps = Path("/proc/self/maps")
    if not maps.exists():
        pytest.skip("no /proc here")
    paths = {line.split()[-1] for line in maps.read_text().splitlines() if line.count("/")}
    assert sum(any(name in Path(path).name for name in ("libgomp", "libomp", "libiomp")) for path in paths) <= 1


@BUILT
@pytest.mark.parametrize("is_tiled", [False, True])
def test_prefill_goes_to_torch_where_it_has_tiles(is_tiled):
    kernel = NativeAttention(LIBRARY, PagedAttention())
    kernel._has_tiles = is_tiled
    q, k, v, rows = random_step(torch.bfloat16, 4, [70, 9], [(40, 90)])
    out = called_alone("paged_attention", kernel, q, k, v, rows, 0.125)
    whole = attend(q, k, v, rows, 0.125)
    assert torch.equal(out[:2], whole[:2])
    assert torch.equal(out[2:], whole[2:]) != is_tiled
    torch.testing.assert_close(out, whole, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("library", [None, LIBRARY], ids=["no library", "library"])
def test_what_the_library_cannot_do_is_left_to_torch(library):
    kernel = NativeAttention(None if isinstance(library, native.Absent) else library, PagedAttention())
    step = random_step(torch.float32, 4, [30, 9], [(4, 9)], head_dim=24)
    torch.testing.assert_close(called_alone("paged_attention", kernel, *step, 0.2), paged_attention(*step, 0.2))
    q, k, v, rows = random_step(torch.float32, 4, [30, 9], [(4, 9)])
    mixed = called_alone("paged_attention", kernel, q, k.bfloat16(), v.bfloat16(), rows, 0.2)
    torch.testing.assert_close(mixed, paged_attention(q, k.bfloat16(), v.bfloat16(), rows, 0.2))


@BUILT
def test_a_library_of_other_sources_is_not_used(tmp_path):
    sources = tmp_path / "native"
    sources.mkdir()
    (sources / "kernel.cpp").write_text("// other")
    assert "out of date" in str(native.load(native.LIBRARY, sources))
    assert isinstance(native.load(native.LIBRARY, tmp_path / "absent"), native.Library)


def test_a_missing_or_foreign_library_is_not_used(tmp_path):
    assert "not built" in str(native.load(tmp_path / "absent.so"))
    (tmp_path / "text.so").write_text("no library")
    assert "not usable" in str(native.load(tmp_path / "text.so"))


def test_the_reason_why_there_is_no_library_is_shown():
    (need,) = _needs(native.Absent("not built (no compiler)")).values()
    assert not need.test(None)
    assert "not built (no compiler)" in need.text


def test_without_a_compiler_nothing_is_built(tmp_path, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(native_build.CannotBuildError, match="no-such-compiler not found"):
        native_build.build(tmp_path / "library.so")
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(not native_build.SOURCES.is_dir(), reason="an installed package has no sources")
@pytest.mark.skipif(shutil.which("false") is None, reason="needs a command that fails")
def test_a_compiler_that_fails_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("CXX", "false")
    with pytest.raises(native_build.CannotBuildError, match="false failed"):
        native_build.build(tmp_path / "library.so")
