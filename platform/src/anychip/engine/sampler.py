"""From logits to one token per sequence, through the registry. Knows sampling parameters; knows no scheduler."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as SequenceOf
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch

from anychip.engine.request import GREEDY_BELOW
from anychip.engine.sequence import Sequence, TokenArray
from anychip.plan.memory import SAMPLED_ROWS
from anychip_sdk.program import bound_function
from anychip_sdk.registry import Resolution


class _Drawn(NamedTuple):
    """Rows that are drawn at once."""

    rows: list[int]
    sequences: list[Sequence]
    filters: tuple[torch.Tensor, ...]  #: temperature, top-k, top-p, min-p


class _Penalised(NamedTuple):
    sequences: list[Sequence]
    rows: torch.Tensor
    prompts: torch.Tensor
    strengths: tuple[torch.Tensor, ...]  #: repetition, presence, frequency


class _Company(NamedTuple):
    """What stays the same from step to step while the same sequences are sampled."""

    biased: list[tuple[int, Sequence]]
    penalised: _Penalised | None
    drawn: list[_Drawn]
    has_greedy: bool


class Sampler:
    """Applies bias, penalties and the draw, a few rows at a time so that sorting stays small."""

    def __init__(self, ops: Mapping[str, Resolution], device: torch.device) -> None:
        self._argmax = bound_function(ops["argmax"])
        self._sample = bound_function(ops["sample"])
        self._penalise = bound_function(ops["apply_penalties"])
        self._bias = bound_function(ops["apply_logit_bias"])
        self._device = device
        self._company = lru_cache(maxsize=1)(self._make_company)

    def __call__(self, logits: torch.Tensor, sequences: SequenceOf[Sequence]) -> list[int]:
        """One token per row.

        Args:
            logits: float32 [rows, vocab]; may be written.
            sequences: whose row it is, one per row.
        """
        if all(one.is_plain for one in sequences):
            return self._argmax(logits).tolist()  # type: ignore[no-any-return]
        company = self._company(tuple(sequences))
        self._apply_bias(logits, company.biased)
        if company.penalised is not None:
            self._apply_penalties(logits, company.penalised)
        tokens: list[int] = self._argmax(logits).tolist() if company.has_greedy else [0] * len(sequences)
        for drawn in company.drawn:
            for row, token in zip(drawn.rows, self._draw(logits, drawn), strict=True):
                tokens[row] = token
        return tokens

    def _draw(self, logits: torch.Tensor, drawn: _Drawn) -> list[int]:
        chosen = logits if len(drawn.rows) == len(logits) else logits[self._ids(drawn.rows)]
        uniform = np.array([one.uniform() for one in drawn.sequences])
        picked = self._sample(chosen, *drawn.filters, torch.from_numpy(uniform).to(self._device))
        return picked.tolist()  # type: ignore[no-any-return]

    def _apply_bias(self, logits: torch.Tensor, biased: SequenceOf[tuple[int, Sequence]]) -> None:
        entries: dict[tuple[int, int], float] = {}
        for row, one in biased:
            for token, bias in one.request.params.logit_bias:
                entries[row, token] = entries.get((row, token), 0.0) + bias
            for token in one.banned_ids():
                entries[row, token] = float("-inf")
        if entries:
            rows, ids = zip(*entries, strict=True)
            self._bias(logits, self._ids(rows), self._ids(ids), self._floats(list(entries.values())))

    def _apply_penalties(self, logits: torch.Tensor, penalised: _Penalised) -> None:
        outputs = self._padded([one.token_array()[one.prompt_len :] for one in penalised.sequences])
        self._penalise(logits, penalised.rows, penalised.prompts, outputs, *penalised.strengths)

    def _make_company(self, sequences: tuple[Sequence, ...]) -> _Company:
        params = [one.request.params for one in sequences]
        drawn = [row for row, one in enumerate(params) if one.temperature >= GREEDY_BELOW]
        return _Company(
            biased=[(row, sequences[row]) for row, one in enumerate(params) if one.logit_bias or one.min_tokens],
            penalised=self._penalised(sequences),
            drawn=[
                self._drawn(sequences, drawn[start : start + SAMPLED_ROWS])
                for start in range(0, len(drawn), SAMPLED_ROWS)
            ],
            has_greedy=len(drawn) < len(sequences),
        )

    def _drawn(self, sequences: SequenceOf[Sequence], rows: list[int]) -> _Drawn:
        params = [sequences[row].request.params for row in rows]
        filters = (
            self._floats([one.temperature for one in params]),
            self._ids([one.top_k for one in params]),
            self._floats([one.top_p for one in params]),
            self._floats([one.min_p for one in params]),
        )
        return _Drawn(rows, [sequences[row] for row in rows], filters)

    def _penalised(self, sequences: SequenceOf[Sequence]) -> _Penalised | None:
        rows = [row for row, one in enumerate(sequences) if one.request.params.is_penalised]
        if not rows:
            return None
        chosen = [sequences[row] for row in rows]
        params = [one.request.params for one in chosen]
        strengths = (
            self._floats([one.repetition_penalty for one in params]),
            self._floats([one.presence_penalty for one in params]),
            self._floats([one.frequency_penalty for one in params]),
        )
        prompts = self._padded([one.token_array()[: one.prompt_len] for one in chosen])
        return _Penalised(chosen, self._ids(rows), prompts, strengths)

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
