"""From logits to tokens, row by row: no row depends on its batch mates. Knows logits; knows no request."""

from __future__ import annotations

from typing import Any

import torch

from anychip_sdk.ops.base import EXACT, ROUNDED, Arg, cancelling, op
from anychip_sdk.ops.cases import Args, Case
from anychip_sdk.ops.checks import Checks, Terms

LOGITS = Arg("logits", ("rows", "vocab"), "float32")
LOGITS_IN_PLACE = Arg("logits", ("rows", "vocab"), "float32", mutated=True)
IDS = Arg("token_ids", ("rows",), "int64")


def _ban(args: list[Any], largest: float) -> None:
    args[0][:, ::2] = -torch.inf


def _argmax_case(case: Case) -> Args:
    return (case.logits(),)


@op(LOGITS, returns=IDS, error=EXACT, checks=Checks(_argmax_case, _ban))
def argmax(logits: torch.Tensor) -> torch.Tensor:
    """The largest logit of each row; the lowest id among equals. A NaN counts as the largest of all."""
    return logits.argmax(dim=-1)


def _sample_case(case: Case) -> Args:
    rows = case["rows"]
    off = torch.arange(rows)
    return (
        case.logits(),
        case.uniform(rows, low=0.2, high=1.5, dtype=torch.float32),
        case.integers(rows, below=case["vocab"]) * (off % 2),
        torch.where(off % 3 == 0, 1.0, case.uniform(rows, low=0.3, high=1.0, dtype=torch.float32)),
        torch.where(off % 4 == 0, 0.0, case.uniform(rows, low=0.0, high=0.2, dtype=torch.float32)),
        case.uniform(rows, low=0.0, high=1.0, dtype=torch.float64),
    )


@op(
    LOGITS,
    Arg("temperature", ("rows",), "float32", doc="above 0"),
    Arg("top_k", ("rows",), "int64", doc="0: off"),
    Arg("top_p", ("rows",), "float32", doc="in (0, 1]; 1: off"),
    Arg("min_p", ("rows",), "float32", doc="in [0, 1); 0: off"),
    Arg("uniform", ("rows",), "float64", doc="in [0, 1): the row's random number"),
    returns=IDS,
    error=EXACT,
    checks=Checks(_sample_case, _ban),
)
def sample(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    min_p: torch.Tensor,
    uniform: torch.Tensor,
) -> torch.Tensor:
    """Draw by inverting the distribution function at `uniform`, tokens in order of falling probability.

    Order of the filters: temperature, top-k, top-p (the smallest set that reaches p, Holtzman et al., 2019),
    min-p (at least min_p times the largest probability). The first token always stays.

    A row with a NaN, with +inf or with nothing above -inf gets any id: it must neither raise nor disturb another row.
    """
    scaled = logits.double() / temperature.double().unsqueeze(1)
    ordered, ids = scaled.sort(dim=-1, descending=True, stable=True)
    rank = torch.arange(ordered.shape[1], device=logits.device)
    limit = torch.where(top_k > 0, top_k, ordered.shape[1]).unsqueeze(1)
    probabilities = ordered.masked_fill(rank >= limit, float("-inf")).softmax(dim=-1)
    before = probabilities.cumsum(dim=-1) - probabilities
    dropped = (before >= top_p.double().unsqueeze(1)) & (top_p < 1).unsqueeze(1)
    dropped |= probabilities < min_p.double().unsqueeze(1) * probabilities[:, :1]
    dropped[:, 0] = False
    kept = probabilities.masked_fill(dropped, 0.0)
    cumulated = kept.cumsum(dim=-1)
    target = uniform.double().unsqueeze(1) * cumulated[:, -1:]
    # the count of tokens whose cumulated mass is at most the target; rounding can't reach past the last kept one
    index = torch.minimum((cumulated <= target).sum(dim=-1), (kept > 0).sum(dim=-1) - 1).clamp(min=0)
    return ids.gather(1, index.unsqueeze(1)).squeeze(1)


