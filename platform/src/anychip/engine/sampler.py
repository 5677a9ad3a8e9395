"""From logits to one token per sequence, through the registry. Knows sampling parameters; knows no scheduler."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as SequenceOf

import numpy as np
import torch

from anychip.engine.request import GREEDY_BELOW
from anychip.engine.sequence import Sequence, TokenArray
from anychip.graph.codegen import bound_function
from anychip.plan.memory import SAMPLED_ROWS
from anychip_sdk.registry import Resolution


class Sampler:
    """Applies bias, penalties and the draw, a few rows at a time so that sorting stays small."""

    def __init__(self, ops: Mapping[str, Resolution], device: torch.device) -> None:
        self._argmax = bound_function(ops["argmax"])
        self._sample = bound_function(ops["sample"])
        self._penalise = bound_function(ops["apply_penalties"])
        self._bias = bound_function(ops["apply_logit_bias"])
        self._device = device

    def __call__(self, logits: torch.Tensor, sequences: SequenceOf[Sequence]) -> list[int]:
        """One token per row.

        Args:
            logits: float32 [rows, vocab]; may be written.
            sequences: whose row it is, one per row.
        """
        if all(one.is_plain for one in sequences):
            return self._argmax(logits).tolist()  # type: ignore[no-any-return]
        self._apply_bias(logits, sequences)
        self._apply_penalties(logits, sequences)
        drawn = [row for row, one in enumerate(sequences) if one.request.params.temperature >= GREEDY_BELOW]
        tokens: list[int] = self._argmax(logits).tolist() if len(drawn) < len(sequences) else [0] * len(sequences)
        for start in range(0, len(drawn), SAMPLED_ROWS):
            rows = drawn[start : start + SAMPLED_ROWS]
            picked = self._draw(logits[self._ids(rows)], [sequences[row] for row in rows])
            for row, token in zip(rows, picked, strict=True):
                tokens[row] = token
        return tokens

    def _draw(self, logits: torch.Tensor, sequences: SequenceOf[Sequence]) -> list[int]:
        params = [one.request.params for one in sequences]
        picked = self._sample(
            logits,
            self._floats([one.temperature for one in params]),
            self._ids([one.top_k for one in params]),
            self._floats([one.top_p for one in params]),
            self._floats([one.min_p for one in params]),
            torch.tensor([one.uniform() for one in sequences], dtype=torch.float64, device=self._device),
        )
        return picked.tolist()  # type: ignore[no-any-return]

    def _apply_bias(self, logits: torch.Tensor, sequences: SequenceOf[Sequence]) -> None:
        entries: dict[tuple[int, int], float] = {}
        for row, one in enumerate(sequences):
            for token, bias in one.request.params.logit_bias:
                entries[row, token] = entries.get((row, token), 0.0) + bias
            for token in one.banned_ids():
                entries[row, token] = float("-inf")
        if entries:
            rows, ids = zip(*entries, strict=True)
            self._bias(logits, self._ids(rows), self._ids(ids), self._floats(list(entries.values())))

    def _apply_penalties(self, logits: torch.Tensor, sequences: SequenceOf[Sequence]) -> None:
        rows = [row for row, one in enumerate(sequences) if one.request.params.is_penalised]
        if not rows:
            return
        chosen = [sequences[row] for row in rows]
        params = [one.request.params for one in chosen]
        self._penalise(
            logits,
            self._ids(rows),
            self._padded([one.token_array()[: one.prompt_len] for one in chosen]),
            self._padded([one.token_array()[one.prompt_len :] for one in chosen]),
            self._floats([one.repetition_penalty for one in params]),
            self._floats([one.presence_penalty for one in params]),
            self._floats([one.frequency_penalty for one in params]),
        )

    def _padded(self, arrays: SequenceOf[TokenArray]) -> torch.Tensor:
        """int64 [rows, the longest]; -1 behind a row's end."""
        ids = np.full((len(arrays), max(1, *map(len, arrays), 0)), -1, dtype=np.int64)
        for line, array in zip(ids, arrays, strict=True):
            line[: len(array)] = array
        return torch.from_numpy(ids).to(self._device)

    def _ids(self, values: SequenceOf[int]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self._device)

    def _floats(self, values: SequenceOf[float]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.float32, device=self._device)


__all__ = ["Sampler"]
