"""Penalties where tokens were seen, instead of over the vocabulary. Knows logits and ids; knows no request."""

from __future__ import annotations

import numpy as np
import torch


def apply_penalties(
    logits: torch.Tensor,
    rows: torch.Tensor,
    prompt_ids: torch.Tensor,
    output_ids: torch.Tensor,
    repetition: torch.Tensor,
    presence: torch.Tensor,
    frequency: torch.Tensor,
) -> torch.Tensor:
    """The reference's formula in its order."""
    lines = logits.numpy()
    settings = zip(rows.tolist(), repetition.numpy(), presence.numpy(), frequency.numpy(), strict=True)
    for (row, repeated, present, frequent), prompt, output in zip(
        settings, prompt_ids.numpy(), output_ids.numpy(), strict=True
    ):
        line = lines[row]
        written, counts = np.unique(output[output >= 0], return_counts=True)
        if repeated != 1:
            seen = np.unique(np.concatenate((prompt[prompt >= 0], written)))
            values = line[seen]
            with np.errstate(over="ignore", invalid="ignore"):  # what is not finite then is the sampler's to find
                line[seen] = np.where(values > 0, values / repeated, values * repeated)
        line[written] = line[written] - frequent * counts.astype(line.dtype) - present
    return logits


__all__ = ["apply_penalties"]
