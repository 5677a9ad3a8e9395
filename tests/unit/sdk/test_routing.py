"""The router's reference against each family's own formula, and its ties and rows that are not finite."""

import itertools

import pytest
import torch

from anychip_sdk.ops import router_topk
from anychip_sdk.ops.routing_parts import ROUTINGS, near_ties
from anychip_sdk.testing import random_case

F64 = torch.float64
EXPERTS, TOKENS, HIDDEN, K = 16, 40, 24, 3


def routed(
    logits, *, bias=None, top_k=K, score="softmax", groups=(1, 1, "max"), renormalise="none", floor=0.0, factor=1.0
):
    """The router on given logits: x is they, the weight the identity."""
    weight = torch.eye(logits.shape[1], dtype=logits.dtype)
    return router_topk(logits, weight, None, bias, top_k, score, *groups, renormalise, floor, factor)


@pytest.fixture
def logits():
    return torch.randn(TOKENS, EXPERTS, generator=torch.Generator().manual_seed(0), dtype=F64)


def best(scores, k=K):
    """By sorting in Python: falling score, rising id."""
    rows = [sorted(range(len(row)), key=lambda e: (-row[e], e))[:k] for row in scores.tolist()]
    return torch.tensor(rows, dtype=torch.int32)


def test_softmax_weights_are_probabilities(logits):
    ids, weights = routed(logits)
    assert torch.equal(ids, best(logits))
    chances = logits.exp() / logits.exp().sum(-1, keepdim=True)
    torch.testing.assert_close(weights, chances.gather(1, ids.long()))


def test_renormalised_softmax_is_the_softmax_of_the_chosen(logits):
    """Mixtral and Qwen3 renormalise probabilities, gpt-oss and Granite take the softmax of chosen logits: the same."""
    for one, other in itertools.pairwise((routed(logits, renormalise="sum"),
                                          routed(logits, score="logits", renormalise="softmax"))):  # fmt: skip
        assert torch.equal(one[0], other[0])
        torch.testing.assert_close(one[1], other[1])
        torch.testing.assert_close(one[1].sum(-1), torch.ones(TOKENS, dtype=F64))


def test_the_selection_bias_chooses_and_does_not_weigh(logits):
    """DeepSeek-V3: sigmoid, bias for the choice, weights without it, renormalised, times the factor."""
    bias = torch.linspace(-1, 1, EXPERTS, dtype=F64)
    ids, weights = routed(logits, bias=bias, score="sigmoid", renormalise="sum", floor=1e-20, factor=2.5)
    scores = 1 / (1 + (-logits).exp())
    assert torch.equal(ids, best(scores + bias))
    chosen = scores.gather(1, ids.long())
    torch.testing.assert_close(weights, 2.5 * chosen / chosen.sum(-1, keepdim=True))
    assert not torch.equal(ids, best(scores))


def test_a_sum_below_the_floor_is_replaced(logits):
    """Ernie 4.5: divided by the sum, at least moe_norm_min."""
    ids, weights = routed(logits, renormalise="max", floor=0.4)
    chosen = logits.softmax(-1).gather(1, ids.long())
    expected = chosen / torch.maximum(chosen.sum(-1, keepdim=True), torch.tensor(0.4, dtype=F64))
    torch.testing.assert_close(weights, expected)
    assert (chosen.sum(-1) < 0.4).any()
    assert (chosen.sum(-1) > 0.4).any()


@pytest.mark.parametrize(("group_score", "count"), [("max", 1), ("sum2", 2)])
def test_experts_come_from_the_best_groups(logits, group_score, count):
    ids, _ = routed(logits, groups=(4, 2, group_score), top_k=4)
    scores = logits.softmax(-1)
    by_group = torch.stack([part.topk(count).values.sum(-1) for part in scores.chunk(4, dim=-1)], dim=-1)
    allowed = best(by_group, 2)
    for row, (found, groups) in enumerate(zip(ids.tolist(), allowed.tolist(), strict=True)):
        members = [expert for group in groups for expert in range(4 * group, 4 * group + 4)]
        assert found == sorted(members, key=lambda e: -scores[row, e])[:4]


