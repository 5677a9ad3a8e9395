"""The CPU's latent attention in either form, against the float64 reference. Knows the SDK's test kit."""

import pytest
import torch

import anychip_cpu
from anychip_cpu.kernels import FLOATS
from anychip_cpu.kernels.latent import rows_of, split
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
