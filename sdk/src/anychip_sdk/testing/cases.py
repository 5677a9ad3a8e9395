"""Random valid arguments for every catalogue op, and steps. Knows schemas; knows no kernel."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from anychip_sdk.ops import CATALOGUE
from anychip_sdk.ops.cases import DIMENSIONS, Args, Case, random_step
from anychip_sdk.step import Paged, Step


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
    case = Case(dtype, seed, strided, bias, {**DIMENSIONS, **dimensions})
    checks = CATALOGUE[op].checks
    if checks is None:
        message = f"op {op} has no case: its declaration has no checks"
        raise KeyError(message)
    return checks.case(case)


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


__all__ = ["DIMENSIONS", "chunk_step", "random_case", "random_step"]