def test_the_two_ways_to_rate_groups_differ(logits):
    assert not torch.equal(routed(logits, groups=(4, 1, "max"))[0], routed(logits, groups=(4, 1, "sum2"))[0])


def test_among_equals_the_lower_id_comes_first():
    ids, weights = routed(torch.zeros(2, 8), renormalise="sum")
    assert ids.tolist() == [[0, 1, 2]] * 2
    torch.testing.assert_close(weights, torch.full((2, 3), 1 / 3))


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_a_row_that_is_not_finite_has_ids_and_no_weights(bad):
    logits = torch.randn(3, 8)
    x = torch.cat((logits, torch.zeros(3, 1)), dim=1)
    x[1, 8] = bad
    weight = torch.cat((torch.eye(8), torch.ones(8, 1)), dim=1)
    ids, weights = router_topk(x, weight, None, None, 2, "softmax", 1, 1, "max", "sum", 0.0, 1.0)
    assert ids[1].tolist() == [0, 1]
    assert weights[1].isnan().all()
    wanted = router_topk(x[::2], weight, None, None, 2, "softmax", 1, 1, "max", "sum", 0.0, 1.0)
    assert torch.equal(ids[::2], wanted[0])
    assert torch.equal(weights[::2], wanted[1])


def test_shared_experts_come_behind_the_chosen_and_are_reached_by_no_factor(logits):
    plain = routed(logits, renormalise="sum", factor=16.0)
    x, weight = logits, torch.eye(EXPERTS, dtype=F64)
    gate = torch.randn(1, EXPERTS, dtype=F64)
    for given, share in ((None, torch.ones(TOKENS, 1, dtype=F64)), (gate, torch.sigmoid(x @ gate.T))):
        ids, weights = router_topk(
            x, weight, None, None, K, "softmax", 1, 1, "max", "sum", 0.0, 16.0, shared_gate=given, shared=2
        )
        assert torch.equal(ids[:, :K], plain[0])
        assert torch.equal(weights[:, :K], plain[1])
        assert (ids[:, K:] == torch.tensor([EXPERTS, EXPERTS + 1])).all()
        torch.testing.assert_close(weights[:, K:], share.expand(-1, 2))


def test_no_rows_are_legal():
    ids, weights = routed(torch.zeros(0, 8))
    assert (ids.shape, ids.dtype, weights.dtype) == ((0, 3), torch.int32, torch.float32)


def test_weights_and_choice_are_float32_whatever_the_dtype():
    """Biases near 7, where bfloat16 steps by 0.03: kept in float32 they choose what float64 chooses."""
    x, weight, _, bias, *plain = random_case("router_topk", torch.bfloat16, 0, bias=False, routing=7, tokens=50)
    ids, weights = router_topk(x, weight, None, bias, *plain)
    wanted = router_topk(x.double(), weight.double(), None, bias.double(), *plain)
    assert weights.dtype == torch.float32
    assert torch.equal(ids, wanted[0])
    rounded = router_topk(x, weight, None, bias.bfloat16().float(), *plain)
    assert not torch.equal(ids, rounded[0])


@pytest.mark.parametrize("routing", range(1, len(ROUTINGS) + 1))
def test_cases_hang_on_no_rounding(routing):
    """So kernels may sum in any order, and ids can be compared one by one."""
    args = random_case("router_topk", torch.float32, routing, routing=routing, experts=32, tokens=64)
    assert not near_ties(*args).any()
    doubled = random_case("router_topk", torch.float32, routing, routing=routing, experts=32, tokens=64)[1]
    near = (args[0], torch.cat((doubled[:16], doubled[:16])), None, None, *args[4:])
    assert near_ties(*near).any()
