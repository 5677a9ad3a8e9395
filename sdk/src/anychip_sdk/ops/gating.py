"""Rows times a gate of their own. Knows no shape but theirs."""

from __future__ import annotations

import torch

from anychip_sdk.ops.base import Arg, accurate, op, ulps
from anychip_sdk.ops.cases import Args, Case
from anychip_sdk.ops.checks import Checks, plant_not_a_number


def _rows_case(case: Case) -> Args:
    return case.floats(case["tokens"], case["hidden"]), case.floats(case["tokens"], 1, scale=2.0)


@op(
    Arg("x", ("tokens", "dim")),
    Arg("logits", ("tokens", "1"), doc="one a row"),
    returns=Arg("out", ("tokens", "dim")),
    error=ulps(3),
    checks=Checks(_rows_case, plant_not_a_number),
)
def gate_rows(x: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    """x * sigmoid(logits), rounded once: each row as far as its gate is open."""
    exact = accurate(x.dtype)
    return (x.to(exact) * torch.sigmoid(logits.to(exact))).to(x.dtype)


@gate_rows.mistake
def _gate_rows_has_no_sigmoid(x: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    """Rows are multiplied with the logits themselves."""
    return (x.float() * logits.float()).to(x.dtype)


__all__ = ["gate_rows"]
