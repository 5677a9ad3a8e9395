"""Random valid arguments for every catalogue op. Knows schemas and layouts; knows no kernel."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from anychip_sdk.ops.base import CATALOGUE
from anychip_sdk.ops.quantized import BLOCK, PACKED
from anychip_sdk.step import Paged, Step

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
    "block": BLOCK,  # 0: the whole row
}
EPS = 1e-6
Args = tuple[Any, ...]


def random_case(
    op: str, dtype: torch.dtype, seed: int, *, strided: bool = False, bias: bool = True, **dimensions: int
) -> Args:
    """Arguments in the catalogue's order, the same for the same seed.

    Args:
        op: the catalogue's name.
        dtype: the op's own, "T"; what the schema fixes (ids, tables, logits) has the schema's.
        seed: of everything random.
        strided: queries, keys, values, gate and up are views of one wider tensor, as a fused projection gives them.
        bias: optional vectors (biases, norms of q and k) are given.
        dimensions: sizes other than DIMENSIONS.

    Raises:
        KeyError: the op is unknown or has no case.
        ValueError: a dimension that does not exist.
    """
    unknown = sorted(set(dimensions) - set(DIMENSIONS))
    if unknown:
        message = f"unknown dimensions {', '.join(unknown)}; known: {', '.join(DIMENSIONS)}"
        raise ValueError(message)
    case = _Case(dtype, seed, strided, bias, {**DIMENSIONS, **dimensions})
    return _MAKERS[CATALOGUE[op].name](case)


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


def chunk_step(
    token_ids: Sequence[int], start: int, count: int, pages: Sequence[int], page_size: int, groups: int = 1
) -> Step:
    """Tokens start .. start+count-1 of one text as a step that wants the logits of each; on the host.

    Args:
        token_ids: the text.
        start: of the chunk; what is before it is in the pages.
        count: tokens of the chunk.
        pages: of the text, in order.
        page_size: tokens per page.
        groups: of paged states, which share the page table.
    """
    places = range(start, start + count)
    table = torch.tensor([list(pages[: -(-(start + count) // page_size)])], dtype=torch.int32)
    paged = Paged(table, torch.tensor([pages[at // page_size] * page_size + at % page_size for at in places]))
    return Step(
        token_ids=torch.tensor(list(token_ids[start : start + count])),
        positions=torch.tensor(list(places)),
        query_start=torch.tensor([0, count], dtype=torch.int32),
        context_lens=torch.tensor([start + count], dtype=torch.int32),
        logit_rows=torch.arange(count),
        groups=(paged,) * groups,
        page_size=page_size,
        decode_rows=int(count == 1),
        query_lens_host=(count,),
        context_lens_host=(start + count,),
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


class _Case:
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
        decode = [self._context(1) for _ in range(self["decode_rows"])]
        prefill = []
        for row in range(self["prefill_rows"]):
            length = 1 + int(self.integers(1, below=self["context_max"]))
            prefill.append((length, length if row % 2 else self._context(length)))
        return random_step(self.generator, self["page_size"], self["pages"], decode, prefill, vocab=self["vocab"])

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

    def _context(self, least: int) -> int:
        least = max(least, self["context_min"])
        return least + int(self.integers(1, below=self["context_max"] + 1 - least))

    def poisoned(self, step: Step) -> Args:
        """Caches that hold numbers where the step's tokens are and not-a-number everywhere else."""
        held = torch.zeros(self["pages"] * self["page_size"], dtype=torch.bool)
        table = step.paged(0).page_table
        for row, context in enumerate(step.context_lens_host):
            at = torch.arange(context)
            held[table[row].long()[at // step.page_size] * step.page_size + at % step.page_size] = True
        outside = ~held.view(self["pages"], self["page_size"], 1, 1)
        return tuple(cache.masked_fill_(outside, torch.nan) for cache in self.caches())


def _attention(case: _Case) -> Args:
    step = case.step()
    q = case.heads(step.tokens)[0]
    return q, *case.poisoned(step), step, case["head_dim"] ** -0.5, case["window"] or None, 0


def _mha(case: _Case) -> Args:
    step = case.step()
    rows = (case["heads"] + 2 * case["kv_heads"]) * case["head_dim"]
    norms = tuple(case.norm_weight(case["head_dim"]) if case.bias else None for _ in range(2))
    return (
        case.floats(step.tokens, case["hidden"]),
        case.weight(rows, case["hidden"]),
        case.vector(rows),
        *norms,
        EPS,
        case.table(),
        *case.poisoned(step),
        step,
        case.weight(case["hidden"], case["heads"] * case["head_dim"]),
        case.vector(case["hidden"]),
        case["heads"],
        case["head_dim"] ** -0.5,
        case["window"] or None,
        0,
    )


def _kv_write(case: _Case) -> Args:
    return *case.heads(case["tokens"])[1:], *case.caches(), case.written(), 0


def _rope(case: _Case) -> Args:
    return *case.heads(case["tokens"])[:2], case.looked_up(), case.table()


def _qk_norm_rope(case: _Case) -> Args:
    q, k, step, table = _rope(case)
    return q, k, case.norm_weight(case["head_dim"]), case.norm_weight(case["head_dim"]), EPS, step, table


def _ffn(case: _Case) -> Args:
    gate_up, down = (2 * case["inner"], case["hidden"]), (case["hidden"], case["inner"])
    x = case.floats(case["tokens"], case["hidden"])
    return x, case.weight(*gate_up), case.vector(gate_up[0]), case.weight(*down), case.vector(down[0])


def _int8(case: _Case, rows: int, columns: int) -> Args:
    """A weight of whole numbers and its scales, one a row or one for every 32 neighbours."""
    groups = columns // PACKED if columns % PACKED == 0 and case.integers(1, below=2) else 1
    levels = (case.integers(rows, columns, below=255) - 127).to(torch.int8)
    return levels, case.scales(rows, groups, columns, 127, torch.float32)


def _linear_int8(case: _Case) -> Args:
    x = case.floats(case["tokens"], case["hidden"])
    return x, *_int8(case, case["out"], case["hidden"]), case.vector(case["out"]), case["block"]


def _linear_int4(case: _Case) -> Args:
    """`hidden` rounded up to whole packs of values; a minimum where optional vectors are given."""
    columns = -(-case["hidden"] // PACKED) * PACKED
    groups = columns // (4 * PACKED) if columns % (4 * PACKED) == 0 and case.integers(1, below=2) else columns // PACKED
    scale = case.scales(case["out"], groups, columns, 8, torch.float16)
    return (
        case.floats(case["tokens"], columns),
        case.integers(case["out"], columns // 2, below=256).to(torch.uint8),
        scale,
        -8 * scale * case.uniform(*scale.shape, low=0.5, high=1.5, dtype=torch.float16) if case.bias else None,
        case.vector(case["out"]),
    )


def _logits(case: _Case) -> torch.Tensor:
    return case.floats(case["rows"], case["vocab"], scale=3.0, dtype=torch.float32)


def _sample(case: _Case) -> Args:
    rows = case["rows"]
    off = torch.arange(rows)
    return (
        _logits(case),
        case.uniform(rows, low=0.2, high=1.5, dtype=torch.float32),
        case.integers(rows, below=case["vocab"]) * (off % 2),
        torch.where(off % 3 == 0, 1.0, case.uniform(rows, low=0.3, high=1.0, dtype=torch.float32)),
        torch.where(off % 4 == 0, 0.0, case.uniform(rows, low=0.0, high=0.2, dtype=torch.float32)),
        case.uniform(rows, low=0.0, high=1.0, dtype=torch.float64),
    )


def _penalties(case: _Case) -> Args:
    chosen = (case["rows"] + 1) // 2
    ids = [case.integers(chosen, length, below=case["vocab"] + 1) - 1 for length in (7, 11)]
    strengths = [case.uniform(chosen, low=low, high=2.0, dtype=torch.float32) for low in (0.5, -2.0, -2.0)]
    return _logits(case), case.distinct(chosen, case["rows"]), *ids, *strengths


def _bias(case: _Case) -> Args:
    pairs = case.distinct(case["tokens"], case["rows"] * case["vocab"])
    bias = case.floats(case["tokens"], dtype=torch.float32)
    return _logits(case), pairs // case["vocab"], pairs % case["vocab"], bias


def _two(case: _Case) -> Args:
    return case.floats(case["tokens"], case["hidden"]), case.floats(case["tokens"], case["hidden"])


_MAKERS: Mapping[str, Callable[[_Case], Args]] = {
    "add": _two,
    "add_rms_norm": lambda case: (*_two(case), case.norm_weight(case["hidden"]), EPS),
    "apply_logit_bias": _bias,
    "apply_penalties": _penalties,
    "argmax": lambda case: (_logits(case),),
    "embedding": lambda case: (case.looked_up(), case.weight(case["vocab"], case["hidden"])),
    "ffn": _ffn,
    "gelu": lambda case: _two(case)[:1],
    "gelu_mul": lambda case: case.halves(case["tokens"], case["inner"]),
    "kv_write": _kv_write,
    "linear": lambda case: (
        case.floats(case["tokens"], case["hidden"]),
        case.weight(case["out"], case["hidden"]),
        case.vector(case["out"]),
    ),
    "linear_int4": _linear_int4,
    "linear_int8": _linear_int8,
    "lm_head": lambda case: (case.floats(case["rows"], case["hidden"]), case.weight(case["vocab"], case["hidden"])),
    "lm_head_int8": lambda case: (
        case.floats(case["rows"], case["hidden"]),
        *_int8(case, case["vocab"], case["hidden"]),
        case["block"],
    ),
    "mha": _mha,
    "mul": _two,
    "paged_attention": _attention,
    "qk_norm_rope": _qk_norm_rope,
    "rms_norm": lambda case: (*_two(case)[:1], case.norm_weight(case["hidden"]), EPS),
    "rope": _rope,
    "sample": _sample,
    "select_rows": lambda case: (_two(case)[0], case.looked_up()),
    "silu": lambda case: _two(case)[:1],
    "silu_mul": lambda case: case.halves(case["tokens"], case["inner"]),
}

__all__ = ["DIMENSIONS", "chunk_step", "random_case", "random_step"]
