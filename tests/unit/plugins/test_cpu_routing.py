"""The native router: error models, equal choices in company, ties. Knows the test kit; knows no graph."""

import pytest
import torch

from anychip_cpu import native
from anychip_cpu.kernels import routing
from anychip_sdk import CATALOGUE
from anychip_sdk.ops.routing_parts import ROUTINGS
from anychip_sdk.testing import check_kernel, random_case

LIBRARY = native.load()
pytestmark = pytest.mark.skipif(isinstance(LIBRARY, native.Absent), reason=f"native kernels: {LIBRARY}")
ROUTER = routing.Router(None if isinstance(LIBRARY, native.Absent) else LIBRARY)
OP = CATALOGUE[routing.OP]
SETS = ["portable", "avx2", "avx512", "avx512_bf16"]


def prepared(_name, tensor):
    return routing.prepare(tensor).value


def given(dtype=torch.bfloat16, seed=0, **sizes):
    """The arguments as the engine hands them over: weights prepared."""
    x, *weights = random_case(routing.OP, dtype, seed, **sizes)
    return [x, *(routing.prepare(one).value if isinstance(one, torch.Tensor) else one for one in weights)]


@pytest.mark.parametrize("instruction_set", SETS, indirect=True)
@pytest.mark.parametrize("dtype", list(native.DTYPES))
def test_every_way_of_routing_is_within_the_error_model(instruction_set, dtype):
    for number in range(len(ROUTINGS)):
        for sizes in ({"tokens": 5, "experts": 12, "top_k": 3}, {"tokens": 19, "experts": 64, "top_k": 8}):
            case = random_case(routing.OP, dtype, number, bias=number % 2 == 1, routing=number + 1, hidden=72, **sizes)
            found = check_kernel(OP, ROUTER, case, dtype, prepare=prepared)
            assert found.passed, (ROUTINGS[number], sizes, found)


def test_a_row_does_not_depend_on_its_mates():
    x, *rest = given(tokens=700, experts=64, top_k=8, hidden=64, routing=4)
    ids, weights = ROUTER(x, *rest)
    for rows in (slice(0, 1), slice(3, 60)):
        found = ROUTER(x[rows], *rest)
        assert torch.equal(found[0], ids[rows])
        assert torch.equal(found[1], weights[rows])


@pytest.mark.parametrize("way", ROUTINGS)
def test_among_equal_experts_the_first_are_chosen(way):
    weight = routing.prepare(torch.ones(12, 8)).value
    bias = routing.prepare(torch.full((12,), 7.0)).value if way.is_biased else None
    plain = (way.score, way.groups, way.top_groups, way.group_score, way.renormalise, way.floor, way.factor)
    ids, _ = ROUTER(torch.ones(2, 8), weight, None, bias, 4, *plain)
    assert ids.tolist() == [[0, 1, 2, 3]] * 2


@pytest.mark.parametrize("strange", [torch.nan, torch.inf])
def test_a_row_that_is_no_number_gets_ids_that_there_are_and_weights_that_are_none(strange):
    x, *rest = given(tokens=6, experts=12, top_k=3, routing=2)
    clean_ids, clean_weights = ROUTER(x, *rest)
    x = x.clone()
    x[2, 0] = strange
    ids, weights = ROUTER(x, *rest)
    assert ids[2, :3].tolist() == [0, 1, 2]
    assert weights[2, :3].isnan().all()
    others = [0, 1, 3, 4, 5]
    assert torch.equal(ids[others], clean_ids[others])
    assert torch.equal(weights[others], clean_weights[others])


def test_a_router_of_float32_beside_rows_of_bfloat16_is_not_rounded():
    generator = torch.Generator().manual_seed(0)
    weight, x = torch.randn(16, 64, generator=generator), torch.randn(4, 64, generator=generator).bfloat16()
    way = ("softmax", 1, 1, "max", "none", 0.0, 1.0)
    _, weights = ROUTER(x, routing.prepare(weight).value, None, None, 2, *way)
    expected = (x.double() @ weight.double().T).softmax(-1).topk(2).values
    torch.testing.assert_close(weights.double(), expected, rtol=1e-5, atol=0)


def test_shared_experts_come_behind_with_a_weight_of_their_own():
    generator = torch.Generator().manual_seed(0)
    weight, gate, x = (torch.randn(rows, 64, generator=generator) for rows in (8, 1, 3))
    way = (2, "softmax", 1, 1, "max", "sum", 0.0, 2.5)
    packed = routing.prepare(weight).value
    plain, gated = (
        ROUTER(x, packed, None, None, *way, None, 2),
        ROUTER(x, packed, None, None, *way, routing.prepare(gate).value, 2),
    )
    assert torch.equal(plain.ids, gated.ids)
    assert plain.ids[:, 2:].tolist() == [[8, 9]] * 3
    assert torch.equal(plain.weights[:, 2:], torch.ones(3, 2))
    torch.testing.assert_close(gated.weights[:, 2:], torch.sigmoid(x @ gate.T).expand(3, 2))
