"""From logits to tokens, through the registry. Knows draws; knows no plan and no sequence's pages."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Sequence as SequenceOf
from math import isfinite
from typing import NamedTuple

import numpy as np
import torch

from anychip.engine.biases import Biases
from anychip.engine.request import LogProb
from anychip.engine.seeds import uniform
from anychip.engine.step_plan import Draw, Drawn, History, Sampling
from anychip.plan.memory import SAMPLED_ROWS
from anychip_sdk.program import bound_function
from anychip_sdk.registry import Resolution


class _Scores(NamedTuple):
    """Log-probabilities of some rows, on the device."""

    rows: list[int]
    chosen: torch.Tensor  #: [rows]
    top: torch.Tensor  #: [rows, the most wanted]
    top_ids: torch.Tensor


class Chosen(NamedTuple):
    """A step's tokens before anybody has waited for them."""

    tokens: (
        torch.Tensor
    )  #: int64 [draws], on the device; the step behind, which may run before anybody waits, leaves them alone
    largest: torch.Tensor  #: float32, a draw's largest logit; where it is not finite, the token counts for nothing
    sequences: list[int]  #: that get them
    scores: list[_Scores]

    def moved(self, move: Callable[[torch.Tensor], torch.Tensor]) -> Chosen:
        """The same with all tensors elsewhere."""
        scores = [_Scores(one.rows, move(one.chosen), move(one.top), move(one.top_ids)) for one in self.scores]
        return Chosen(move(self.tokens), move(self.largest), self.sequences, scores)


class _Drawn(NamedTuple):
    """Rows that are drawn at once."""

    rows: list[int]
    places: torch.Tensor  #: the rows, on the device
    filters: tuple[torch.Tensor, ...]  #: temperature, top-k, top-p, min-p


class _Penalised(NamedTuple):
    sequences: list[int]
    rows: torch.Tensor
    prompts: torch.Tensor
    strengths: tuple[torch.Tensor, ...]  #: repetition, presence, frequency


class _SamplingGroup(NamedTuple):
    """What stays the same from step to step while the same sequences are sampled."""

    biases: Biases
    penalised: _Penalised | None
    drawn: list[_Drawn]
    has_greedy: bool
    scored: list[list[int]]  #: rows whose log-probabilities are wanted, a few at a time


class _History:
    """What the penalties of a sequence count."""

    __slots__ = ("output", "prompt")

    def __init__(self, said: History) -> None:
        self.prompt = array("i", said.prompt)
        self.output = array("i", said.output)


