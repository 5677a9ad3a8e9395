"""The tensors of a step against a plain construction, token by token. Knows no model."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from anychip.engine.batch import Batch, Row
from anychip.engine.inputs import InputBuilder
from anychip.engine.request import GenerateRequest
from anychip.engine.sequence import Sequence


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
        rows.append(Row(sequence, start, end - start, samples if number >= decodes else 1))
    return size, Batch(tuple(rows), decodes)


@settings(max_examples=80, deadline=None)
@given(batches())
def test_inputs_equal_a_plain_construction(drawn):
    size, batch = drawn
    inputs = InputBuilder(size, torch.device("cpu")).build(batch)
    tokens, positions, slots, logit_rows, starts = [], [], [], [], [0]
    for row in batch.rows:
        for place in range(row.start, row.start + row.count):
            tokens.append(row.sequence.tokens[place])
            positions.append(place)
            slots.append(row.sequence.pages[place // size] * size + place % size)
        starts.append(len(tokens))
        if row.samples:
            logit_rows.append(len(tokens) - 1)
    assert inputs.token_ids.tolist() == tokens
    assert inputs.positions.tolist() == positions
    assert inputs.slots.tolist() == inputs.batch.slots.tolist() == slots
    assert inputs.logit_rows.tolist() == logit_rows
    assert inputs.batch.query_start.tolist() == starts
    assert inputs.batch.context_lens.tolist() == [row.end for row in batch.rows]
    assert inputs.batch.query_lens_host == tuple(row.count for row in batch.rows)
    assert inputs.batch.context_lens_host == tuple(row.end for row in batch.rows)
    assert (inputs.batch.decode_rows, inputs.batch.page_size) == (batch.decode_rows, size)


@settings(max_examples=60, deadline=None)
@given(batches())
def test_the_page_table_leads_every_earlier_token_to_its_page(drawn):
    size, batch = drawn
    table = InputBuilder(size, torch.device("cpu")).build(batch).batch.page_table
    for line, row in zip(table.tolist(), batch.rows, strict=True):
        used = -(-row.end // size)
        assert line[:used] == row.sequence.pages[:used]
        assert not any(line[used:])
    assert table.shape[1] == max(-(-row.end // size) for row in batch.rows)


def test_dtypes_are_what_the_ops_say():
    sequence = Sequence(GenerateRequest("r", [1, 2, 3]))
    sequence.pages = [4]
    inputs = InputBuilder(16, torch.device("cpu")).build(Batch((Row(sequence, 0, 2, 0),), 0))
    assert {inputs.token_ids.dtype, inputs.positions.dtype, inputs.slots.dtype} == {torch.int64}
    assert {inputs.batch.query_start.dtype, inputs.batch.context_lens.dtype, inputs.batch.page_table.dtype} == {
        torch.int32
    }
    assert inputs.logit_rows.shape == (0,)
    assert inputs.logit_rows.dtype == torch.int64
