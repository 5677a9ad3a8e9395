"""Plans and results survive the wire without loss."""

from hypothesis import given
from hypothesis import strategies as st

from anychip.engine.request import LogProb
from anychip.engine.state_ops import ClearSlot, CopySlot
from anychip.engine.step_plan import (
    Continuation,
    Draw,
    Drawn,
    History,
    RowPlan,
    Sampling,
    StepPlan,
    StepResult,
    decode_plan,
    decode_result,
    encode,
)

ids = st.integers(0, 2**31 - 1)
numbers = st.integers(0, 2**40)
finite = st.floats(allow_nan=False)
samplings = st.builds(
    Sampling,
    seed=st.integers(0, 2**64 - 1),
    temperature=finite,
    top_k=ids,
    top_p=finite,
    min_p=finite,
    repetition_penalty=finite,
    presence_penalty=finite,
    frequency_penalty=finite,
    logit_bias=st.lists(st.tuples(ids, finite), max_size=3).map(tuple),
    min_tokens=ids,
    banned=st.lists(ids, max_size=3).map(tuple),
    logprobs=st.none() | ids,
)
histories = st.none() | st.builds(History, prompt=st.lists(ids, max_size=4), output=st.lists(ids, max_size=4))
draws = st.builds(Draw, sequence=numbers, step=numbers, sampling=samplings, history=histories)
rows = st.builds(
    RowPlan,
    sequence=numbers,
    start=numbers,
    count=numbers,
    pages_from=numbers,
    pages=st.lists(ids, max_size=4),
    tokens=st.lists(ids, max_size=4),
    parent=st.none() | numbers,
    draws=st.lists(draws, max_size=2).map(tuple),
    slot=st.integers(-1, 2**31 - 1),
)
state_ops = st.builds(ClearSlot, ids) | st.builds(CopySlot, ids, ids)
plans = st.builds(
    StepPlan,
    number=numbers,
    rows=st.lists(rows, max_size=3).map(tuple),
    decode_rows=numbers,
    copies=st.lists(st.tuples(ids, ids), max_size=3).map(tuple),
    state_ops=st.lists(state_ops, max_size=3).map(tuple),
    dropped=st.lists(numbers, max_size=3).map(tuple),
)
logprobs = st.builds(LogProb, logprob=finite, top=st.lists(st.tuples(ids, finite), max_size=3).map(tuple))
drawn = st.builds(
    Drawn, tokens=st.lists(ids, max_size=3).map(tuple), logprobs=st.lists(logprobs, max_size=3).map(tuple)
)
results = st.builds(StepResult, number=numbers, drawn=st.lists(drawn, max_size=3))


continuations = st.builds(Continuation, number=numbers, pages=st.lists(st.tuples(ids, ids), max_size=3).map(tuple))


@given(plans | continuations)
def test_a_plan_survives_the_wire(plan):
    assert decode_plan(encode(plan)) == plan


@given(results)
def test_a_result_survives_the_wire(result):
    assert decode_result(encode(result)) == result
