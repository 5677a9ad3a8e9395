"""The experts' references against one MLP at a time, with integers and without."""

import pytest
import torch
from torch.nn import functional

from anychip_sdk.ops import ffn, gate_rows, linear_int4, linear_int8, moe_experts, moe_experts_int4, moe_experts_int8
from anychip_sdk.testing import check_kernel, random_case

F64 = torch.float64


def case(dtype=F64, seed=0, **changed):
    names = [arg.name for arg in moe_experts.args]
    given = dict(zip(names, random_case("moe_experts", dtype, seed), strict=True))
    return {**given, "activation": "silu", "on_input": False, "first": 0, **changed}


def one_expert(given, expert, rows):
    parts = (given[name][expert] for name in ("gate_up_weight", "gate_up_bias", "down_weight", "down_bias"))
    return ffn(rows, *parts)


def by_hand(given):
    """A row and a column at a time; ids are those of local experts."""
    out = []
    for x, ids, weights in zip(given["x"], given["ids"].tolist(), given["weights"].double(), strict=True):
        total = torch.zeros_like(x)
        for expert, weight in zip(ids, weights, strict=True):
            total = total + weight * one_expert(given, expert, x.unsqueeze(0))[0]
        out.append(total)
    return torch.stack(out)


def local(given):
    return {**given, "ids": given["ids"].clamp(min=0) % len(given["down_weight"])}


def test_a_row_is_the_weighted_sum_of_its_experts():
    given = local(case())
    torch.testing.assert_close(moe_experts(**given), by_hand(given), rtol=0, atol=1e-12)


def test_an_expert_may_be_asked_twice():
    given = local(case())
    given["ids"][:, 1] = given["ids"][:, 0]
    torch.testing.assert_close(moe_experts(**given), by_hand(given), rtol=0, atol=1e-12)


def test_weights_on_the_input_scale_what_goes_in():
    given = local(case(on_input=True, gate_up_bias=None, down_bias=None))
    out = torch.zeros_like(given["x"])
    for column in range(given["ids"].shape[1]):
        for row, expert in enumerate(given["ids"][:, column].tolist()):
            scaled = given["x"][row] * given["weights"][row, column].double()
            gate, up = (given["gate_up_weight"][expert] @ scaled).chunk(2)
            out[row] += given["down_weight"][expert] @ (functional.silu(gate) * up)
    torch.testing.assert_close(moe_experts(**given), out, rtol=0, atol=1e-12)


def test_the_clamped_activation_is_clamped_on_both_sides():
    """gate at most 7, up within -7 .. 7, (up + 1) * gate * sigmoid(1.702 gate); values lie beyond."""
    gate, up = torch.tensor([20.0, -20.0, 3.0, 9.0]), torch.tensor([0.5, 30.0, -30.0, 8.0])
    given = {
        "x": torch.ones(1, 1),
        "ids": torch.zeros(1, 1, dtype=torch.int32),
        "weights": torch.ones(1, 1),
        "gate_up_weight": torch.cat((gate, up)).view(1, 8, 1),
        "gate_up_bias": None,
        "down_weight": torch.eye(1, 4).view(1, 1, 4),
        "down_bias": None,
        "activation": "swiglu_clamped",
        "on_input": False,
        "first": 0,
    }
    expected = [1.5 * 7, 0.0, -6 * 3 * torch.sigmoid(torch.tensor(1.702 * 3)).item(), 8 * 7]
    for at, value in enumerate(expected):
        given["down_weight"] = torch.eye(4)[at].view(1, 1, 4)
        assert moe_experts(**given).item() == pytest.approx(value, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("op", ["moe_experts", "moe_experts_int8", "moe_experts_int4"])
def test_parts_of_the_experts_add_up_to_all(op, ranks):
    """Each rank holds its own experts and is told where they begin; what others hold adds exactly nothing."""
    of = {"moe_experts": moe_experts, "moe_experts_int8": moe_experts_int8, "moe_experts_int4": moe_experts_int4}[op]
    names = [arg.name for arg in of.args]
    given = dict(zip(names, random_case(op, F64, 3), strict=True)) | {"first": 0}
    given = local(given)
    experts = len(given["down_weight"]) // ranks
    total = torch.zeros_like(given["x"])
    for rank in range(ranks):
        mine = slice(rank * experts, (rank + 1) * experts)
        cut = {
            name: value[mine]
            for name, value in given.items()
            if name.startswith(("gate_up", "down")) and value is not None
        }
        total += of(**{**given, **cut, "first": rank * experts})
    torch.testing.assert_close(total, of(**given), rtol=0, atol=1e-12)


def test_ids_elsewhere_add_nothing_whatever_their_weight():
    given = local(case(torch.float32))
    given["weights"][0] = torch.nan
    given["ids"][0] = torch.tensor([-1, 99, 2**31 - 1])
    out = moe_experts(**given)
    assert torch.equal(out[0], torch.zeros_like(out[0]))
    assert out.isfinite().all()


def test_no_rows_are_legal():
    given = case(x=torch.zeros(0, 48), ids=torch.zeros(0, 3, dtype=torch.int32), weights=torch.zeros(0, 3))
    given = {name: value.float() if name.startswith(("gate", "down")) else value for name, value in given.items()}
    assert moe_experts(**given).shape == (0, 48)


def test_the_sum_over_columns_is_rounded_once():
    given = local(case(torch.bfloat16))
    wanted = moe_experts(**{name: value.double() if torch.is_tensor(value) and value.is_floating_point() else value
                            for name, value in given.items()})  # fmt: skip
    error = (moe_experts(**given).double() - wanted).abs().max() / wanted.abs().max()
    assert error < 2 * torch.finfo(torch.bfloat16).eps


@pytest.mark.parametrize(("op", "product"), [(moe_experts_int8, linear_int8), (moe_experts_int4, linear_int4)])
def test_integer_experts_are_two_integer_products_each(op, product):
    names = [arg.name for arg in op.args]
    given = dict(zip(names, random_case(op.name, F64, 5), strict=True)) | {
        "activation": "silu",
        "on_input": False,
        "first": 0,
    }
    given = local(given)
    out = torch.zeros_like(given["x"])
    block = {"block": given["block"]} if "block" in given else {}

    def parts(which, expert):
        names = [name for name in given if name.startswith(which)]
        return {name.removeprefix(which): None if given[name] is None else given[name][expert] for name in names}

    for row, column in torch.ones_like(given["ids"]).nonzero().tolist():
        expert = given["ids"][row, column].item()
        gate, up = product(given["x"][row], **parts("gate_up_", expert), **block).chunk(2)
        result = product(functional.silu(gate) * up, **parts("down_", expert), **block)
        out[row] += given["weights"][row, column].double() * result
    torch.testing.assert_close(op(**given), out, rtol=0, atol=1e-12)


@pytest.mark.parametrize("op", [moe_experts, moe_experts_int8, moe_experts_int4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_mistake_is_beyond_the_error_model(op, dtype):
    """A tolerance that a small output fits into would pass anything: bounds follow what was summed."""
    for broken in op.mistakes:
        found = [check_kernel(op, broken, random_case(op.name, dtype, seed), dtype) for seed in range(12)]
        assert any(not one.passed for one in found), broken.__doc__


def test_a_gate_opens_its_own_row():
    out = gate_rows(torch.full((3, 2), 4.0, dtype=F64), torch.tensor([[-1e9], [0.0], [1e9]], dtype=F64))
    assert out.tolist() == [[0.0, 0.0], [2.0, 2.0], [4.0, 4.0]]
