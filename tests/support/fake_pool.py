"""A KV pool and a model that need no tensor: a place in a page holds the token and position written there, and the next
token is a hash of what the page table leads to. With slots, a slot's state is the list of all tokens that went through
it. So a wrong page, a lost copy or a stale state shows as a wrong output."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch

from anychip.engine.batch import Batch
from anychip.engine.kv_tables import slots
from anychip.engine.request import SamplingParams
from anychip.engine.runner import run_state_ops
from anychip.engine.seeds import derive_seed, uniform
from anychip.engine.sequence import Sequence as Completion
from anychip.engine.step_plan import Drawn
from anychip_sdk.kv import LedgerKVPool, PoolSpec
from anychip_sdk.state import StateGroup, StateSpec, StateTensor

ENTRY = StateGroup(StateSpec("entry", "paged", (StateTensor("entry", (1,)),)), 1)
HISTORY = StateGroup(StateSpec("history", "slot", (StateTensor("history", (1,)),)), 1)


class FakePool(LedgerKVPool):
    """
    Args:
        slots: with some, the model keeps a state per sequence too.
    """

    def __init__(self, pages: int, page_size: int, slots: int = 0) -> None:
        groups = (ENTRY, HISTORY) if slots else (ENTRY,)
        super().__init__(PoolSpec(groups, torch.float32, 4 * (pages * page_size + slots), page_size, slots=slots))
        self.content: dict[int, tuple[int, int]] = {}  # place: (position, token)
        self.states: list[list[int]] = [[-1] for _ in range(slots)]  # not zeros: what was there before a clear

    def alloc(self, count: int) -> list[int]:
        pages = super().alloc(count)
        for page in pages:  # what a page held before must not matter
            for slot in self._slots(page):
                self.content.pop(slot, None)
        return pages

    def copy_pages(self, src: Sequence[int], dst: Sequence[int]) -> None:
        for source, target in zip(src, dst, strict=True):
            for old, new in zip(self._slots(source), self._slots(target), strict=True):
                self.content.pop(new, None)
                if old in self.content:
                    self.content[new] = self.content[old]

    def copy_slots(self, src: Sequence[int], dst: Sequence[int]) -> None:
        for source, target in zip(src, dst, strict=True):
            self.states[target] = list(self.states[source])

    def clear_slots(self, slots: Sequence[int]) -> None:
        for slot in slots:
            self.states[slot] = []

    def tensors(self, group: int, layer: int) -> tuple[torch.Tensor, ...]:
        raise IndexError(layer)  # it has no memory

    def _slots(self, page: int) -> range:
        size = self._layout.page_size
        return range(page * size, (page + 1) * size)


class FakeModel:
    """Runs a batch against a FakePool.

    Args:
        ahead: how many tokens it draws at once for one completion, as far as its pages hold their entries.
    """

    def __init__(self, pool: FakePool, vocab_size: int, ahead: int = 1) -> None:
        self._pool = pool
        self._vocab_size = vocab_size
        self._ahead = ahead

    def step(self, batch: Batch) -> list[Drawn]:
        sources, targets = [c[0] for c in batch.copies], [c[1] for c in batch.copies]
        assert len(set(targets)) == len(targets)
        assert not set(sources) & set(targets)
        self._pool.copy_pages(sources, targets)
        run_state_ops(batch.state_ops, self._pool)
        for row in batch.rows:
            tokens = row.sequence.tokens[row.start : row.end]
            self._write(row.sequence.pages, row.start, tokens)
            if self._pool.states:
                assert self._pool.states[row.sequence.slot] == row.sequence.tokens[: row.start]
                self._pool.states[row.sequence.slot] += tokens
        drawn = []
        for row in batch.rows:
            if row.samples:
                history = self._read(row.sequence.pages, row.end)
                assert history == row.sequence.tokens
                if self._pool.states:
                    history = self._pool.states[row.sequence.slot]
                assert len(row.sampled) == row.samples
                ahead = self._ahead if row.samples == 1 else 1
                drawn += [Drawn(self._draw(one, history, ahead)) for one in row.sampled]
        return drawn

    def _draw(self, one: Completion, history: list[int], ahead: int) -> tuple[int, ...]:
        tokens: list[int] = []
        room = len(one.pages) * self._pool.layout.page_size - len(history)
        while True:
            number = uniform(one.seed, one.output_count + len(tokens))
            tokens.append(next_token(history + tokens, number, self._vocab_size))
            if len(tokens) == ahead or len(tokens) > room:
                return tuple(tokens)
            self._write(one.pages, len(history) + len(tokens) - 1, tokens[-1:])

    def _write(self, pages: list[int], start: int, tokens: list[int]) -> None:
        size = self._pool.layout.page_size
        for offset, slot in enumerate(slots(pages, size, start, len(tokens))):
            assert self._pool.refcount(slot // size) == 1, "a shared page is written to"
            self._pool.content[slot] = (start + offset, tokens[offset])

    def _read(self, pages: list[int], count: int) -> list[int]:
        found = [self._pool.content.get(slot, (-1, -1)) for slot in slots(pages, self._pool.layout.page_size, 0, count)]
        assert [position for position, _ in found] == list(range(count))
        return [token for _, token in found]


def next_token(history: list[int], number: float, vocab_size: int) -> int:
    """The model: a pure function of all tokens so far and one random number."""
    text = ",".join(map(str, history)) + f":{int(number * 4)}"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=4).digest(), "little") % vocab_size


def expected_output(
    prompt: Sequence[int],
    params: SamplingParams,
    index: int,
    *,
    vocab_size: int,
    max_length: int,
    eos_token_ids: tuple[int, ...] = (),
) -> tuple[list[int], str]:
    """(tokens, finish reason) that a request must get whatever else runs; the ending token is not among them."""
    assert params.seed is not None
    seed = derive_seed(params.seed, index)
    history, output = list(prompt), []
    while True:
        token = next_token(history, uniform(seed, len(output)), vocab_size)
        history.append(token)
        stops = params.stop_token_ids + (() if params.ignore_eos else eos_token_ids)
        if token in stops and len(output) >= params.min_tokens:
            return output, "stop"
        output.append(token)
        if len(output) == params.max_tokens or len(history) >= max_length:
            return output, "length"
