"""Matrix products with the model's weights. Knows row-major [out, in] weights; knows no packed layout."""

from __future__ import annotations

import torch

from anychip_sdk.ops.base import EXACT, Arg, accumulated, accurate, op

WEIGHT = Arg("weight", "[out, in]", weight=True)


@op(
    Arg("token_ids", "[tokens]", "int64"),
    Arg("weight", "[vocab, hidden]", weight=True),
    returns=Arg("out", "[tokens, hidden]"),
    error=EXACT,
)
def embedding(token_ids: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Rows of the table; every id is in 0 .. vocab-1."""
    return weight.index_select(0, token_ids)


@op(
    Arg("x", "[..., in]"),
    WEIGHT,
    Arg("bias", "[out]", optional=True, weight=True),
    returns=Arg("out", "[..., out]"),
    error=accumulated("in"),
)
def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """x @ weight.T + bias, summed in at least float32."""
    if x.dtype in (torch.float32, torch.float64):
        return torch.nn.functional.linear(x, weight, bias)
    exact = accurate(x.dtype)
    wide_bias = None if bias is None else bias.to(exact)
    return torch.nn.functional.linear(x.to(exact), weight.to(exact), wide_bias).to(x.dtype)


@op(
    Arg("x", "[rows, in]"),
    WEIGHT,
    returns=Arg("logits", "[rows, out]", "float32"),
    error=accumulated("in"),
)
def lm_head(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """x @ weight.T as float32 (float64 for float64), whatever the model's dtype: what sampling starts from.

    A kernel may round to the model's dtype on the way, the error model has room for that; logits nearer than a unit in
    the last place are then equal, and the lower id wins.
    """
    exact = accurate(x.dtype)
    return torch.nn.functional.linear(x.to(exact), weight.to(exact))


@op(
    Arg("x", "[tokens, dim]"),
    Arg("rows", "[rows]", "int64"),
    returns=Arg("out", "[rows, dim]"),
    error=EXACT,
)
def select_rows(x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """x[rows]: the tokens whose logits are wanted."""
    return x.index_select(0, rows)
