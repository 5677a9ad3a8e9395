"""Norms and activations of the imitated kunlun_ops."""

from __future__ import annotations

import pytest
import torch

from anychip_kunlun.stack import Stack

FAILED = r"Check 0 == ret failed, left operand=-?\d+, {op} failed \({why}"


def failed(op: str, why: str) -> str:
    return FAILED.format(op=op, why=why)


def random(*shape: int, dtype: torch.dtype = torch.bfloat16, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def exact_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    wide = x.double()
    return wide / (wide.pow(2).mean(-1, keepdim=True) + eps).sqrt() * weight.double()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_rmsnorm_is_rounded_once(host: Stack, dtype: torch.dtype) -> None:
    x, weight = random(5, 64, dtype=dtype), random(64, dtype=dtype, seed=1)
    output = torch.empty_like(x)
    host.load("kunlun_ops").rmsnorm(x, weight, output, 1e-6)
    torch.testing.assert_close(output, exact_norm(x, weight, 1e-6).to(dtype))


def test_the_older_rmsnorm_takes_out_and_a_float32_weight(open_host) -> None:
    ops = open_host(generation="torch251").load("kunlun_ops")
    x, weight, out = random(5, 64), random(64, dtype=torch.float32, seed=1), torch.empty(5, 64, dtype=torch.bfloat16)
    ops.rmsnorm(x, weight, 1e-6, out=out)
    torch.testing.assert_close(out, exact_norm(x, weight, 1e-6).bfloat16())
    with pytest.raises(ValueError, match=failed("rmsnorm", "weight is bfloat16, not float32")):
        ops.rmsnorm(x, weight.bfloat16(), out=out, eps=1e-6)


def test_the_newer_rmsnorm_takes_no_out_and_a_weight_of_xs_dtype(host: Stack) -> None:
    ops, x, output = host.load("kunlun_ops"), random(5, 64), torch.empty(5, 64, dtype=torch.bfloat16)
    with pytest.raises(TypeError, match="out"):
        ops.rmsnorm(x, random(64), out=output)
    with pytest.raises(ValueError, match=failed("rmsnorm", "weight is float32, not bfloat16")):
        ops.rmsnorm(x, random(64, dtype=torch.float32), output)


def test_rmsnorm_without_a_weight_only_norms(host: Stack) -> None:
    x = random(5, 4, 16)
    output = torch.empty_like(x)
    host.load("kunlun_ops").rmsnorm(x, None, output, 1e-6)
    torch.testing.assert_close(output, exact_norm(x, torch.ones(16), 1e-6).bfloat16())


def test_rmsnorm_refuses_strided_rows(host: Stack) -> None:
    x, output = random(5, 128)[:, :64], torch.empty(5, 64, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match=failed("rmsnorm", "x is not contiguous")):
        host.load("kunlun_ops").rmsnorm(x, random(64), output)


def test_add_rmsnorm_may_write_where_it_reads(host: Stack) -> None:
    x, y, weight = random(5, 64), random(5, 64, seed=1), random(64, seed=2)
    total = x + y
    wanted = exact_norm(total, weight, 1e-6).bfloat16()
    host.load("kunlun_ops").add_rmsnorm(x, y, residual_output=y, weight=weight, eps=1e-6, output=x)
    assert torch.equal(y, total)
    torch.testing.assert_close(x, wanted)


def test_add_rmsnorm_refuses_two_shapes(host: Stack) -> None:
    x = random(5, 64)
    with pytest.raises(ValueError, match=failed("add_rmsnorm", r"y is \(4, 64\), not \(5, 64\)")):
        host.load("kunlun_ops").add_rmsnorm(x, random(4, 64), weight=random(64), output=torch.empty_like(x))


def test_arguments_known_by_name_only_are_refused_by_name(host: Stack) -> None:
    x = random(5, 64)
    with pytest.raises(NotImplementedError, match="rmsnorm has no bias"):
        host.load("kunlun_ops").rmsnorm(x, random(64), torch.empty_like(x), bias=random(64))


def test_swiglu_takes_its_gate_from_the_first_half(host: Stack) -> None:
    x, y = random(5, 64), torch.empty(5, 32, dtype=torch.bfloat16)
    host.load("kunlun_ops").swiglu(x=x, y=y)
    gate, value = x.double().chunk(2, dim=-1)
    torch.testing.assert_close(y, (gate * gate.sigmoid() * value).bfloat16())


def test_a_turned_swiglu_takes_it_from_the_second(open_host) -> None:
    x, y = random(5, 64), torch.empty(5, 32, dtype=torch.bfloat16)
    open_host(turned_swiglu=True).load("kunlun_ops").swiglu(x=x, y=y)
    value, gate = x.double().chunk(2, dim=-1)
    torch.testing.assert_close(y, (gate * gate.sigmoid() * value).bfloat16())


def test_silu_and_mul_is_the_older_name(open_host) -> None:
    stack = open_host(generation="torch251")
    x, out, y = random(5, 64), torch.empty(5, 32, dtype=torch.bfloat16), torch.empty(5, 32, dtype=torch.bfloat16)
    stack.load("kunlun_ops").silu_and_mul(x, axis=-1, turn=True, out=out)
    stack.load("kunlun_ops").swiglu(x, y)
    assert torch.equal(out, y)


def test_swiglu_refuses_an_output_of_the_wrong_width(host: Stack) -> None:
    with pytest.raises(ValueError, match=failed("swiglu", r"y is \(5, 64\), not \(5, 32\)")):
        host.load("kunlun_ops").swiglu(random(5, 64), random(5, 64))


@pytest.mark.parametrize(
    ("op", "formula"),
    [
        ("gelu", lambda x: 0.5 * x * (1 + torch.erf(x / 2**0.5))),
        ("quick_gelu", lambda x: x / (1 + torch.exp(-1.702 * x))),
    ],
)
def test_gelus_are_their_formulas(host: Stack, op: str, formula) -> None:
    x, y = random(5, 64), torch.empty(5, 64, dtype=torch.bfloat16)
    getattr(host.load("kunlun_ops"), op)(x, out=y)
    torch.testing.assert_close(y, formula(x.double()).bfloat16())
