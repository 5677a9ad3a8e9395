"""Matrix products with the model's weights. Knows row-major [out, in] weights; knows no packed layout."""

from __future__ import annotations

import torch

from anychip_sdk.ops.attention import STEP_ARG
from anychip_sdk.ops.base import EXACT, Arg, accumulated, accurate, op
from anychip_sdk.ops.cases import Args, Case
from anychip_sdk.ops.checks import Checks, Terms, plant_in_first_rows, plant_in_moved
from anychip_sdk.step import Step

WEIGHT = Arg("weight", ("out", "in"), weight=True)


def product_terms(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> list[Terms]:
    """Of x @ weight.T + bias."""
    sums = torch.nn.functional.linear(x.abs(), weight.abs(), None if bias is None else bias.abs())
    return [Terms(sums * max(1, x.shape[-1]) ** 0.5)]


def _embedding_case(case: Case) -> Args:
    return case.looked_up(), case.weight(case["vocab"], case["hidden"])


def _linear_case(case: Case) -> Args:
    x = case.floats(case["tokens"], case["hidden"])
    return x, case.weight(case["out"], case["hidden"]), case.vector(case["out"])


def _lm_head_case(case: Case) -> Args:
    return case.floats(case["rows"], case["hidden"]), case.weight(case["vocab"], case["hidden"])


def _select_rows_case(case: Case) -> Args:
    return case.two()[0], case.looked_up()


@op(
    STEP_ARG,
    Arg("weight", ("vocab", "hidden"), weight=True),
    returns=Arg("out", ("tokens", "hidden")),
    error=EXACT,
    checks=Checks(_embedding_case, plant_in_moved),
)
def embedding(step: Step, weight: torch.Tensor) -> torch.Tensor:
    """The table's rows of the step's ids, each in 0 .. vocab-1; the step's own embeddings where it brings some."""
    if step.embeddings is not None:
        return step.embeddings.to(weight.dtype)
    return weight.index_select(0, step.token_ids)


@op(
    Arg("x", ("...", "in")),
    WEIGHT,
    Arg("bias", ("out",), optional=True, weight=True),
    returns=Arg("out", ("...", "out")),
    error=accumulated("in"),
    checks=Checks(_linear_case, plant_in_first_rows, product_terms),
)
def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """x @ weight.T + bias, summed in at least float32."""
    if x.dtype in (torch.float32, torch.float64):
        return torch.nn.functional.linear(x, weight, bias)
    exact = accurate(x.dtype)
    wide_bias = None if bias is None else bias.to(exact)
    return torch.nn.functional.linear(x.to(exact), weight.to(exact), wide_bias).to(x.dtype)


@op(
    Arg("x", ("rows", "in")),
    WEIGHT,
    returns=Arg("logits", ("rows", "out"), "float32"),
    error=accumulated("in"),
    checks=Checks(_lm_head_case, plant_in_first_rows, product_terms),
)
def lm_head(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """x @ weight.T as float32 (float64 for float64), whatever the model's dtype: what sampling starts from.

    A kernel may round to the model's dtype on the way, the error model has room for that; logits nearer than a unit in
    the last place are then equal, and the lower id wins.
    """
    exact = accurate(x.dtype)
    return torch.nn.functional.linear(x.to(exact), weight.to(exact))


@op(
    Arg("x", ("tokens", "dim")),
    STEP_ARG,
    returns=Arg("out", ("logits", "dim")),
    error=EXACT,
    checks=Checks(_select_rows_case, plant_in_moved),
)
def select_rows(x: torch.Tensor, step: Step) -> torch.Tensor:
    """x[step.logit_rows]: the tokens whose logits are wanted."""
    return x.index_select(0, step.logit_rows)


__all__ = ["embedding", "linear", "lm_head", "product_terms", "select_rows"]
