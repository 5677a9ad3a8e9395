"""Drawn tokens and penalties in the native library. Knows its structs; leaves to torch what it can't do."""

from __future__ import annotations

import struct

import numpy as np
import torch

from anychip_cpu import native
from anychip_cpu.kernels import penalties, sampling
from anychip_sdk.ops import sample as sample_op

#: the structs of sampling.hpp
_SAMPLE = struct.Struct("=7Q4q")
_PENALTIES = struct.Struct("=7Q5q")


class Drawing:
    """One method for each op. A row's result depends on that row alone.

    Args:
        library: the native kernels; None: torch does everything.
    """

    def __init__(self, library: native.Library | None) -> None:
        self._library = library

    def sample(
        self,
        logits: torch.Tensor,
        temperature: torch.Tensor,
        top_k: torch.Tensor,
        top_p: torch.Tensor,
        min_p: torch.Tensor,
        uniform: torch.Tensor,
    ) -> torch.Tensor:
        """The reference's token; the reference itself where rounding would decide, or a logit is not a number."""
        settings = (temperature, top_k, top_p, min_p, uniform)
        if self._library is None or not _is_plain(logits, *settings):
            return sampling.sample(logits, *settings)
        rows, vocab = logits.shape
        found = np.empty(rows, dtype=np.int64)  # numpy's look at a few numbers is the shorter one
        ids = torch.from_numpy(found)
        addresses = (one.data_ptr() for one in (logits, *settings, ids))
        self._library.sample(_SAMPLE.pack(*addresses, rows, vocab, vocab, torch.get_num_threads()))
        if found.min(initial=0) < 0:
            undecided = torch.from_numpy(np.flatnonzero(found < 0))
            ids[undecided] = sample_op.reference(*(one[undecided] for one in (logits, *settings)))
        return ids

    def apply_penalties(
        self,
        logits: torch.Tensor,
        rows: torch.Tensor,
        prompt_ids: torch.Tensor,
        output_ids: torch.Tensor,
        repetition: torch.Tensor,
        presence: torch.Tensor,
        frequency: torch.Tensor,
    ) -> torch.Tensor:
        """The reference's formula in its order."""
        chosen = (rows, prompt_ids, output_ids, repetition, presence, frequency)
        if self._library is None or not _is_plain(logits, *chosen):
            return penalties.apply_penalties(logits, *chosen)
        vocab = logits.shape[-1]
        failed = self._library.penalise(
            _PENALTIES.pack(
                *(one.data_ptr() for one in (logits, *chosen)),
                len(rows),
                vocab,
                vocab,
                prompt_ids.shape[-1],
                output_ids.shape[-1],
            )
        )
        if failed:
            message = f"native kernels: a token id is not below {vocab}, or there is no memory for a mark on each token"
            raise IndexError(message)
        return logits


def _is_plain(logits: torch.Tensor, *others: torch.Tensor) -> bool:
    return logits.dtype == torch.float32 and all(one.is_contiguous() for one in (logits, *others))


__all__ = ["Drawing"]
