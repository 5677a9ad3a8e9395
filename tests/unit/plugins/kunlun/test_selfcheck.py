"""The check of products: each shape once, wrong columns by number, nothing that rounding explains."""

import pytest
import torch

from anychip_kunlun.selfcheck import LinearCheck
from anychip_sdk.errors import KernelMissing

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
