"""From logits to one token per sequence, through the registry. Knows sampling parameters; knows no scheduler."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as SequenceOf

import torch

from anychip.engine.sequence import Sequence
from anychip.graph.codegen import bound_function
from anychip.plan.memory import SAMPLED_ROWS
from anychip_sdk.registry import Resolution

GREEDY_BELOW = 1e-5  #: a temperature under this is greedy: dividing by it would only overflow


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
        self._apply_bias(logits, sequences)
        self._apply_penalties(logits, sequences)
        drawn = [row for row, one in enumerate(sequences) if one.request.params.temperature >= GREEDY_BELOW]
        if not drawn:
            return self._argmax(logits).tolist()  # type: ignore[no-any-return]
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
        rows = [row for row, one in enumerate(sequences) if _is_penalised(one)]
        if not rows:
            return
        chosen = [sequences[row] for row in rows]
        params = [one.request.params for one in chosen]
        self._penalise(
            logits,
            self._ids(rows),
            self._padded([one.tokens[: one.prompt_len] for one in chosen]),
            self._padded([one.output_ids for one in chosen]),
            self._floats([one.repetition_penalty for one in params]),
            self._floats([one.presence_penalty for one in params]),
            self._floats([one.frequency_penalty for one in params]),
        )

    def _padded(self, lists: SequenceOf[SequenceOf[int]]) -> torch.Tensor:
        width = max(1, *map(len, lists)) if len(lists) > 1 else max(1, len(lists[0]))
        return torch.tensor([[*ids, *[-1] * (width - len(ids))] for ids in lists], device=self._device)

    def _ids(self, values: SequenceOf[int]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self._device)

    def _floats(self, values: SequenceOf[float]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.float32, device=self._device)


def _is_penalised(sequence: Sequence) -> bool:
    params = sequence.request.params
    return bool(params.repetition_penalty != 1.0 or params.presence_penalty or params.frequency_penalty)


__all__ = ["GREEDY_BELOW", "Sampler"]
