"""The tensors of a step against a plain construction, token by token. Knows no model."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from anychip.engine.batch import Batch, Row
from anychip.engine.inputs import InputBuilder
from anychip.engine.page_rows import PageTable
from anychip.engine.request import GenerateRequest
from anychip.engine.sequence import Sequence
from anychip.engine.step_plan import Draw, RowPlan, Sampling, StepPlan
from anychip.engine.step_planner import StepPlanner
from anychip_sdk.state import StateGroup, StateSpec, StateTensor
from anychip_sdk.step import StepLimits

KV = StateSpec("kv", "paged", (StateTensor("k", (1, 2)), StateTensor("v", (1, 2))))
DRAW = Draw(1, 0, Sampling(0))
GROUPS = (StateGroup(KV, 2), StateGroup(replace(KV, window=8), 1))


def build(size, plan, sampled=None):
    """The step of a plan whose runner knows nothing yet."""
    tables = []
    for row in plan.rows:
        tables.append(PageTable())
        tables[-1].update(row.pages_from, row.pages)
    return InputBuilder(size, GROUPS, StepLimits(400, 8, 50, torch.device("cpu"))).build(plan, tables, sampled)


@st.composite
def batches(draw):
    """(page size, batch): decodes first, then chunks, over pages in any order."""
    size = draw(st.sampled_from([1, 2, 3, 16]))
    decodes = draw(st.integers(0, 4))
    chunks = draw(st.integers(0 if decodes else 1, 4))
    rows = []
    free = draw(st.permutations(range(256)))
    for number in range(decodes + chunks):
        length = draw(st.integers(1, 40))
        sequence = Sequence(GenerateRequest(f"r{number}", [draw(st.integers(0, 99)) for _ in range(length)]))
        count = -(-length // size) + draw(st.integers(0, 2))  # it may hold pages beyond its tokens
        sequence.pages, free = list(free[:count]), free[count:]
        start = length - 1 if number < decodes else draw(st.integers(0, length - 1))
        end = length if number < decodes else draw(st.integers(start + 1, length))
        samples = draw(st.integers(1, 3)) if end == length else 0
        samples = samples if number >= decodes else 1
        rows.append(Row(sequence, start, end - start, samples))
        sequence.forks = [Sequence(sequence.request, index) for index in range(1, samples)]
    return size, Batch(tuple(rows), decodes)


@settings(max_examples=80, deadline=None)
@given(batches())
def test_a_step_equals_a_plain_construction(drawn):
    size, batch = drawn
    step = build(size, StepPlanner().plan(batch))
    tokens, positions, slots, logit_rows, starts = [], [], [], [], [0]
    for row in batch.rows:
        for place in range(row.start, row.start + row.count):
            tokens.append(row.sequence.tokens[place])
            positions.append(place)
            slots.append(row.sequence.pages[place // size] * size + place % size)
        starts.append(len(tokens))
        if row.samples:
            logit_rows.append(len(tokens) - 1)
    assert step.token_ids.tolist() == tokens
    assert step.positions.tolist() == positions
    assert step.paged(0) is step.paged(1)
    assert step.paged(0).slots.tolist() == slots
    assert step.logit_rows.tolist() == logit_rows
    assert step.query_start.tolist() == starts
    assert step.context_lens.tolist() == [row.end for row in batch.rows]
    assert step.query_lens_host == tuple(row.count for row in batch.rows)
    assert step.context_lens_host == tuple(row.end for row in batch.rows)
    assert (step.decode_rows, step.page_size) == (batch.decode_rows, size)


@settings(max_examples=60, deadline=None)
@given(batches())
def test_the_page_table_leads_every_earlier_token_to_its_page(drawn):
    size, batch = drawn
    table = build(size, StepPlanner().plan(batch)).paged(1).page_table
    for line, row in zip(table.tolist(), batch.rows, strict=True):
        used = -(-row.end // size)
        assert line[:used] == row.sequence.pages[:used]
        assert not any(line[used:])
    assert table.shape[1] == max(-(-row.end // size) for row in batch.rows)


@settings(max_examples=80, deadline=None)
@given(st.data(), st.sampled_from([1, 2, 3, 16]), st.integers(1, 5), st.integers(1, 40))
def test_a_continued_step_is_the_step_that_a_whole_plan_makes(data, size, rows, steps):
    limits = StepLimits(400, 8, 50, torch.device("cpu"))
    continued, whole = InputBuilder(size, GROUPS, limits), InputBuilder(size, GROUPS, limits)
    pages = iter(data.draw(st.permutations(range(400))))
    starts = data.draw(st.lists(st.integers(0, 30), min_size=rows, max_size=rows))
    tables = [PageTable() for _ in starts]

    def plan(later):
        for table, start in zip(tables, starts, strict=True):
            while len(table.pages) * size < start + later + 1:
                table.pages.append(next(pages))
        told = [RowPlan(row, start + later, 1, 0, [], [], row, (DRAW,)) for row, start in enumerate(starts)]
        return StepPlan(later, tuple(told), rows)

    continued.build(plan(0), tables, torch.arange(rows))
    for later in range(1, steps + 1):
        expected = whole.build(plan(later), tables, torch.arange(rows) + later)
        step = continued.advance(tables, torch.arange(rows) + later)
        for name in ("token_ids", "positions", "query_start", "context_lens", "logit_rows"):
            assert torch.equal(getattr(step, name), getattr(expected, name)), name
            assert getattr(step, name).dtype == getattr(expected, name).dtype
        assert torch.equal(step.paged(0).page_table, expected.paged(0).page_table)
        assert torch.equal(step.paged(0).slots, expected.paged(0).slots)
        assert step.paged(0) is step.paged(1)
        assert (step.query_lens_host, step.context_lens_host) == (expected.query_lens_host, expected.context_lens_host)
        assert (step.decode_rows, step.page_size) == (rows, size)


def test_only_a_step_of_decodes_can_be_continued():
    builder = InputBuilder(16, GROUPS, StepLimits(400, 8, 50, torch.device("cpu")))
    table = PageTable()
    table.update(0, [3])
    with pytest.raises(ValueError, match="decodes alone"):
        builder.advance([table], torch.zeros(1, dtype=torch.int64))
    builder.build(StepPlan(1, (RowPlan(1, 0, 2, 0, [3], [5, 6]),), 0), [table], None)
    with pytest.raises(ValueError, match="decodes alone"):
        builder.advance([table], torch.zeros(1, dtype=torch.int64))


def test_dtypes_are_what_the_ops_say():
    sequence = Sequence(GenerateRequest("r", [1, 2, 3]))
    sequence.pages = [4]
    step = build(16, StepPlanner().plan(Batch((Row(sequence, 0, 2, 0),), 0)))
    assert {step.token_ids.dtype, step.positions.dtype, step.paged(0).slots.dtype} == {torch.int64}
    assert {step.query_start.dtype, step.context_lens.dtype, step.paged(0).page_table.dtype} == {torch.int32}
    assert step.logit_rows.shape == (0,)
    assert step.logit_rows.dtype == torch.int64


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 4), st.integers(0, 2), st.integers(0, 2))
def test_tokens_sampled_on_the_device_stand_where_rows_go_on_from_them(decodes, ahead, chunks):
    """Decodes have one token, the sampled one; rows that verify guesses have more behind it."""
    parents = [RowPlan(number, 3, 1, 0, [number], [], number) for number in range(decodes)]
    parents += [RowPlan(10 + number, 3, 3, 0, [10 + number], [40, 41], 10 + number) for number in range(ahead)]
    others = [RowPlan(20 + number, 0, 2, 0, [20 + number], [50, 51]) for number in range(chunks)]
    if not parents + others:
        return
    sampled = torch.arange(60, 60 + len(parents)) if parents else None
    step = build(16, StepPlan(1, (*parents, *others), decodes), sampled)
    expected, number = [], 60
    for row in (*parents, *others):
        expected += row.tokens if row.parent is None else [number, *row.tokens]
        number += row.parent is not None
    assert step.token_ids.tolist() == expected
