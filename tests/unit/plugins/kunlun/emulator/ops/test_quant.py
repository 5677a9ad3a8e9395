"""int8 of the imitated kunlun_ops."""

from __future__ import annotations

import pytest
import torch

from anychip_kunlun.stack import Stack


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


def quantised(stack: Stack, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    y, absmax = torch.empty(x.shape, dtype=torch.int8), torch.empty(x.shape[0], 1)
    stack.load("kunlun_ops").quant2d(x=x, y=y, max=absmax, force_sdnn=True)
    return y, absmax


def test_quant2d_writes_the_absmax_not_a_scale(host: Stack) -> None:
    x = random(5, 64)
    y, absmax = quantised(host, x)
    assert torch.equal(absmax[:, 0], x.float().abs().amax(dim=1))
    assert y.abs().amax() == 127


def test_a_row_of_zeros_stays_zeros(host: Stack) -> None:
    y, absmax = quantised(host, torch.zeros(2, 8))
    assert not bool(y.any())
    assert not bool(absmax.any())


def test_dequantised_rows_are_within_half_a_step(host: Stack) -> None:
    x = random(5, 64)
    y, absmax = quantised(host, x)
    back = torch.empty(5, 64)
    host.load("kunlun_ops").dequant2d_per_token(y, absmax, back, is_absmax=True)
    assert bool(((back - x.float()).abs() <= absmax / 254 + 1e-6).all())


@pytest.mark.parametrize("columns", [1, 64])
def test_a_product_of_int8_is_exact_before_it_is_scaled(host: Stack, columns: int) -> None:
    x, w, bias = random(5, columns), random(48, columns, seed=1), random(48, seed=2)
    (x8, x_max), (w8, w_max) = quantised(host, x), quantised(host, w)
    out = torch.empty(5, 48, dtype=torch.bfloat16)
    host.load("kunlun_ops").matmul(x8, w8, out, bias=bias, x_pc_max=x_max, w_pc_max=w_max)
    sums = x8.double() @ w8.double().t()
    wanted = sums * (x_max.double() / 127) * (w_max.double().t() / 127) + bias.double()
    torch.testing.assert_close(out, wanted.bfloat16())


def test_a_product_of_floats_needs_no_absmax(host: Stack) -> None:
    x, w, out = random(5, 64), random(48, 64, seed=1), torch.empty(5, 48, dtype=torch.bfloat16)
    host.load("kunlun_ops").matmul(x=x, w=w, out=out)
    torch.testing.assert_close(out, (x.double() @ w.double().t()).bfloat16())


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"x_pc_max": None}, "int8 needs x_pc_max and w_pc_max"),
        ({"w_trans": False}, "only x times w transposed"),
        ({"out": torch.empty(5, 47, dtype=torch.bfloat16)}, "out is"),
        ({"w_pc_max": torch.ones(47)}, "w_pc_max is"),
        ({"w": torch.zeros(64, 48, dtype=torch.int8).t()}, "w is not contiguous"),
    ],
)
def test_matmul_refuses(host: Stack, change: dict[str, object], why: str) -> None:
    given = {
        "x": torch.zeros(5, 64, dtype=torch.int8),
        "w": torch.zeros(48, 64, dtype=torch.int8),
        "out": torch.empty(5, 48, dtype=torch.bfloat16),
        "x_pc_max": torch.ones(5, 1),
        "w_pc_max": torch.ones(48),
    }
    with pytest.raises(ValueError, match=f"matmul failed .{why}"):
        host.load("kunlun_ops").matmul(**{**given, **change})


def test_quant2d_refuses_a_max_of_the_wrong_length(host: Stack) -> None:
    with pytest.raises(ValueError, match=r"quant2d failed .max is \(4,\), there are 5 rows"):
        host.load("kunlun_ops").quant2d(random(5, 8), torch.empty(5, 8, dtype=torch.int8), torch.empty(4))
