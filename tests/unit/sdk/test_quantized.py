"""The products with integer weights against sums written out in whole numbers. Knows no kernel."""

import pytest
import torch

from anychip_sdk import CATALOGUE
from anychip_sdk.ops import linear_int4, linear_int8, lm_head_int8
from anychip_sdk.ops.quantized import packed, rounded, unpacked
from anychip_sdk.testing import check_kernel, random_case

F64 = torch.float64


def sums_of_whole_numbers(x, weight, scale, size=32):
    """Exact products per block of `size`, in Python's own integers."""
    group = weight.shape[1] // scale.shape[1]
    rows = []
    for row in x.tolist():
        out = [0.0] * len(weight)
        for at in range(0, len(row), size):
            block = row[at : at + size]
            step = max(map(abs, block)) / 127
            levels = [round(value / step) for value in block]
            for o, numbers in enumerate(weight[:, at : at + size].tolist()):
                whole = sum(a * b for a, b in zip(levels, numbers, strict=True))
                out[o] += step * float(scale[o, at // group]) * whole
        rows.append(out)
    return torch.tensor(rows, dtype=F64)


@pytest.mark.parametrize("seed", range(4))
def test_int8_is_a_sum_of_whole_numbers_times_two_scales(seed):
    x, weight, scale, bias, _ = random_case("linear_int8", F64, seed, hidden=64)
    expected = sums_of_whole_numbers(x, weight, scale.double())
    torch.testing.assert_close(linear_int8(x, weight, scale, bias), expected + bias)
    torch.testing.assert_close(lm_head_int8(x, weight, scale), expected)


def test_a_block_of_zero_is_the_whole_row():
    case = random_case("linear_int8", F64, 3, hidden=70, block=0)
    x, weight, scale, bias, block = case
    assert (block, scale.shape[1]) == (0, 1)
    expected = sums_of_whole_numbers(x, weight, scale.double(), size=70)
    torch.testing.assert_close(linear_int8(*case), expected + bias)
    torch.testing.assert_close(lm_head_int8(x, weight, scale, block), expected)
    assert not torch.allclose(linear_int8(x, weight, scale, bias), expected + bias)


@pytest.mark.parametrize("op", ["linear_int8", "lm_head_int8"])
def test_the_error_model_tells_whole_rows_from_blocks(op):
    args = random_case(op, torch.float32, 4, hidden=96, block=0)
    reference = CATALOGUE[op].reference
    assert check_kernel(CATALOGUE[op], reference, args, torch.float32).passed
    assert not check_kernel(CATALOGUE[op], lambda *a: reference(*a[:-1], 32), args, torch.float32).passed


@pytest.mark.parametrize("hidden", [32, 128, 256])
def test_int4_without_a_minimum_counts_from_level_eight(hidden):
    x, weight, scale, _, _ = random_case("linear_int4", F64, 3, hidden=hidden, bias=False)
    expected = sums_of_whole_numbers(x, unpacked(weight).int() - 8, scale.double())
    torch.testing.assert_close(linear_int4(x, weight, scale), expected)


def test_int4_with_a_minimum_of_minus_eight_scales_is_the_same_as_without():
    x, weight, scale, _, bias = random_case("linear_int4", F64, 5, hidden=128)
    torch.testing.assert_close(
        linear_int4(x, weight, scale, -8 * scale, bias), linear_int4(x, weight, scale, None, bias)
    )


def test_a_pack_holds_the_first_sixteen_values_in_the_lower_halves():
    levels = torch.arange(32, dtype=torch.uint8).remainder(16).view(1, 32)
    levels[0, 16:] = levels[0, 16:].flip(0)
    bytes_ = packed(levels)
    assert bytes_.shape == (1, 16)
    assert bytes_[0, 3] == 3 | (12 << 4)
    assert torch.equal(unpacked(bytes_), levels)


def test_activations_between_two_levels_go_to_the_even_one():
    levels, scale = rounded(torch.tensor([[127.0, 0.5, 1.5, -2.5]]))
    assert levels.tolist() == [[127.0, 0.0, 2.0, -2.0]]
    assert scale.tolist() == [[1.0] * 4]


def test_every_32_neighbours_have_a_scale_of_their_own():
    x = torch.ones(1, 70)
    x[0, 40] = 1270.0
    levels, scale = rounded(x)
    assert scale.unique_consecutive().tolist() == pytest.approx([1 / 127, 10.0, 1 / 127])
    assert levels[0, [0, 32, 40, 69]].tolist() == [127.0, 0.0, 127.0, 127.0]


def test_blocks_that_are_next_to_nothing_count_as_zero():
    levels, scale = rounded(torch.tensor([[1e-35, -1e-36], [0.0, 0.0]]))
    assert not levels.any()
    assert not scale.any()


def test_a_number_that_is_none_spoils_its_own_row_only():
    x, weight, scale, *_ = random_case("linear_int8", torch.float32, 1)
    clean = linear_int8(x, weight, scale)
    x[0, 1], x[2, 0] = torch.nan, torch.inf
    out = linear_int8(x, weight, scale)
    assert out[[0, 2]].isnan().all()
    assert torch.equal(out[1], clean[1])


def rounded_down(x, weight, scale, bias=None, block=32):
    _, step = rounded(x)
    wide = (weight.float().unflatten(-1, (scale.shape[1], -1)) * scale.unsqueeze(-1)).flatten(-2)
    return torch.nn.functional.linear((x / step).floor() * step, wide, bias)


def test_the_error_model_refuses_activations_that_are_rounded_down():
    args = random_case("linear_int8", torch.float32, 2)
    assert not check_kernel(CATALOGUE["linear_int8"], rounded_down, args, torch.float32).passed


def other_side_of_ties(x, weight, scale, block=32):
    """Rounds as the reference does, but ties away from zero."""
    step = x.abs().amax(-1, keepdim=True) / 127
    ratio = x / step
    levels = ratio.sign() * (ratio.abs() + 0.5).floor()
    return torch.nn.functional.linear(levels, weight.float() * scale) * step


def test_the_error_model_lets_ties_go_either_way_and_nothing_else():
    x = torch.full((1, 8), 0.25)
    x[0, 0], x[0, 3] = 127.0, 2.5
    weight, scale = torch.full((4, 8), 100, dtype=torch.int8), torch.full((4, 1), 0.01)
    op = CATALOGUE["lm_head_int8"]
    found = check_kernel(op, other_side_of_ties, (x, weight, scale, 32), torch.float32)
    assert found.passed
    assert found.error == pytest.approx(1.0, rel=1e-4)
    x[0, 3] = 2.4  # now no value is near a tie, and a step is a mistake
    assert not check_kernel(op, lambda *a: other_side_of_ties(*a) + 1.0, (x, weight, scale, 32), torch.float32).passed
