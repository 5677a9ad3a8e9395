"""Native programs against the generated Python, bit for bit. Knows tiny models; knows no instruction."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from anychip_cpu import host, native
from anychip_cpu.kernels import dense
from anychip_cpu.programs import Compiled, compiled
from anychip_cpu.programs.program import Kind
from anychip_sdk.ops import AttentionBatch
from support.engines import NO_FUSION, core_of, greedy, loaded, logits_of, make_recipe, random_prompts, run
from support.tiny_models import tiny_by_kind

BUILT = pytest.mark.skipif(isinstance(native.library(), native.Absent), reason="no native kernels")
DENSE = pytest.mark.skipif(dense.lack() is not None, reason=f"dense products are oneDNN's: {dense.lack()}")
KINDS = ("llama", "qwen2", "qwen3")
SETS = ("portable", "avx2", "avx512", "avx512_bf16")
INT8 = {"dtype": "float32", "quantization": "int8"}
CHUNKS = [20, 1, 1, 33, 1, 64]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return tiny_by_kind(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def model(tiny):
    with loaded(make_recipe(tiny("qwen3"), model=INT8)) as found:
        yield found


def both(model, chunks=CHUNKS):
    """Logits of the program and of the generated Python, for the same tokens."""
    assert isinstance(model.forward, Compiled)
    [prompt] = random_prompts(1, [sum(chunks)])
    plain = replace(model, forward=model.forward.generated)
    return logits_of(model, prompt, chunks), logits_of(plain, prompt, chunks)


def step(model, tokens, token_id=5, page=0, position=0, logit_row=0):
    """One prefill row of so many tokens, the first of which may be told to be wrong."""
    size = model.pool.layout.page_size
    ids, places = torch.full((tokens,), token_id), torch.arange(tokens)
    slots = page * size + places
    places[0] = position
    table = torch.arange(-(-tokens // size), dtype=torch.int32).unsqueeze(0)
    lengths, starts = (torch.tensor(numbers, dtype=torch.int32) for numbers in ([tokens], [0, tokens]))
    batch = AttentionBatch(starts, lengths, table, slots, size, 0, (tokens,), (tokens,))
    return ids, places, slots, batch, torch.tensor([logit_row])


@BUILT
@pytest.mark.parametrize("quantization", ["int8", "int4"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_program_of_integers_gives_what_the_generated_python_gives(tiny, kind, quantization):
    for dtype in ("float32", "bfloat16", "float16"):
        with loaded(make_recipe(tiny(kind), model={"dtype": dtype, "quantization": quantization})) as model:
            got, expected = both(model)
            assert torch.equal(got, expected)


@BUILT
@DENSE
@pytest.mark.parametrize("kind", KINDS)
def test_a_program_of_bfloat16_gives_what_the_generated_python_gives(tiny, kind):
    for policies in (["mha", "ffn", "add_rms_norm"], ["qkv_proj", "gate_up_proj", "add_rms_norm", "silu_mul"]):
        fusion = {"policies": policies, "on_missing": "ignore"}
        with loaded(make_recipe(tiny(kind), model={"dtype": "bfloat16"}, fusion=fusion)) as model:
            if isinstance(model.forward, Compiled):
                got, expected = both(model)
                assert torch.equal(got, expected)
            else:
                assert kind == "qwen3"  # without qk_norm_rope its heads are normalised by themselves
                assert "mha" not in policies


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
    seen = []
    forward = Compiled(model.forward.program, lambda *inputs: seen.append(len(inputs[0])))
    forward.program.tokens = 64
    forward(*step(model, 64))
    forward(*step(model, 65))
    assert seen == [65]


@BUILT
@pytest.mark.parametrize(
    "wrong", [{"token_id": 512}, {"token_id": -1}, {"position": 1 << 20}, {"page": 1 << 20}, {"logit_row": 4}]
)
def test_numbers_out_of_range_are_refused_before_anything_is_written(model, wrong):
    before = [cache.clone() for cache in model.pool.layer(0)]
    with pytest.raises(IndexError, match="out of range"):
        model.forward.program(*step(model, 4, **wrong))
    assert all(torch.equal(*pair) for pair in zip(before, model.pool.layer(0), strict=True))


@BUILT
def test_a_step_without_logits_writes_its_keys(model):
    *inputs, _ = step(model, 4)
    assert model.forward.program(*inputs, torch.empty(0, dtype=torch.int64)).shape == (0, 512)
    keys, _ = model.pool.layer(0)
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


def test_unfused_graphs_run_as_generated_python(tiny):
    with loaded(make_recipe(tiny("llama"), model=INT8, fusion=NO_FUSION)) as model:
        assert not isinstance(model.forward, Compiled)


def test_kernels_of_others_are_never_replaced_by_a_program(tiny):
    overrides = {"overrides": [{"op": "rms_norm", "provider": "reference"}]}
    with loaded(make_recipe(tiny("llama"), model=INT8, ops=overrides)) as model:
        assert not isinstance(model.forward, Compiled)


@BUILT
def test_without_generated_python_or_with_tiles_nothing_is_compiled(monkeypatch):
    context = SimpleNamespace(generated=None, dtype=torch.bfloat16, max_tokens=8)
    assert compiled(None, context) is None
    monkeypatch.setattr(host, "instruction_sets", lambda: ("amx_bf16",))
    assert compiled(None, SimpleNamespace(generated=print, dtype=torch.bfloat16, max_tokens=8)) is None


@BUILT
def test_the_time_of_each_kind_of_instruction_is_told_on_request(model):
    program = model.forward.program
    program.seconds = torch.zeros(len(Kind), dtype=torch.float64)
    program(*step(model, 4))
    assert bool((program.seconds > 0).all())
    program.seconds = None
    program(*step(model, 4))


@BUILT
def test_results_that_nobody_needs_lend_their_memory(model):
    held = model.forward.program._held
    buffers = [one for one in held if one.dim() == 2 and len(one) == model.forward.program.tokens]
    assert len(buffers) < 12
