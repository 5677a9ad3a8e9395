"""The CPU's latent attention in either form, against the float64 reference. Knows the SDK's test kit."""

import pytest
import torch

import anychip_cpu
from anychip_cpu import host, native
from anychip_cpu.kernels import FLOATS
from anychip_cpu.kernels.attention import PagedAttention
from anychip_cpu.kernels.latent import LatentAttention, rows_of, split
from anychip_cpu.kernels.latent_native import NativeLatent
from anychip_sdk import load_backend
from anychip_sdk.ops import CATALOGUE
from anychip_sdk.registry import REFERENCE
from anychip_sdk.testing import check_kernel, random_case, random_step
from support.kernel_calls import call_facts, called

BACKEND = load_backend("cpu", anychip_cpu, distribution="anychip-cpu", version="0")
ATTENTION = [one for one in BACKEND.ops.kernels("latent_attention") if one.provider != REFERENCE]
#: of small models, of released ones, values wider than keys
SHAPES = [
    {"heads": 3, "rank": 16, "rope_dim": 16, "nope_dim": 8, "value_dim": 8, "page_size": 1, "pages": 300},
    {"heads": 2, "rank": 512, "rope_dim": 64, "nope_dim": 128, "value_dim": 128, "page_size": 16},
    {"heads": 20, "rank": 64, "rope_dim": 32, "nope_dim": 24, "value_dim": 70, "page_size": 3, "pages": 150},
]
EXPANDED, ABSORBED = 1, 1 << 20


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("expand_from", [EXPANDED, ABSORBED, 8])
@pytest.mark.parametrize("kernel", ATTENTION, ids=[kernel.name for kernel in ATTENTION])
def test_both_forms_are_within_the_error_model(kernel, expand_from, dtype):
    for seed, sizes in enumerate(SHAPES):
        args = random_case(kernel.op, dtype, seed, strided=seed % 2 == 1, expand_from=expand_from, **sizes)
        found = check_kernel(CATALOGUE[kernel.op], kernel, args, dtype, facts=call_facts(kernel.op, args))
        assert found.passed, (sizes, found)


@pytest.mark.parametrize(("heads", "rows"), [(16, 3), (64, 0)])
def test_tile_units_leave_the_library_decodes_of_few_heads(monkeypatch, heads, rows):
    library = native.library()
    if isinstance(library, native.Absent):
        pytest.skip("no native library")
    monkeypatch.setattr("anychip_cpu.host.instruction_sets", lambda: {"amx_bf16"})
    kernel = NativeLatent(library, LatentAttention(PagedAttention()))
    args = random_case("latent_attention", torch.bfloat16, 0, heads=heads, expand_from=ABSORBED)
    prepared = kernel.make(call_facts("latent_attention", args), {}, None)(args[3])
    assert (0 if prepared.absorbed is None else len(prepared.absorbed.tokens)) == rows
    out = kernel(*args[:3], prepared, *args[4:])
    expected = CATALOGUE["latent_attention"].reference(*args)
    torch.testing.assert_close(out, expected, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("dtype", FLOATS)
def test_a_row_has_the_same_bits_alone_and_in_company(dtype):
    """Where the library does all of it: decodes and short parts of prompts."""
    if isinstance(native.library(), native.Absent):
        pytest.skip("no native library")
    if dtype == torch.bfloat16 and "amx_bf16" in host.instruction_sets():
        pytest.skip("torch does a part of it on tile units")
    args = list(random_case("latent_attention", dtype, 3, heads=5, expand_from=ABSORBED, pages=200, context_max=90))
    step, together = args[3], called(ATTENTION[0], *args)
    starts = step.query_start.tolist()
    for row in range(step.rows):
        tokens, own = rows_of(step, [row], 0)
        assert tokens.tolist() == list(range(starts[row], starts[row + 1]))
        alone = called(ATTENTION[0], args[0][tokens], args[1][tokens], args[2], own, *args[4:])
        assert torch.equal(alone, together[tokens])


def test_long_contexts_are_expanded_some_heads_at_a_time(monkeypatch):
    monkeypatch.setattr("anychip_cpu.kernels.latent.EXPANDED_BYTES", 1 << 12)
    args = random_case("latent_attention", torch.float32, 0, heads=5, context_max=60, expand_from=EXPANDED)
    torch.testing.assert_close(called(ATTENTION[-1], *args), CATALOGUE["latent_attention"].reference(*args))


def test_rows_of_enough_query_tokens_are_expanded():
    step = random_step(torch.Generator().manual_seed(0), 4, 64, [9, 5], [(3, 3), (8, 20), (7, 7)])
    assert split(step, 8) == ([0, 1, 2, 4], [3])
    assert split(step, 100) == ([0, 1, 2, 3, 4], [])
    tokens, own = rows_of(step, [0, 1, 2, 4], 0)
    assert tokens.tolist() == [0, 1, 2, 3, 4, *range(13, 20)]
    assert (own.query_lens_host, own.context_lens_host, own.decode_rows) == ((1, 1, 3, 7), (9, 5, 3, 7), 2)
    assert torch.equal(own.paged(0).page_table, step.paged(0).page_table[[0, 1, 2, 4]])
    assert own.query_start.tolist() == [0, 1, 2, 5, 12]


@pytest.mark.parametrize("kernel", ATTENTION, ids=[kernel.name for kernel in ATTENTION])
def test_latents_may_lie_in_another_order_in_memory(kernel):
    args = list(random_case("latent_attention", torch.float32, 1))
    expected = called(kernel, *args)
    args[2] = args[2].transpose(0, 1).contiguous().transpose(0, 1)
    torch.testing.assert_close(called(kernel, *args), expected)
