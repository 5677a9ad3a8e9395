"""Pieces of programs run natively against the interpreter, bit for bit, and what is refused. Knows no platform."""

from dataclasses import replace

import pytest
import torch

from anychip_cpu import host, native
from anychip_cpu.programs import compiled, refusals
from anychip_sdk.program import Constant
from anychip_sdk.step import Paged, Slots
from support.native_decoder import (
    EPS,
    HEAD_DIM,
    HIDDEN,
    PAGE,
    PAGES,
    STEP,
    Decoder,
    assert_equal,
    both_ways,
    context,
    decoder,
)

LIBRARY = native.library()
BUILT = pytest.mark.skipif(isinstance(LIBRARY, native.Absent), reason=f"native kernels: {LIBRARY}")


def reasons(program):
    """The refused calls' ops and why."""
    found = zip(program.calls, refusals(program), strict=True)
    return {call.op: reason for call, reason in found if reason is not None}


def spans(program):
    """The runs of calls that are not refused."""
    marks = [reason is None for reason in refusals(program)]
    edges = [at for at in range(len(marks) + 1) if (marks[at - 1] if at else False) != (at < len(marks) and marks[at])]
    return list(zip(edges[::2], edges[1::2], strict=True))


@BUILT
@pytest.mark.parametrize("dtype", list(native.DTYPES))
def test_a_whole_forward_gives_what_the_interpreter_gives(dtype):
    if dtype == torch.bfloat16 and "amx_bf16" in host.instruction_sets():
        pytest.skip("nothing is compiled in bfloat16 on AMX")
    made, program = decoder(dtype=dtype)
    assert reasons(program) == {}
    assert_equal(both_ways(made, program, 0, len(program.calls)))


@BUILT
def test_every_piece_gives_what_the_interpreter_gives():
    made, program = decoder()
    count, ran = len(program.calls), 0
    for start in range(count):
        for stop in range(start + 1, count + 1, 1 + start % 3):
            found = both_ways(made, program, start, stop)
            piece = program.piece(start, stop)
            if found is not None:
                ran += 1
                assert_equal(found)
            elif "paged_attention" in reasons(piece):
                assert any(name.startswith("kv_write") for name in piece.inputs)
            else:
                assert all(call.is_view for call in piece.calls)
    assert ran > count


@BUILT
def test_a_call_without_an_instruction_costs_itself_alone():
    made, program = decoder(between=lambda made, x: made.op("mul", x, x))
    assert reasons(program) == {"mul": "mul has no instruction: the library has no kernel for it"}
    assert [stop - start for start, stop in spans(program)] == [15, len(program.calls) - 16]
    for start, stop in spans(program):
        assert_equal(both_ways(made, program, start, stop))


@BUILT
def test_a_kernel_of_another_provider_costs_itself_alone():
    made, program = decoder(rope={"provider": "reference"})
    assert reasons(program) == {"qk_norm_rope": "it runs on reference's kernel reference"}
    for start, stop in spans(program):
        assert_equal(both_ways(made, program, start, stop))


@BUILT
def test_queries_and_keys_are_turned_natively_where_their_write_is_not():
    made, program = decoder(write={"provider": "reference"})
    found = reasons(program)
    assert found["kv_write"] == "it runs on reference's kernel reference"
    assert "qk_norm_rope" not in found
    assert found["paged_attention"] == "its caches come from a call that is not compiled"
    for start, stop in spans(program):
        assert_equal(both_ways(made, program, start, stop))


@BUILT
def test_an_op_computed_in_another_dtype_is_refused():
    _, program = decoder(rope={"compute_dtype": torch.float16})
    assert reasons(program) == {"qk_norm_rope": "it is computed in float16"}


@BUILT
def test_caches_of_another_dtype_are_refused_with_what_reads_and_writes_them():
    _, program = decoder(kv_dtype=torch.float16)
    assert set(reasons(program)) == {"kv_write", "paged_attention"}


@BUILT
def test_what_is_read_again_is_not_turned_in_place():
    made = Decoder()
    x, _ = made.start()
    q, k, v = made.heads(0, x)
    turned_q, turned_k = made.turned(0, q, k)
    caches = made.op("kv_write", turned_k, v, *made.caches(0), STEP, 0)
    mixed = made.op("paged_attention", turned_q, *caches, STEP, 0.25, None, 0, None, None)
    again = made.op("paged_attention", q, *caches, STEP, 0.25, None, 0, None, None)
    program = made.program(mixed, again, turned_q, turned_k, k)
    assert_equal(both_ways(made, program, 0, len(program.calls)))


@BUILT
def test_queries_attended_with_before_their_keys_are_written_are_turned_by_then():
    made = Decoder()
    x, _ = made.start()
    q, k, v = made.heads(0, x)
    caches = made.op("kv_write", k, v, *made.caches(0), STEP, 0)
    turned_q, turned_k = made.turned(0, q, k)
    first = made.op("paged_attention", turned_q, *caches, STEP, 0.25, None, 0, None, None)
    caches = made.op("kv_write", turned_k, v, *caches, STEP, 0)
    second = made.op("paged_attention", turned_q, *caches, STEP, 0.25, None, 0, None, None)
    program = made.program(first, second)
    assert reasons(program) == {}
    assert_equal(both_ways(made, program, 0, len(program.calls)))