class Sampler:
    """Applies bias, penalties and the draw, a few rows at a time so that sorting stays small.

    It keeps what penalised sequences have said until they are forgotten.

    Args:
        to_device: brings a host tensor to the device without waiting for it; None: torch's way.
    """

    def __init__(
        self,
        ops: Mapping[str, Resolution],
        device: torch.device,
        to_device: Callable[[torch.Tensor], torch.Tensor] | None = None,
    ) -> None:
        self._argmax = bound_function(ops["argmax"])
        self._sample = bound_function(ops["sample"])
        self._penalise = bound_function(ops["apply_penalties"])
        self._bias = bound_function(ops["apply_logit_bias"])
        self._to_device = to_device or (lambda values: values.to(device))
        self._histories: dict[int, _History] = {}
        self._draws: SequenceOf[Draw] = ()  # the last ones
        self._group_of: list[int] = []  # whose they are
        self._group = self._make_group([], [])

    def __call__(self, logits: torch.Tensor, draws: SequenceOf[Draw], later: int = 0) -> Chosen:
        """One token per row.

        Args:
            logits: float32 [rows, vocab]; may be written.
            draws: one per row.
            later: how many tokens further than these say each completion is.
        """
        group = self._group_for(draws)
        entries = group.biases.entries(draws, later) if group.biases else None
        if entries is not None:
            self._bias(logits, *entries)
        if group.penalised is not None:
            self._apply_penalties(logits, group.penalised)
        # the largest logit is NaN or infinite where any is
        if group.has_greedy:
            tokens = self._argmax(logits)
            largest = logits.gather(1, tokens.unsqueeze(1))
        else:
            tokens, largest = logits.new_empty(len(draws), dtype=torch.int64), logits.amax(1)
        for drawn in group.drawn:
            picked = self._draw(logits, draws, drawn, later)
            tokens = picked if len(drawn.rows) == len(draws) else tokens.index_copy_(0, drawn.places, picked)
        scores = [self._scores(logits, draws, rows, tokens) for rows in group.scored]
        return Chosen(tokens, largest, self._group_of, scores)

    def take(self, draws: SequenceOf[Draw], chosen: Chosen) -> list[Drawn]:
        """The tokens of these draws, from tensors on the host; they count for the next ones."""
        tokens: list[int] = chosen.tokens.tolist()
        largest = chosen.largest.view(-1).tolist()
        if self._histories:
            for draw, token in zip(draws, tokens, strict=True):
                history = self._histories.get(draw.sequence)
                if history is not None:
                    history.output.append(token)
        found: dict[int, LogProb] = {}
        for scores in chosen.scores:
            found.update(_logprobs(draws, scores))
        if not found and all(map(isfinite, largest)):
            return [Drawn((token,)) for token in tokens]
        return [
            Drawn((token,), (found[row],) if row in found else ()) if isfinite(largest[row]) else Drawn(())
            for row, token in enumerate(tokens)
        ]

    def forget(self, sequences: Iterable[int]) -> None:
        """These are not drawn for again."""
        for sequence in sequences:
            self._histories.pop(sequence, None)

    def _group_for(self, draws: SequenceOf[Draw]) -> _SamplingGroup:
        if draws is self._draws:
            return self._group
        self._draws = draws
        sequences = [draw.sequence for draw in draws]
        if sequences != self._group_of:
            self._remember(draws)
            self._group = self._make_group([draw.sampling for draw in draws], sequences)
            self._group_of = sequences
        return self._group

    def _remember(self, draws: SequenceOf[Draw]) -> None:
        for draw in draws:
            if draw.history is not None:
                self._histories[draw.sequence] = _History(draw.history)

    def _draw(self, logits: torch.Tensor, draws: SequenceOf[Draw], drawn: _Drawn, later: int) -> torch.Tensor:
        chosen = logits if len(drawn.rows) == len(logits) else logits[drawn.places]
        numbers = np.array([uniform(draws[row].sampling.seed, draws[row].step + later) for row in drawn.rows])
        picked: torch.Tensor = self._sample(chosen, *drawn.filters, self._to_device(torch.from_numpy(numbers)))
        return picked

    def _apply_penalties(self, logits: torch.Tensor, penalised: _Penalised) -> None:
        outputs = self._padded([self._histories[one].output for one in penalised.sequences])
        self._penalise(logits, penalised.rows, penalised.prompts, outputs, *penalised.strengths)

    def _scores(self, logits: torch.Tensor, draws: SequenceOf[Draw], rows: list[int], tokens: torch.Tensor) -> _Scores:
        index = self._ids(rows)
        logprobs = logits[index].float().log_softmax(dim=-1)
        chosen = logprobs.gather(1, tokens[index].unsqueeze(1)).squeeze(1)
        wanted = max(draws[row].sampling.logprobs or 0 for row in rows)
        top, ids = logprobs.topk(min(wanted, logprobs.shape[1]), dim=-1)
        return _Scores(rows, chosen, top, ids)

    def _make_group(self, settings: SequenceOf[Sampling], sequences: SequenceOf[int]) -> _SamplingGroup:
        drawn = [row for row, one in enumerate(settings) if not one.is_greedy]
        scored = [row for row, one in enumerate(settings) if one.logprobs is not None]
        penalised = self._penalised(settings, sequences)
        return _SamplingGroup(
            biases=Biases(settings, self._to_device),
            penalised=penalised,
            drawn=[self._drawn(settings, rows) for rows in _a_few(drawn)],
            has_greedy=len(drawn) < len(settings),
            scored=_a_few(scored),
        )

    def _drawn(self, settings: SequenceOf[Sampling], rows: list[int]) -> _Drawn:
        chosen = [settings[row] for row in rows]
        filters = (
            self._floats([one.temperature for one in chosen]),
            self._ids([one.top_k for one in chosen]),
            self._floats([one.top_p for one in chosen]),
            self._floats([one.min_p for one in chosen]),
        )
        return _Drawn(rows, self._ids(rows), filters)

    def _penalised(self, settings: SequenceOf[Sampling], sequences: SequenceOf[int]) -> _Penalised | None:
        rows = [row for row, one in enumerate(settings) if one.is_penalised]
        if not rows:
            return None
        chosen = [settings[row] for row in rows]
        strengths = (
            self._floats([one.repetition_penalty for one in chosen]),
            self._floats([one.presence_penalty for one in chosen]),
            self._floats([one.frequency_penalty for one in chosen]),
        )
        members = [sequences[row] for row in rows]
        prompts = self._padded([self._histories[one].prompt for one in members])
        return _Penalised(members, self._ids(rows), prompts, strengths)

    def _padded(self, lists: SequenceOf[array[int]]) -> torch.Tensor:
        """int64 [rows, the longest]; -1 behind a row's end."""
        ids = np.full((len(lists), max(1, *map(len, lists), 0)), -1, dtype=np.int64)
        for line, one in zip(ids, lists, strict=True):
            line[: len(one)] = one
        return self._to_device(torch.from_numpy(ids))

    def _ids(self, values: SequenceOf[int]) -> torch.Tensor:
        return self._to_device(torch.tensor(values, dtype=torch.int64))

    def _floats(self, values: SequenceOf[float]) -> torch.Tensor:
        return self._to_device(torch.tensor(values, dtype=torch.float32))


def _a_few(rows: list[int]) -> list[list[int]]:
    return [rows[start : start + SAMPLED_ROWS] for start in range(0, len(rows), SAMPLED_ROWS)]


def _logprobs(draws: SequenceOf[Draw], scores: _Scores) -> Iterable[tuple[int, LogProb]]:
    columns = (scores.chosen.tolist(), scores.top_ids.tolist(), scores.top.tolist())
    for row, chosen, ids, values in zip(scores.rows, *columns, strict=True):
        wanted = draws[row].sampling.logprobs
        yield row, LogProb(chosen, tuple(zip(ids[:wanted], values[:wanted], strict=True)))


__all__ = ["Chosen", "Sampler"]
