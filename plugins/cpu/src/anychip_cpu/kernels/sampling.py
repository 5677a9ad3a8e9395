"""Drawing tokens from the few that matter, without sorting the vocabulary. Knows logits; knows no request."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from anychip_sdk.ops import sample as sample_op

#: how many of the largest logits are looked at: first few, then more for the rows that these can't decide, if that is
#: at most half of the vocabulary; what is still open takes the reference's way. The first is for small top-k only
CANDIDATES = (64, 512, 2048, 16384)
#: how near to the end of what the candidates cover a draw may fall, as probability
MARGIN = 1e-9


def argmax(logits: torch.Tensor) -> torch.Tensor:
    """numpy's gives the first index too, also of several NaNs, and was 10 times faster on one thread than torch's."""
    return torch.from_numpy(logits.numpy().argmax(axis=-1))


def sample(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    min_p: torch.Tensor,
    uniform: torch.Tensor,
) -> torch.Tensor:
    """The reference's token for the same uniform number."""
    arguments = (temperature, top_k, top_p, min_p, uniform)
    drawn = torch.empty(len(logits), dtype=torch.int64)
    rest = torch.arange(len(logits))
    are_few = bool(((top_k > 0) & (top_k < CANDIDATES[0])).all())
    for count in CANDIDATES if are_few else CANDIDATES[1:]:
        if not len(rest) or 2 * count > logits.shape[1]:
            break
        some = (logits, *arguments) if len(rest) == len(logits) else _rows(rest, logits, *arguments)
        found, decided = _from_candidates(count, *some)
        drawn[rest] = found
        rest = rest[~decided]
    if len(rest):
        drawn[rest] = sample_op.reference(*_rows(rest, logits, *arguments))
    return drawn


def _rows(rows: torch.Tensor, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return tuple(tensor[rows] for tensor in tensors)


class _Candidates(NamedTuple):
    """The largest logits of each row in the reference's order: falling, lower ids first among equals."""

    scaled: torch.Tensor  #: float64 [rows, count], divided by the temperature
    ids: torch.Tensor
    certain: torch.Tensor  #: [rows]: so many are surely the row's first; a tie with the last may be cut anywhere


def _candidates(count: int, logits: torch.Tensor, temperature: torch.Tensor) -> _Candidates:
    ids = _largest(count, logits)
    values, order = logits.gather(1, ids).sort(dim=-1, descending=True, stable=True)
    certain = (values > values[:, -1:]).sum(dim=-1)
    return _Candidates(values.double() / temperature.double().unsqueeze(1), ids.gather(1, order), certain)


def _largest(count: int, logits: torch.Tensor) -> torch.Tensor:
    """The ids of each row's largest logits, rising; of those equal to the least, any. Half the time of topk."""
    values = logits.numpy()
    least = np.partition(values, -count, axis=-1)[:, -count]
    ids = np.empty((len(values), count), dtype=np.int64)
    for row, bound, line in zip(values, least, ids, strict=True):
        found = np.flatnonzero(row >= bound)
        if len(found) > count:  # logits of 16 bits are often equal
            found = np.delete(found, np.flatnonzero(row[found] == bound)[count - len(found) :])
        line[:] = found if len(found) == count else np.sort(np.argpartition(row, -count)[-count:])  # some are NaN
    return torch.from_numpy(ids)


def _from_candidates(
    count: int,
    logits: torch.Tensor,
    temperature: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    min_p: torch.Tensor,
    uniform: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """A token for each row, and whether the candidates were enough to decide it."""
    found = _candidates(count, logits, temperature)
    rank = torch.arange(count)
    limited = top_k > 0
    weights = (found.scaled - found.scaled[:, :1]).exp()
    weights.masked_fill_((rank >= top_k.unsqueeze(1)) & limited.unsqueeze(1), 0.0)
    total = weights.sum(dim=-1)
    if not bool(limited.all()):
        total = torch.where(limited, total, _whole_mass(logits, temperature, found.scaled[:, 0]))
    probabilities = weights / total.unsqueeze(1)
    before = probabilities.cumsum(dim=-1) - probabilities
    dropped = (before >= top_p.double().unsqueeze(1)) & (top_p < 1).unsqueeze(1)
    dropped |= probabilities < min_p.double().unsqueeze(1) * probabilities[:, :1]
    dropped[:, 0] = False
    kept = probabilities.masked_fill(dropped, 0.0)
    cumulated = kept.cumsum(dim=-1)
    # what is dropped stays dropped further down, so one certain candidate that is dropped bounds the set; with a top-k
    # beyond the certain ones even the total is unknown
    last = (found.certain - 1).clamp(min=0).unsqueeze(1)
    bounded = torch.where(limited, top_k <= found.certain, dropped.gather(1, last).squeeze(1) & (found.certain > 0))
    unfiltered = ~limited & (top_p >= 1) & (min_p <= 0)
    mass = torch.where(unfiltered, 1.0, cumulated[:, -1])
    target = uniform.double() * mass
    covered = target < cumulated.gather(1, last).squeeze(1) - MARGIN
    index = torch.minimum((cumulated <= target.unsqueeze(1)).sum(dim=-1), (kept > 0).sum(dim=-1) - 1).clamp(min=0)
    return found.ids.gather(1, index.unsqueeze(1)).squeeze(1), bounded | (unfiltered & covered & (found.certain > 0))


def _whole_mass(logits: torch.Tensor, temperature: torch.Tensor, largest: torch.Tensor) -> torch.Tensor:
    """The sum of exp(scaled - largest) over the vocabulary, float64."""
    scaled = logits.double().div_(temperature.double().unsqueeze(1))
    return scaled.sub_(largest.unsqueeze(1)).exp_().sum(dim=-1)


__all__ = ["CANDIDATES", "argmax", "sample"]
