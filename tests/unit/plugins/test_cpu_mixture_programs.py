"""Routers and experts as instructions of a native program, bit for bit. Knows instructions; knows no graph."""

import pytest
import torch

from anychip_cpu import native
from anychip_cpu.kernels import experts, routing
from anychip_cpu.programs import Compiled
from anychip_cpu.programs.buffers import Buffers
from anychip_cpu.programs.instructions import Writer
from anychip_cpu.programs.program import Kind, NativeProgram
from anychip_sdk.step import Step
from support.engines import loaded, logits_of, make_recipe, random_prompts
from support.family_models import make_family

LIBRARY = native.load()
pytestmark = pytest.mark.skipif(isinstance(LIBRARY, native.Absent), reason=f"native kernels: {LIBRARY}")
TOKENS, EXPERTS, HIDDEN, INNER, VOCAB = 40, 8, 64, 48, 30
WAY = {"top_k": 3, "score": "softmax", "groups": 1, "top_groups": 1, "group_score": "max", "renormalise": "sum"}
PLAIN = {"activation": "silu", "on_input": False, "first": 0}


def step_of(token_ids):
    count = len(token_ids)
    numbers = [torch.tensor(one, dtype=torch.int32) for one in ([0, count], [count])]
    return Step(token_ids, torch.arange(count), *numbers, torch.tensor([0]), (), 16, 0, (count,), (count,))


class Layers:
    """Mixtures one behind the other, of one dtype: as instructions, and as kernels."""

    def __init__(self, count, dtype):
        generator = torch.Generator().manual_seed(0)

        def numbers(*shape):
            return torch.randn(shape, generator=generator) * shape[-1] ** -0.5

        self.table = numbers(VOCAB, HIDDEN).to(dtype)
        self.routers, self.mixtures = [], []
        for _ in range(count):
            gate = routing.prepare(numbers(1, HIDDEN).to(dtype)).value
            weight = routing.prepare(8 * numbers(EXPERTS, HIDDEN).to(dtype)).value
            self.routers.append({"weight": weight, "logit_bias": None, "selection_bias": None, **WAY, "floor": 0.0})
            self.routers[-1] |= {"factor": 1.0, "shared_gate": gate, "shared": 1}
            stacks = {
                "gate_up_weight": numbers(EXPERTS + 1, 2 * INNER, HIDDEN).to(dtype),
                "gate_up_bias": numbers(EXPERTS + 1, 2 * INNER).to(dtype),
                "down_weight": numbers(EXPERTS + 1, HIDDEN, INNER).to(dtype),
                "down_bias": None,
            }
            placed = {
                name: None if one is None else experts.prepare(name, one, "moe_experts").value
                for name, one in stacks.items()
            }
            self.mixtures.append({**placed, **PLAIN})

    def program(self):
        """And where its result lies."""
        writer = Writer(Buffers(TOKENS))
        x = writer.embedding({"weight": self.table})
        for router, mixture in zip(self.routers, self.mixtures, strict=True):
            ids, weights = writer.router_topk({"x": x, **router})
            x = writer.moe_experts({"x": x, "ids": ids, "weights": weights, **mixture})
        assert [one.kind for one in writer.instructions][-2:] == [Kind.ROUTE, Kind.MIX]
        return NativeProgram(LIBRARY, writer.instructions, [*writer.buffers.all, self.table], TOKENS), x

    def __call__(self, token_ids):
        x = self.table[token_ids]
        for router, mixture in zip(self.routers, self.mixtures, strict=True):
            ids, weights = routing.Router(LIBRARY)(x, *router.values())
            x = experts.mixed(LIBRARY, x, ids, weights, experts.mixture(mixture))
        return x


@pytest.mark.parametrize("dtype", experts.DTYPES)
def test_a_program_of_mixtures_gives_what_their_kernels_give(dtype):
    layers = Layers(2, dtype)
    program, place = layers.program()
    for count in (1, 3, TOKENS):
        token_ids = torch.arange(count) % VOCAB
        program(step_of(token_ids), None)
        assert torch.equal(place[:count], layers(token_ids))


def test_a_team_runs_mixtures_as_one_thread_does():
    layers = Layers(2, torch.bfloat16)
    program, place = layers.program()
    token_ids = torch.arange(TOKENS) % VOCAB
    expected = layers(token_ids)
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        for _ in range(5):
            place.zero_()
            program(step_of(token_ids), None)
            assert torch.equal(place, expected)
    finally:
        torch.set_num_threads(before)


def spread(directory):
    """How far a model's logits as a native program are from those as generated Python."""
    [prompt] = random_prompts(1, [30], vocab=256)
    chunks = [20, 1, 1, 8]
    with loaded(make_recipe(directory, model={"dtype": "float32", "quantization": "int8"})) as model:
        assert model.plan.pieces.is_whole(model.plan.program), model.plan.pieces.cuts
        found = logits_of(model, prompt, chunks)
        bound = model.forward.__self__.function.__globals__.values()
        for piece in [one for one in bound if isinstance(one, Compiled)]:
            piece.program.tokens = -1
        return (found - logits_of(model, prompt, chunks)).abs().max()


def test_a_step_of_a_mixture_of_experts_is_one_native_program(tmp_path):
    shape = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "head_dim": 16}
    assert spread(make_family(tmp_path, "qwen3_moe", **shape)) == 0
