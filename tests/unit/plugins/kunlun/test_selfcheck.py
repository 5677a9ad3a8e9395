"""The check of products: each shape once, wrong columns by number, nothing that rounding explains."""

import pytest
import torch

from anychip_kunlun.kernels.quantized import Int8Rows
from anychip_kunlun.selfcheck import TOKENS, LinearCheck
from anychip_sdk.errors import KernelMissing
from anychip_sdk.ops import linear_int8

WEIGHT = torch.randn(40, 16, generator=torch.Generator().manual_seed(1))


def right(x, weight):
    return torch.nn.functional.linear(x, weight)


def wrong_from(column, tokens=None):
    def product(x, weight):
        out = right(x, weight)
        if tokens in (None, len(x)):
            out[:, column:] = -out[:, column:]
        return out

    return product


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_a_rounded_product_passes(dtype):
    LinearCheck(right)("w", WEIGHT.to(dtype), "linear")


@pytest.mark.parametrize("tokens", [None, 1, 8])
def test_the_first_wrong_column_is_named_for_one_token_and_for_several(tokens):
    with pytest.raises(KernelMissing, match=r"linear: .* with w \[40, 16\] is wrong from column 33 on") as refused:
        LinearCheck(wrong_from(33, tokens))("w", WEIGHT.half(), "linear")
    assert refused.value.hint.endswith("[{op: linear, dtype: float16, compute_dtype: bfloat16}]")


LEVELS = torch.randint(-127, 128, (40, 64), generator=torch.Generator().manual_seed(2)).to(torch.int8)


def rounded_rows(x, weight):
    levels = torch.ones(len(weight), 1)
    return linear_int8(x, weight, levels, None, 0)


def test_a_product_of_integers_passes_with_its_rounded_activations():
    LinearCheck(rounded_rows)("w", LEVELS, "linear_int8")


def test_a_wrong_product_of_integers_is_left_to_the_reference():
    def wrong(x, weight):
        out = rounded_rows(x, weight)
        out[:, 33:] = -out[:, 33:]
        return out

    with pytest.raises(KernelMissing, match=r"linear_int8: the chip's int8 product .* is wrong from column 33") as told:
        LinearCheck(wrong)("w", LEVELS, "linear_int8")
    assert told.value.hint.endswith("[{op: linear_int8, ban: [kunlun]}]")


def test_int8_weights_are_checked_when_they_are_prepared(rig, monkeypatch):
    device = rig.open()
    assert rig.backend.prepare_weight("w", LEVELS, "linear_int8", device).value.dtype == torch.int8
    assert rig.machine.launches["matmul"] == len(TOKENS)
    monkeypatch.setattr(Int8Rows, "linear_int8", lambda self, x, weight, absmax: x @ -weight.T.to(x.dtype))
    with pytest.raises(KernelMissing, match="int8 product of 1 tokens with w"):
        rig.backend.prepare_weight("w", LEVELS[:39], "linear_int8", device)


def test_a_shape_is_checked_once_per_dtype():
    calls = []

    def counted(x, weight):
        calls.append(weight.dtype)
        return right(x, weight)

    check = LinearCheck(counted)
    for dtype in (torch.float16, torch.float16, torch.bfloat16):
        check("w", WEIGHT.to(dtype), "linear")
    assert calls == [torch.float16] * 2 + [torch.bfloat16] * 2


def test_weights_that_are_no_numbers_are_not_the_chips_fault():
    weight = WEIGHT.clone()
    weight[3] = torch.nan
    LinearCheck(right)("w", weight, "linear")