def _penalties_case(case: Case) -> Args:
    chosen = (case["rows"] + 1) // 2
    ids = [case.integers(chosen, length, below=case["vocab"] + 1) - 1 for length in (7, 11)]
    strengths = [case.uniform(chosen, low=low, high=2.0, dtype=torch.float32) for low in (0.5, -2.0, -2.0)]
    return case.logits(), case.distinct(chosen, case["rows"]), *ids, *strengths


def _penalties_terms(
    logits: torch.Tensor,
    rows: torch.Tensor,
    prompt_ids: torch.Tensor,
    output_ids: torch.Tensor,
    repetition: torch.Tensor,
    presence: torch.Tensor,
    frequency: torch.Tensor,
) -> list[Terms]:
    largest = torch.minimum(repetition, 1 / repetition)
    taken = (largest, -presence.abs(), -frequency.abs())
    return [Terms(apply_penalties.reference(logits.abs(), rows, prompt_ids, output_ids, *taken))]


@op(
    LOGITS_IN_PLACE,
    Arg("rows", ("penalised",), "int64"),
    Arg("prompt_ids", ("penalised", "prompt"), "int64", doc="-1 behind the end"),
    Arg("output_ids", ("penalised", "output"), "int64", doc="-1 behind the end"),
    Arg("repetition", ("penalised",), "float32", doc="1: off"),
    Arg("presence", ("penalised",), "float32", doc="0: off"),
    Arg("frequency", ("penalised",), "float32", doc="0: off"),
    returns=LOGITS,
    error=cancelling(4),
    checks=Checks(_penalties_case, None, _penalties_terms),
)
def apply_penalties(
    logits: torch.Tensor,
    rows: torch.Tensor,
    prompt_ids: torch.Tensor,
    output_ids: torch.Tensor,
    repetition: torch.Tensor,
    presence: torch.Tensor,
    frequency: torch.Tensor,
) -> torch.Tensor:
    """Make seen tokens less likely, in place.

    Repetition (Keskar et al., 2019) over prompt and output: positive logits are divided, negative ones multiplied.
    Presence and frequency (OpenAI's definition) over the output: presence is subtracted once, frequency per occurrence.
    """
    selected = logits[rows]

    def counts(ids: torch.Tensor) -> torch.Tensor:
        table = torch.zeros_like(selected)
        return table.scatter_add_(1, ids.clamp(min=0), (ids >= 0).to(table.dtype))

    written = counts(output_ids)
    seen = (written + counts(prompt_ids)) > 0
    factor = repetition.to(selected.dtype).unsqueeze(1)
    repeated = torch.where(selected > 0, selected / factor, selected * factor)
    selected = torch.where(seen, repeated, selected)
    selected = selected - frequency.unsqueeze(1) * written - presence.unsqueeze(1) * (written > 0)
    logits[rows] = selected.to(logits.dtype)
    return logits


def _bias_case(case: Case) -> Args:
    pairs = case.distinct(case["tokens"], case["rows"] * case["vocab"])
    bias = case.floats(case["tokens"], dtype=torch.float32)
    return case.logits(), pairs // case["vocab"], pairs % case["vocab"], bias


def _plant_in_bias(args: list[Any], largest: float) -> None:
    args[3][:2] = -torch.inf
    args[0][args[1][2], args[2][2]] = torch.nan


@op(
    LOGITS_IN_PLACE,
    Arg("rows", ("entries",), "int64"),
    Arg("token_ids", ("entries",), "int64", doc="no pair (row, id) twice"),
    Arg("bias", ("entries",), "float32", doc="-inf bans the token"),
    returns=LOGITS,
    error=ROUNDED,
    checks=Checks(_bias_case, _plant_in_bias),
)
def apply_logit_bias(
    logits: torch.Tensor, rows: torch.Tensor, token_ids: torch.Tensor, bias: torch.Tensor
) -> torch.Tensor:
    """Add a bias to single logits, in place."""
    logits[rows, token_ids] = logits[rows, token_ids] + bias.to(logits.dtype)
    return logits


__all__ = ["apply_logit_bias", "apply_penalties", "argmax", "sample"]
