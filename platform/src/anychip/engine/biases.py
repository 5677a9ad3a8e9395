"""What is added to the logits of some rows, and which tokens these may not get yet, as tensors. Knows no logits."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from typing import NamedTuple

import numpy as np
import torch

from anychip.engine.step_plan import Draw, Sampling

Ids = np.ndarray[tuple[int], np.dtype[np.int64]]
Values = np.ndarray[tuple[int], np.dtype[np.float32]]


class Entries(NamedTuple):
    """Arguments of `apply_logit_bias`, on the device; no pair (row, id) twice."""

    rows: torch.Tensor
    ids: torch.Tensor
    values: torch.Tensor


class Biases:
    """The entries of one group of rows.

    They are made when the group begins, and anew when one of its rows has the tokens that it must have at least: not
    in each step, as a request may bias every token of a vocabulary.

    Args:
        settings: of the group's rows.
        to_device: brings a host tensor to the device.
    """

    def __init__(self, settings: SequenceOf[Sampling], to_device: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self._to_device = to_device
        self._settings = {row: one for row, one in enumerate(settings) if one.logit_bias or one.banned}
        self._restrained = [row for row, one in self._settings.items() if one.banned]
        self._short: list[int] | None = None  # rows whose bans are among the entries
        self._entries: Entries | None = None

    def __bool__(self) -> bool:
        return bool(self._settings)

    def entries(self, draws: SequenceOf[Draw], later: int) -> Entries | None:
        """What holds in this step; None where that is nothing.

        Args:
            draws: one per row.
            later: how many tokens further than these say each completion is.
        """
        short = [row for row in self._restrained if draws[row].step + later < self._settings[row].min_tokens]
        if short != self._short:
            self._short, self._entries = short, self._made(set(short))
        return self._entries

    def _made(self, short: set[int]) -> Entries | None:
        found = [(row, *_row(one, is_short=row in short)) for row, one in self._settings.items()]
        counts = [len(ids) for _, ids, _ in found]
        if not sum(counts):
            return None
        rows = np.repeat(np.array([row for row, _, _ in found], dtype=np.int64), counts)
        columns = rows, np.concatenate([ids for _, ids, _ in found]), np.concatenate([values for _, _, values in found])
        return Entries(*(self._to_device(torch.from_numpy(one)) for one in columns))


def _row(sampling: Sampling, *, is_short: bool) -> tuple[Ids, Values]:
    """One row's ids, each once, and what is added to each: the sum where one is named twice."""
    bias = sampling.logit_bias
    banned = sampling.banned if is_short else ()
    ids = np.array([*(token for token, _ in bias), *banned], dtype=np.int64)
    added = np.array([*(value for _, value in bias), *(-np.inf for _ in banned)], dtype=np.float64)
    unique, places = np.unique(ids, return_inverse=True)
    return unique, np.bincount(places, added, len(unique)).astype(np.float32)


__all__ = ["Biases", "Entries"]