@BUILT
def test_each_group_of_states_has_pages_of_its_own():
    made, program = decoder(groups=2)
    tables = [entry.page_table for entry in made.step.groups]
    assert not torch.equal(*tables)
    assert_equal(both_ways(made, program, 0, len(program.calls)))
    swapped = replace(made.step, groups=made.step.groups[::-1])
    assert_equal(both_ways(made, program, 0, len(program.calls), swapped))


@BUILT
def test_groups_that_keep_slots_stand_beside_those_with_pages():
    made, program = decoder()
    slots = Slots(torch.arange(made.step.rows))
    step = replace(made.step, groups=(*made.step.groups, slots))
    assert_equal(both_ways(made, program, 0, len(program.calls), step))


@BUILT
def test_a_group_that_keeps_slots_is_not_read_as_pages():
    made, program = decoder()
    run = compiled(program, context(made, program))
    with pytest.raises(IndexError, match="out of range"):
        run(replace(made.step, groups=(Slots(torch.arange(made.step.rows)),)))
    with pytest.raises(IndexError, match="out of range"):
        run(replace(made.step, groups=()))


@BUILT
def test_queries_are_turned_in_a_model_without_states():
    made = Decoder()
    x, _ = made.start()
    q, k, _ = made.heads(0, x)
    program = made.program(*made.turned(0, q, k))
    assert_equal(both_ways(made, program, 0, len(program.calls), replace(made.step, groups=())))


@BUILT
@pytest.mark.parametrize("group", [0, 1])
def test_a_slot_out_of_any_groups_range_is_refused_before_anything_is_written(group):
    made, program = decoder(groups=2)
    run = compiled(program, context(made, program))
    groups = list(made.step.groups)
    wrong = groups[group].slots.index_fill(0, torch.tensor([2]), PAGES * PAGE)
    groups[group] = Paged(groups[group].page_table, wrong)
    before = [state.clone() for state in made.states]
    with pytest.raises(IndexError, match="out of range"):
        run(replace(made.step, groups=tuple(groups)))
    assert all(map(torch.equal, before, made.states))


@BUILT
def test_a_steps_own_embeddings_and_long_steps_are_left_to_generated_python():
    made, program = decoder()
    run = compiled(program, context(made, program))
    seen = []
    run.generated = lambda step, *inputs: seen.append(step)
    own = replace(made.step, embeddings=torch.zeros(made.step.tokens, HIDDEN))
    run(own)
    run.program.tokens = made.step.tokens - 1
    run(made.step)
    assert seen == [own, made.step]


@BUILT
def test_outputs_are_the_callers_own():
    made, program = decoder()
    piece = program.piece(0, 5)
    run = compiled(piece, context(made, piece))
    first = run(made.step)
    kept = [one.clone() for one in first]
    run(replace(made.step, token_ids=made.step.token_ids.flip(0)))
    assert all(map(torch.equal, first, kept))


@BUILT
def test_one_program_makes_logits_once():
    made = Decoder()
    x, _ = made.start()
    first = made.logits(x)
    rows = made.op("select_rows", x, STEP, rows="logits")
    weights = Constant("head.weight"), Constant("head.scale")
    second = made.op("lm_head_int8", rows, *weights, 32, rows="logits")
    program = made.program(first, second)
    assert refusals(program)[-1] == "a second product to logits"


@BUILT
def test_logits_are_read_outside_of_the_program_that_makes_them():
    made = Decoder()
    x, _ = made.start()
    logits = made.logits(x)
    program = made.program(made.op("add", logits, logits, rows="logits"))
    assert reasons(program) == {"add": "it reads logits"}
    for start, stop in spans(program):
        assert_equal(both_ways(made, program, start, stop))


@BUILT
def test_heads_are_normalised_and_not_summed():
    made = Decoder()
    x, _ = made.start()
    q, k, _ = made.heads(0, x)
    normed = made.op("rms_norm", q, made.norm("own", HEAD_DIM), EPS)
    summed = made.op("add", k, k)
    program = made.program(normed, summed)
    assert reasons(program) == {"add": "a norm or sum of heads or of parts of rows"}


@BUILT
def test_views_across_rows_are_refused():
    made = Decoder()
    x, _ = made.start()
    program = made.program(made.view("flatten", x, 0), *made.view("split", x, (10, 5), 0), made.view("item", x, 0))
    assert list(reasons(program)) == ["flatten", "split", "item"]


@BUILT
def test_bfloat16_is_left_to_torch_on_amx(monkeypatch):
    monkeypatch.setattr(host, "instruction_sets", lambda: ("amx_bf16",))
    made, program = decoder(dtype=torch.bfloat16)
    assert set(refusals(program)) == {"prefill rows go to torch on AMX bfloat16"}
    assert compiled(program, context(made, program)) is None
    assert reasons(decoder()[1]) == {}


def test_without_a_library_every_call_is_refused(monkeypatch):
    absent = native.Absent("not built")
    monkeypatch.setattr(native, "library", lambda: absent)
    made, program = decoder()
    assert set(refusals(program)) == {"native kernels are not built"}
    assert compiled(program, context(made, program)) is None


@BUILT
def test_float64_has_no_native_kernels():
    made = Decoder(dtype=torch.float64)
    assert set(refusals(made.program(*made.start()))) == {"float64 has no native kernels"}


@BUILT
def test_a_constant_that_no_instruction_can_read_leaves_the_piece_to_generated_python():
    made, program = decoder()
    made.values["0.v"] = made.values["0.v"].transpose(1, 2).contiguous().transpose(1, 2)
    assert compiled(program, context(made, program)) is None
