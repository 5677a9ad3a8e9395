"""Native programs against the generated Python, bit for bit. Knows tiny models; knows no instruction."""

from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch

from anychip_cpu import host, native
from anychip_cpu.kernels import dense
from anychip_cpu.programs import Compiled
from anychip_cpu.programs.program import Kind
from anychip_sdk.step import Paged, Step
from support.engines import (
    NO_FUSION,
    core_of,
    greedy,
    loaded,
    logits_of,
    make_recipe,
    random_prompts,
    run,
    sequence_step,
)
from support.family_models import make_family
from support.tiny_models import tiny_by_kind

BUILT = pytest.mark.skipif(isinstance(native.library(), native.Absent), reason="no native kernels")
DENSE = pytest.mark.skipif(dense.lack() is not None, reason=f"dense products are oneDNN's: {dense.lack()}")
KINDS = ("llama", "qwen2", "qwen3")
SETS = ("portable", "avx2", "avx512", "avx512_bf16")
#: bfloat16 is torch's where the processor multiplies it in tiles
COMPILED = ("float32", "float16", *(() if "amx_bf16" in host.instruction_sets() else ("bfloat16",)))
INT8 = {"dtype": "float32", "quantization": "int8"}
GATED_DELTA = {
    "hidden_size": 32, "head_dim": 16, "num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 64,
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 16,
    "layer_types": ["linear_attention", "full_attention"], "vocab_size": 512,
}  # fmt: skip
ALONE = "alone between calls that are not compiled"
CHUNKS = [20, 1, 1, 33, 1, 64]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return tiny_by_kind(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def model(tiny):
    with loaded(make_recipe(tiny("qwen3"), model=INT8)) as found:
        yield found


def pieces_of(model):
    """The native pieces of a model's forward, in order."""
    bound = model.forward.__self__.function.__globals__.values()
    return [one for one in bound if isinstance(one, Compiled)]


@contextmanager
def interpreted(model):
    """The same forward with all its pieces as generated Python."""
    programs = [piece.program for piece in pieces_of(model)]
    before = [program.tokens for program in programs]
    for program in programs:
        program.tokens = -1
    yield
    for program, tokens in zip(programs, before, strict=True):
        program.tokens = tokens


def both(model, chunks=CHUNKS):
    """Logits of the native pieces and of the generated Python, for the same tokens."""
    assert pieces_of(model)
    [prompt] = random_prompts(1, [sum(chunks)])
    got = logits_of(model, prompt, chunks)
    with interpreted(model):
        return got, logits_of(model, prompt, chunks)


def cuts(model):
    return {cut.op: cut.reason for cut in model.plan.pieces.cuts}


def step(model, tokens, token_id=5, page=0, position=0, logit_row=0):
    """One prefill row of so many tokens, the first of which may be told to be wrong."""
    size = model.pool.layout.page_size
    ids, places = torch.full((tokens,), token_id), torch.arange(tokens)
    slots = page * size + places
    places[0] = position
    table = torch.arange(-(-tokens // size), dtype=torch.int32).unsqueeze(0)
    lengths, starts = (torch.tensor(numbers, dtype=torch.int32) for numbers in ([tokens], [0, tokens]))
    groups = (Paged(table, slots),) * len(model.pool.groups)
    rows = torch.tensor([logit_row])
    return Step(ids, places, starts, lengths, rows, groups, size, 0, (tokens,), (tokens,))


@BUILT
@pytest.mark.parametrize("quantization", ["int8", "int4"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_program_of_integers_gives_what_the_generated_python_gives(tiny, kind, quantization):
    for dtype in COMPILED:
        with loaded(make_recipe(tiny(kind), model={"dtype": dtype, "quantization": quantization})) as model:
            got, expected = both(model)
            assert torch.equal(got, expected)
            assert model.plan.pieces.is_whole(model.plan.program)


@BUILT
@DENSE
@pytest.mark.parametrize("kind", KINDS)
def test_a_program_of_bfloat16_gives_what_the_generated_python_gives(tiny, kind):
    for policies in (["mha", "ffn", "add_rms_norm"], ["qkv_proj", "gate_up_proj", "add_rms_norm", "silu_mul"]):
        fusion = {"policies": policies, "on_missing": "ignore"}
        with loaded(make_recipe(tiny(kind), model={"dtype": "bfloat16"}, fusion=fusion)) as model:
            got, expected = both(model)
            assert torch.equal(got, expected)
            assert cuts(model) == {}  # without qk_norm_rope a program normalises heads by themselves


@BUILT
def test_a_program_on_states_in_slots_gives_what_the_generated_python_gives(tmp_path):
    directory = make_family(tmp_path, "qwen3_5_text", **GATED_DELTA)
    with loaded(make_recipe(directory, model=INT8)) as model:
        got, expected = both(model)
        assert torch.equal(got, expected)
        assert set(cuts(model)) == {"rms_norm_offset"}  # of queries and keys
        prompt = sequence_step(model.pool, [5, 6], 0, 2, [0], slot=model.pool.layout.slots)
        with pytest.raises(IndexError, match="out of range"):
            model.forward(prompt)


@BUILT
@pytest.mark.parametrize("instruction_set", SETS, indirect=True)
def test_each_instruction_set_runs_programs(instruction_set, model):
    got, expected = both(model)
    assert torch.equal(got, expected)


@BUILT
def test_a_team_gives_what_one_thread_gives(tiny):
    with loaded(make_recipe(tiny("qwen3"), model=INT8)) as model:
        alone, _ = both(model)
    with loaded(make_recipe(tiny("qwen3"), model=INT8, backend={"threads": 3})) as model:
        shared, _ = both(model)
    torch.set_num_threads(1)
    assert torch.equal(alone, shared)


@BUILT
def test_a_step_of_more_tokens_than_there_is_memory_for_runs_as_generated_python(model):
    [piece] = pieces_of(model)
    seen = []
    piece.generated = lambda step: (seen.append(step.tokens),)
    piece.program.tokens = 64
    piece(step(model, 64))
    piece(step(model, 65))
    assert seen == [65]


@BUILT
@pytest.mark.parametrize(
    "wrong", [{"token_id": 512}, {"token_id": -1}, {"position": 1 << 20}, {"page": 1 << 20}, {"logit_row": 4}]
)
def test_numbers_out_of_range_are_refused_before_anything_is_written(model, wrong):
    before = [cache.clone() for cache in model.pool.tensors(0, 0)]
    with pytest.raises(IndexError, match="out of range"):
        model.forward(step(model, 4, **wrong))
    assert all(torch.equal(*pair) for pair in zip(before, model.pool.tensors(0, 0), strict=True))


@BUILT
def test_a_step_without_logits_writes_its_keys(model):
    none = replace(step(model, 4), logit_rows=torch.empty(0, dtype=torch.int64))
    assert model.forward(none).shape == (0, 512)
    keys, _ = model.pool.tensors(0, 0)
    assert bool((keys.flatten(0, 1)[:4] != 0).any())


@BUILT
def test_requests_together_get_the_tokens_that_each_gets_alone(tiny):
    prompts = random_prompts(6, (33, 5, 20))
    recipe = make_recipe(tiny("qwen3"), model=INT8)
    with core_of(recipe) as core:
        together = run(core, greedy(prompts, 6))
    with core_of(make_recipe(tiny("qwen3"), model=INT8, scheduler={"prefix_cache": False})) as core:
        alone = [run(core, greedy([prompt], 6))["r0", 0] for prompt in prompts]
    assert [together[f"r{number}", 0] for number in range(len(prompts))] == alone


@BUILT
def test_graphs_without_fusions_are_cut_where_an_op_has_no_instruction(tiny):
    for kind in ("llama", "qwen3"):
        with loaded(make_recipe(tiny(kind), model=INT8, fusion=NO_FUSION)) as model:
            assert {op for op, reason in cuts(model).items() if reason != ALONE} == {"silu", "mul"}
            got, expected = both(model)
            assert torch.equal(got, expected)


@BUILT
def test_kernels_of_others_are_never_replaced_by_a_program(tiny):
    overrides = {"overrides": [{"op": "rms_norm", "provider": "reference"}]}
    with loaded(make_recipe(tiny("llama"), model=INT8, ops=overrides)) as model:
        assert cuts(model)["rms_norm"] == "it runs on reference's kernel reference"
        assert {cut.reason for cut in model.plan.pieces.cuts if cut.op != "rms_norm"} <= {ALONE}
        got, expected = both(model)
        assert torch.equal(got, expected)


@BUILT
def test_the_time_of_each_kind_of_instruction_is_told_on_request(model):
    [piece] = pieces_of(model)
    piece.program.seconds = torch.zeros(len(Kind), dtype=torch.float64)
    model.forward(step(model, 4))
    dense = [Kind.GATHER, Kind.NORM, Kind.MULTIPLY, Kind.HEADS, Kind.ATTEND, Kind.GATE]
    assert torch.nonzero(piece.program.seconds > 0).flatten().tolist() == sorted(dense)
    piece.program.seconds = None
    model.forward(step(model, 4))


@BUILT
def test_results_that_nobody_needs_lend_their_memory(model):
    [piece] = pieces_of(model)
    buffers = [one for one in piece.program._held if one.dim() == 2 and len(one) == piece.program.tokens]
    assert len(buffers) < 12
