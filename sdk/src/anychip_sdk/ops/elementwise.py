"""Activations, sums and caps, one element at a time. Knows no shape."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from anychip_sdk.ops.base import ROUNDED, Arg, accurate, cancelling, op, ulps
from anychip_sdk.ops.cases import Args, Case
from anychip_sdk.ops.checks import Checks, Terms

X = Arg("x", ("...", "dim"))
GATE = Arg("gate", ("...", "dim"), doc="may be a strided view of a wider tensor")
UP = Arg("up", ("...", "dim"), doc="may be a strided view of a wider tensor")
OUT = Arg("out", ("...", "dim"))
LOGITS = Arg("logits", ("rows", "vocab"), "float32")


def _one(case: Case) -> Args:
    return (case.floats(case["tokens"], case["hidden"]),)


def _scaled(case: Case) -> Args:
    return case.floats(case["tokens"], case["hidden"]), 0.2199


def _capped(case: Case) -> Args:
    return 20.0 * case.logits(), 30.0


def _halves(case: Case) -> Args:
    return case.halves(case["tokens"], case["inner"])


def _plant_pairs(args: list[Any], largest: float) -> None:
    """Every special value with every other, and sums and products that don't fit the dtype."""
    values = (torch.nan, torch.inf, -torch.inf, 0.0, -0.0, largest, -largest, 1.0)
    pairs = torch.tensor([(x, y) for x in values for y in values], dtype=torch.float64)
    for value, column in zip(args, pairs.unbind(1), strict=True):
        value.view(-1)[: len(column)] = column.to(value.dtype)


def _plant_in_activation(args: list[Any], largest: float) -> None:
    """-infinity is left out: 0 and not a number are both common answers."""
    args[0][0, :4] = torch.tensor((torch.nan, torch.inf, 100.0, -20.0), dtype=torch.float64).to(args[0].dtype)


def _plant_scaled(args: list[Any], largest: float) -> None:
    args[0].view(-1)[:5] = torch.tensor((torch.nan, torch.inf, -torch.inf, -0.0, largest), dtype=torch.float64)


def _cap_terms(logits: torch.Tensor, cap: float) -> list[Terms]:
    return [Terms(logits.abs().clamp(max=cap) + cap)]


def _gelu_terms(x: torch.Tensor) -> list[Terms]:
    return [Terms(x.abs())]


def _gated_terms(gate: torch.Tensor, up: torch.Tensor) -> list[Terms]:
    return [Terms(gate.abs() * up.abs())]


@op(X, Arg("y", ("...", "dim")), returns=OUT, error=ROUNDED, checks=Checks(Case.two, _plant_pairs))
def add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """x + y."""
    return x + y


@add.mistake
def _add_skips_the_tail(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Adds four numbers at a time; up to three at the end stay."""
    out, whole = x.clone(), x.shape[-1] // 4 * 4
    out[..., :whole] += y[..., :whole]
    return out


@op(X, Arg("y", ("...", "dim")), returns=OUT, error=ROUNDED, checks=Checks(Case.two, _plant_pairs))
def mul(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """x * y."""
    return x * y


@mul.mistake
def _mul_takes_magnitudes(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The second factor loses its sign."""
    return x * y.abs()


@op(X, Arg("factor", dtype="float"), returns=OUT, error=ROUNDED, checks=Checks(_scaled, _plant_scaled))
def scale(x: torch.Tensor, factor: float) -> torch.Tensor:
    """factor * x."""
    return (x.to(accurate(x.dtype)) * factor).to(x.dtype)


@scale.mistake
def _scale_rounds_its_factor(x: torch.Tensor, factor: float) -> torch.Tensor:
    """The factor has the digits of bfloat16."""
    return x * torch.tensor(factor).bfloat16().to(x.dtype)


@op(
    LOGITS,
    Arg("cap", dtype="float"),
    returns=LOGITS,
    error=cancelling(8),
    checks=Checks(_capped, _plant_scaled, _cap_terms),
)
def cap_logits(logits: torch.Tensor, cap: float) -> torch.Tensor:
    """cap * tanh(logits / cap): no logit is beyond the cap, and their order stays."""
    return cap * torch.tanh(logits / cap)


@cap_logits.mistake
def _cap_logits_cuts_them_off(logits: torch.Tensor, cap: float) -> torch.Tensor:
    """Logits within the cap stay as they are."""
    return logits.clamp(-cap, cap)


@op(X, returns=OUT, error=ulps(2), checks=Checks(_one, _plant_in_activation))
def silu(x: torch.Tensor) -> torch.Tensor:
    """x * sigmoid(x) (Elfwing et al., 2017)."""
    return functional.silu(x.to(accurate(x.dtype))).to(x.dtype)


@silu.mistake
def _silu_saturates_early(x: torch.Tensor) -> torch.Tensor:
    """From 3 on the result is the input."""
    return torch.where(x > 3, x, functional.silu(x))


@op(X, returns=OUT, error=cancelling(4), checks=Checks(_one, _plant_in_activation, _gelu_terms))
def gelu(x: torch.Tensor) -> torch.Tensor:
    """The tanh approximation of x * Phi(x) (Hendrycks and Gimpel, 2016)."""
    return functional.gelu(x.to(accurate(x.dtype)), approximate="tanh").to(x.dtype)


@gelu.mistake
def _gelu_is_the_other_one(x: torch.Tensor) -> torch.Tensor:
    """Phi is computed by erf, not by the tanh approximation."""
    return functional.gelu(x.float()).to(x.dtype)


@op(
    GATE,
    UP,
    returns=OUT,
    error=ulps(3),
    composed_of=("silu", "mul"),
    checks=Checks(_halves, _plant_in_activation),
)
def silu_mul(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up, rounded once."""
    exact = accurate(gate.dtype)
    return (functional.silu(gate.to(exact)) * up.to(exact)).to(gate.dtype)


@silu_mul.mistake
def _silu_mul_swaps_its_operands(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """The activation goes over up."""
    return (functional.silu(up.float()) * gate.float()).to(gate.dtype)


@op(
    GATE,
    UP,
    returns=OUT,
    error=cancelling(8),
    composed_of=("gelu", "mul"),
    checks=Checks(_halves, _plant_in_activation, _gated_terms),
)
def gelu_mul(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """gelu(gate) * up, rounded once."""
    exact = accurate(gate.dtype)
    return (functional.gelu(gate.to(exact), approximate="tanh") * up.to(exact)).to(gate.dtype)


@gelu_mul.mistake
def _gelu_mul_is_silu_mul(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """The activation is the other one."""
    return (functional.silu(gate.float()) * up.float()).to(gate.dtype)


@op(GATE, UP, returns=OUT, error=ulps(3), checks=Checks(_halves, _plant_in_activation))
def sigmoid_mul(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """sigmoid(gate) * up, rounded once: the gate of an output."""
    exact = accurate(gate.dtype)
    return (torch.sigmoid(gate.to(exact)) * up.to(exact)).to(gate.dtype)


@sigmoid_mul.mistake
def _sigmoid_mul_is_silu_mul(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """The gate is multiplied by its sigmoid too."""
    return (functional.silu(gate.float()) * up.float()).to(gate.dtype)


__all__ = ["add", "cap_logits", "gelu", "gelu_mul", "mul", "scale", "sigmoid_mul", "silu", "silu_mul"]
