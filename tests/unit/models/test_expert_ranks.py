"""Ranks that hold parts of a mixture add up to the whole, each term once. Simulated in one process."""

import pytest
import torch

from anychip.models.expert_ranks import ExpertRanks
from anychip.models.source import Source
from anychip.weights.pieces import assembled
from anychip_sdk.ops import moe_experts, router_topk

F64 = torch.float64
EXPERTS, HIDDEN, INNER, TOKENS, K = 8, 12, 6, 11, 3


@pytest.fixture
def mixture():
    generator = torch.Generator().manual_seed(0)

    def matrix(*shape):
        return torch.randn(shape, generator=generator, dtype=F64) * 0.4

    return matrix


@pytest.mark.parametrize("slots", [0, 1, 2])
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_ranks_add_up_to_the_whole(mixture, ranks, slots):
    """N experts and a slot for each rank: a token's shared expert is computed by one rank, unscaled."""
    x, router, gate = mixture(TOKENS, HIDDEN), mixture(EXPERTS, HIDDEN), mixture(1, HIDDEN)
    gate_up = mixture(EXPERTS + slots, 2 * INNER, HIDDEN)
    down = mixture(EXPERTS + slots, HIDDEN, INNER)
    routing = ("sigmoid", 1, 1, "max", "sum", 0.0, 2.5)
    ids, weights = router_topk(x, router, None, None, K, *routing, gate, slots)
    whole = moe_experts(x, ids, weights, gate_up, None, down, None, "silu", False, 0)

    layout = ExpertRanks(EXPERTS, ranks, slots)
    physical = layout.physical(ids)
    assert physical.dtype == ids.dtype
    total, computed = torch.zeros_like(x), torch.zeros(TOKENS, K + slots, dtype=torch.int64)
    own = EXPERTS // ranks
    for rank in range(ranks):
        held = [*range(rank * own, (rank + 1) * own), *range(EXPERTS, EXPERTS + slots)]
        assert len(held) == layout.local
        first = layout.first(rank)
        total += moe_experts(x, physical, weights, gate_up[held], None, down[held], None, "silu", False, first)
        computed += (physical >= first) & (physical < first + layout.local)
    assert computed.eq(1).all()  # no column is lost, and none is computed twice
    torch.testing.assert_close(total, whole, rtol=0, atol=1e-12)


def test_slots_are_shared_out_by_token():
    layout = ExpertRanks(4, 2, 1)
    ids = torch.tensor([[0, 3, 4]] * 4, dtype=torch.int32)
    assert layout.physical(ids).tolist() == [[0, 4, 2], [0, 4, 5], [0, 4, 2], [0, 4, 5]]


def test_ids_that_nobody_has_stay_outside():
    layout = ExpertRanks(4, 2, 1)
    assert layout.physical(torch.tensor([[-1, 5, 99]])).tolist() == [[-1, -1, -1]]


def test_experts_that_ranks_do_not_divide_are_refused():
    with pytest.raises(ValueError, match="5 experts can't be shared out equally among 2 ranks"):
        ExpertRanks(5, 2)


def test_a_rank_reads_its_experts_and_every_slot():
    tensors = {f"e{number}": torch.full((2, 3), float(number)) for number in range(5)}
    sources = tuple(Source(name, (2, 3)) for name in tensors)
    for rank, wanted in ((0, [0, 1, 4]), (1, [2, 3, 4])):
        found = ExpertRanks(4, 2, 1).sources(sources, (5, 2, 3), rank)
        assert assembled(found, tensors).view(3, -1)[:, 0].tolist() == wanted
