"""A KV pool and a model that need no tensor: a place in a page holds the token and position written there, and the next
token is a hash of what the page table leads to. With slots, a slot's state is the list of all tokens that went through
it. So a wrong page, a lost copy or a stale state shows as a wrong output."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from anychip.engine.batch import Batch, Row
from anychip.engine.kv_tables import slots
from anychip.engine.request import SamplingParams
from anychip.engine.runner import run_state_ops
from anychip.engine.seeds import derive_seed, uniform
from anychip.engine.sequence import Sequence as Completion
from anychip.engine.sequence import State
from anychip.engine.step_plan import Drawn
from anychip_sdk.kv import LedgerKVPool, PoolSpec
from anychip_sdk.state import StateGroup, StateSpec, StateTensor

ENTRY = StateGroup(StateSpec("entry", "paged", (StateTensor("entry", (1,)),)), 1)
STALE = -7  #: the token of a row that nobody waits for
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
        self.taken: list[int] = []  # pages, since the last batch was submitted
        self.states: list[list[int]] = [[-1] for _ in range(slots)]  # not zeros: what was there before a clear

    def alloc(self, count: int) -> list[int]:
        pages = super().alloc(count)
        self.taken += pages
        return pages

    def clear_pages(self, pages: Sequence[int]) -> None:
        """What a page held before it was taken must not matter."""
        for page in pages:
            for slot in self._slots(page):
                self.content.pop(slot, None)

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


class _Said(NamedTuple):
    """What the host says of a row when it submits a batch."""

    row: Row
    pages: list[int]
    tokens: list[int]  #: that it knows, from the row's start on
    history: list[int]  #: all that it knows up to the row's end
    slot: int
    sampled: tuple[Completion, ...]

    @property
    def is_stale(self) -> bool:
        """Nobody waits for its tokens any more, and what it reads and writes may be another's by now."""
        return self.row.sequence.state is State.FINISHED


class FakeModel:
    """Runs batches against a FakePool, in the order in which they are submitted.

    Args:
        ahead: how many tokens it draws at once for one completion, as far as its pages hold their entries.
    """

    def __init__(self, pool: FakePool, vocab_size: int, ahead: int = 1) -> None:
        self._pool = pool
        self._vocab_size = vocab_size
        self._ahead = ahead
        self._last: dict[Completion, int] = {}  # the token drawn last

    def step(self, batch: Batch) -> list[Drawn]:
        return self.submit(batch)()

    def submit(self, batch: Batch) -> Callable[[], list[Drawn]]:
        """Hear what the host says of a batch now. The answer runs it: later, as on a device, but in order."""
        sources, targets = [c[0] for c in batch.copies], [c[1] for c in batch.copies]
        assert len(set(targets)) == len(targets)
        assert not set(sources) & set(targets)
        said = []
        for row in batch.rows:
            one = row.sequence
            self._check_owner(one.pages, row)
            tokens, history = one.tokens[row.start : row.end], one.tokens[: row.end]
            said.append(_Said(row, list(one.pages), tokens, history, one.slot, row.sampled))
        taken, self._pool.taken = self._pool.taken, []
        return lambda: self._run(batch, said, taken)

    def _run(self, batch: Batch, said: list[_Said], taken: list[int]) -> list[Drawn]:
        self._pool.clear_pages(taken)
        self._pool.copy_pages([c[0] for c in batch.copies], [c[1] for c in batch.copies])
        run_state_ops(batch.state_ops, self._pool)
        for one in said:
            sequence, start = one.row.sequence, one.row.start
            if len(one.tokens) < one.row.count:  # drawn by the step before, which the host hadn't heard of
                one.tokens.append(self._last[sequence])
                one.history.append(self._last[sequence])
            self._write(one.pages, start, one.tokens)
            if self._pool.states:
                assert self._pool.states[one.slot] == one.history[:start] or one.is_stale
                self._pool.states[one.slot] += one.tokens
        drawn = []
        for one in said:
            if one.sampled and one.is_stale:
                drawn += [Drawn((STALE,))] * len(one.sampled)
            elif one.sampled:
                history = self._read(one.pages, one.row.end)
                assert history == one.history
                if self._pool.states:
                    history = list(self._pool.states[one.slot])
                assert len(one.sampled) == one.row.samples
                ahead = self._ahead if one.row.samples == 1 else 1
                drawn += [Drawn(self._draw(fork, one.pages, history, ahead)) for fork in one.sampled]
        return drawn

    def _draw(self, one: Completion, pages: list[int], history: list[int], ahead: int) -> tuple[int, ...]:
        tokens: list[int] = []
        room = len(pages) * self._pool.layout.page_size - len(history)
        while True:
            number = uniform(one.seed, len(history) - one.prompt_len + len(tokens))
            tokens.append(next_token(history + tokens, number, self._vocab_size))
            if len(tokens) == ahead or len(tokens) > room:
                self._last[one] = tokens[-1]
                return tuple(tokens)
            self._write(pages, len(history) + len(tokens) - 1, tokens[-1:])

    def _check_owner(self, pages: list[int], row: Row) -> None:
        size = self._pool.layout.page_size
        for page in pages[row.start // size : (row.end - 1) // size + 1]:
            assert self._pool.refcount(page) == 1, "a shared page is written to"

    def _write(self, pages: list[int], start: int, tokens: list[int]) -> None:
        size = self._pool.layout.page_size
        for offset, slot in enumerate(slots(pages, size, start, len(tokens))):
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
