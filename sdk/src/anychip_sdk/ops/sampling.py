"""From logits to tokens, row by row: no row depends on its batch mates. Knows logits; knows no request."""

from __future__ import annotations

import torch

from anychip_sdk.ops.base import EXACT, ROUNDED, Arg, cancelling, op

LOGITS = Arg("logits", ("rows", "vocab"), "float32")
LOGITS_IN_PLACE = Arg("logits", ("rows", "vocab"), "float32", mutated=True)
IDS = Arg("token_ids", ("rows",), "int64")


@op(LOGITS, returns=IDS, error=EXACT)
def argmax(logits: torch.Tensor) -> torch.Tensor:
    """The largest logit of each row; the lowest id among equals."""
    return logits.argmax(dim=-1)


@op(
    LOGITS,
    Arg("temperature", ("rows",), "float32", doc="above 0"),
    Arg("top_k", ("rows",), "int64", doc="0: off"),
    Arg("top_p", ("rows",), "float32", doc="in (0, 1]; 1: off"),
    Arg("min_p", ("rows",), "float32", doc="in [0, 1); 0: off"),
    Arg("uniform", ("rows",), "float64", doc="in [0, 1): the row's random number"),
    returns=IDS,
    error=EXACT,
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
    index = torch.minimum((cumulated <= target).sum(dim=-1), (kept > 0).sum(dim=-1) - 1)
    return ids.gather(1, index.unsqueeze(1)).squeeze(1)


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


@op(
    LOGITS_IN_PLACE,
    Arg("rows", ("entries",), "int64"),
    Arg("token_ids", ("entries",), "int64", doc="no pair (row, id) twice"),
    Arg("bias", ("entries",), "float32", doc="-inf bans the token"),
    returns=LOGITS,
    error=ROUNDED,
)
def apply_logit_bias(
    logits: torch.Tensor, rows: torch.Tensor, token_ids: torch.Tensor, bias: torch.Tensor
) -> torch.Tensor:
    """Add a bias to single logits, in place."""
    logits[rows, token_ids] = logits[rows, token_ids] + bias.to(logits.dtype)
    return logits
