"""What a case of an op is made of: sizes, and a source of random tensors and steps. Knows layouts; knows no op."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from anychip_sdk.step import Paged, Slots, Step

#: sizes that a case takes unless it is told others
DIMENSIONS: Mapping[str, int] = {
    "tokens": 5,
    "rows": 4,
    "hidden": 48,
    "inner": 40,
    "out": 56,
    "vocab": 97,
    "heads": 4,
    "kv_heads": 2,
    "head_dim": 16,
    "rotary_dim": 0,  # 0: the whole head
    "page_size": 4,
    "pages": 64,
    "positions": 256,
    "decode_rows": 3,
    "prefill_rows": 2,
    "context_min": 1,  # of rows that are one query or a part of a prompt
    "context_max": 40,
    "window": 0,  # 0: none
    "soft_cap": 0,  # of scores; 0: none
    "sinks": 0,  # 1: a score of each head beside those of its keys
    "experts": 12,
    "columns": 3,  # experts of each row
    "top_k": 3,
    "routing": 0,  # which of the router's `ROUTINGS`, counted from 1; 0: any
    "block": 32,  # of activations that are rounded together; 0: the whole row
    "slots": 9,
    "channels": 37,
    "taps": 3,
    "key_heads": 2,
    "value_heads": 4,
    "key_dim": 16,
    "value_dim": 24,
    "rank": 32,  # of latent attention: what a token keeps, without and with rotation, and what heads make of it
    "rope_dim": 16,
    "nope_dim": 24,
    "expand_from": 4,
}
EPS = 1e-6
_NO_LIMIT = 1 << 30  # of pages, where none are used
Args = tuple[Any, ...]


class Case:
    """Sizes, dtype and the source of randomness of one case."""

    def __init__(self, dtype: torch.dtype, seed: int, strided: bool, bias: bool, sizes: Mapping[str, int]) -> None:
        self.dtype = dtype
        self.strided = strided
        self.bias = bias
        self.sizes = sizes
        self.generator = torch.Generator().manual_seed(seed)

    def __getitem__(self, name: str) -> int:
        return self.sizes[name]

    def floats(self, *shape: int, scale: float = 1.0, dtype: torch.dtype | None = None) -> torch.Tensor:
        values = torch.randn(shape, generator=self.generator, dtype=torch.float64) * scale
        return values.to(dtype or self.dtype)

    def uniform(self, *shape: int, low: float, high: float, dtype: torch.dtype | None = None) -> torch.Tensor:
        values = torch.rand(shape, generator=self.generator, dtype=torch.float64) * (high - low) + low
        return values.to(dtype or self.dtype)

    def integers(self, *shape: int, below: int) -> torch.Tensor:
        return torch.randint(below, shape, generator=self.generator)

    def distinct(self, count: int, below: int) -> torch.Tensor:
        return torch.randperm(below, generator=self.generator)[:count]

    def weight(self, rows: int, columns: int) -> torch.Tensor:
        return self.floats(rows, columns, scale=columns**-0.5)

    def scales(self, rows: int, groups: int, columns: int, steps: int, dtype: torch.dtype) -> torch.Tensor:
        """Of levels up to `steps`, so that a row of `columns` keeps the size of what it multiplies."""
        return self.uniform(rows, groups, low=0.5, high=1.5, dtype=torch.float64).div(steps * columns**0.5).to(dtype)

    def vector(self, length: int) -> torch.Tensor | None:
        return self.floats(length, scale=0.3) if self.bias else None

    def norm_weight(self, length: int) -> torch.Tensor:
        return self.uniform(length, low=0.5, high=1.5)

    def halves(self, rows: int, width: int) -> Args:
        if self.strided:
            return tuple(self.floats(rows, 2 * width).chunk(2, dim=-1))
        return self.floats(rows, width), self.floats(rows, width)

    def two(self) -> Args:
        """Two of [tokens, hidden]."""
        return self.floats(self["tokens"], self["hidden"]), self.floats(self["tokens"], self["hidden"])

    def logits(self) -> torch.Tensor:
        return self.floats(self["rows"], self["vocab"], scale=3.0, dtype=torch.float32)

    def heads(self, tokens: int) -> Args:
        """q, k and v [tokens, heads, head_dim]."""
        counts = (self["heads"], self["kv_heads"], self["kv_heads"])
        if self.strided:
            return tuple(self.floats(tokens, sum(counts), self["head_dim"]).split(counts, dim=1))
        return tuple(self.floats(tokens, count, self["head_dim"]) for count in counts)

    def table(self) -> torch.Tensor:
        rotary = self["rotary_dim"] or self["head_dim"]
        frequencies = 10000.0 ** (-torch.arange(0, rotary, 2, dtype=torch.float64) / rotary)
        turns = torch.outer(torch.arange(self["positions"], dtype=torch.float64), frequencies)
        return torch.cat((turns.cos(), turns.sin()), dim=-1).float()

    def caches(self) -> Args:
        shape = (self["pages"], self["page_size"], self["kv_heads"], self["head_dim"])
        return self.floats(*shape), self.floats(*shape)

    def step(self) -> Step:
        """Decode and prefill rows as the sizes say."""
        rows = self._rows()
        return random_step(self.generator, self["page_size"], self["pages"], *rows, vocab=self["vocab"])

    def written(self) -> Step:
        """`tokens` first tokens of as many sequences, so that their slots lie all over the pool."""
        pages = self.distinct(self["tokens"], self["pages"]).tolist()
        step = random_step(self.generator, self["page_size"], self["tokens"], [1] * self["tokens"], [])
        at = self.integers(self["tokens"], below=self["page_size"])
        return replace(
            step,
            positions=self.integers(self["tokens"], below=self["positions"]),
            groups=(
                Paged(
                    torch.tensor(pages, dtype=torch.int32).unsqueeze(1),
                    torch.tensor(pages, dtype=torch.int64) * self["page_size"] + at,
                ),
            ),
        )

    def looked_up(self) -> Step:
        """`tokens` tokens of one sequence at random places, of which `rows` become logits."""
        tokens, rows = self["tokens"], self["rows"]
        size = self["page_size"]
        step = random_step(self.generator, size, -(-tokens // size), [], [(tokens, tokens)], vocab=self["vocab"])
        return replace(
            step,
            positions=self.integers(tokens, below=self["positions"]),
            logit_rows=self.integers(rows, below=max(1, tokens)),
        )

    def slotted_step(self) -> Step:
        """Rows as those of `step`, each with a slot of its own and without pages."""
        rows = self._rows()
        step = random_step(self.generator, 1, _NO_LIMIT, *rows, vocab=self["vocab"], groups=0)
        return replace(step, groups=(Slots(self.distinct(step.rows, self["slots"])),))

    def slots(self, step: Step, *shape: int, scale: float = 1.0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """States of that shape: numbers of `dtype` where a row goes on, zeros where one begins, in float32.

        Everywhere else: not a number.
        """
        held = torch.full((self["slots"], *shape), torch.nan)
        rows = zip(step.slotted(0).slots.tolist(), step.query_lens_host, step.context_lens_host, strict=True)
        for slot, length, context in rows:
            held[slot] = self.floats(*shape, scale=scale, dtype=dtype).float() if length < context else 0.0
        return held if self.dtype != torch.float64 else held.double()

    def _rows(self) -> tuple[list[int], list[tuple[int, int]]]:
        """The contexts of decode rows, and (queries, context) of prefill rows."""
        decode = [self._context(1) for _ in range(self["decode_rows"])]
        prefill = []
        for row in range(self["prefill_rows"]):
            length = 1 + int(self.integers(1, below=self["context_max"]))
            prefill.append((length, length if row % 2 else self._context(length)))
        return decode, prefill

    def _context(self, least: int) -> int:
        least = max(least, self["context_min"])
        return least + int(self.integers(1, below=self["context_max"] + 1 - least))

    def poisoned(self, step: Step) -> Args:
        """Caches that hold numbers where the step's tokens are and not-a-number everywhere else."""
        outside = self._outside(step).view(self["pages"], self["page_size"], 1, 1)
        return tuple(cache.masked_fill_(outside, torch.nan) for cache in self.caches())

    def latents(self) -> torch.Tensor:
        """A cache of latent vectors."""
        return self.floats(self["pages"], self["page_size"], self["rank"] + self["rope_dim"])

    def poisoned_latents(self, step: Step) -> torch.Tensor:
        """The same with not-a-number where none of the step's tokens are."""
        outside = self._outside(step).view(self["pages"], self["page_size"], 1)
        return self.latents().masked_fill_(outside, torch.nan)

    def _outside(self, step: Step) -> torch.Tensor:
        """Which slots hold no token of the step."""
        held = torch.zeros(self["pages"] * self["page_size"], dtype=torch.bool)
        table = step.paged(0).page_table
        for row, context in enumerate(step.context_lens_host):
            at = torch.arange(context)
            held[table[row].long()[at // step.page_size] * step.page_size + at % step.page_size] = True
        return ~held


def random_step(
    generator: torch.Generator,
    page_size: int,
    pages: int,
    decode: Sequence[int],
    prefill: Sequence[tuple[int, int]],
    *,
    vocab: int = DIMENSIONS["vocab"],
    groups: int = 1,
) -> Step:
    """A step over scattered pages: `decode` holds contexts, `prefill` (queries, context) pairs.

    Args:
        generator: of ids and pages.
        page_size: tokens per page.
        pages: of the pool.
        decode: the decode rows.
        prefill: the prefill rows.
        vocab: ids are below.
        groups: of paged states, each with a page table of its own.

    Raises:
        ValueError: the contexts need more pages than there are.
    """
    contexts = (*decode, *(context for _, context in prefill))
    lengths = (*(1 for _ in decode), *(length for length, _ in prefill))
    counts = [-(-context // page_size) for context in contexts]
    if sum(counts) > pages:
        message = f"{sum(counts)} pages are needed, there are {pages}"
        raise ValueError(message)
    spans = [(context - length, context) for length, context in zip(lengths, contexts, strict=True)]
    positions = [position for span in spans for position in range(*span)]
    starts = torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32)
    return Step(
        token_ids=torch.randint(vocab, (len(positions),), generator=generator),
        positions=torch.tensor(positions, dtype=torch.int64),
        query_start=starts,
        context_lens=torch.tensor(contexts, dtype=torch.int32),
        logit_rows=(starts[1:] - 1).long(),
        groups=tuple(_scattered(generator, page_size, pages, counts, spans) for _ in range(groups)),
        page_size=page_size,
        decode_rows=len(decode),
        query_lens_host=lengths,
        context_lens_host=contexts,
    )


def _scattered(
    generator: torch.Generator, page_size: int, pages: int, counts: Sequence[int], spans: Sequence[tuple[int, int]]
) -> Paged:
    """So many pages for each row in no order, and the slots of its new tokens."""
    order = torch.randperm(pages, generator=generator).tolist()
    table = torch.zeros(len(counts), max(counts, default=0), dtype=torch.int32)
    slots: list[int] = []
    for row, (count, span) in enumerate(zip(counts, spans, strict=True)):
        mine, order = order[:count], order[count:]
        table[row, :count] = torch.tensor(mine, dtype=torch.int32)
        slots += [mine[at // page_size] * page_size + at % page_size for at in range(*span)]
    return Paged(table, torch.tensor(slots, dtype=torch.int64))


__all__ = ["DIMENSIONS", "EPS", "Args", "Case", "random_step"]
