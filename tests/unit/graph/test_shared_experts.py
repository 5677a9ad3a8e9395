"""A shared expert in slots of the mixture is the same function, and where it can't be one the reason is told."""

import pytest
import torch

from anychip.graph.fold import fold
from anychip.graph.ir import argument
from anychip.graph.shared_experts import SHARED_EXPERTS
from anychip.models.registry import config_of
from anychip.plan.resolve import make_binding, unfolded
from anychip.weights.pieces import assembled
from anychip_sdk.fusion import slot_count, slots_down, slots_gate_up
from support.engines import make_recipe
from support.plans import references, stub_backend

F64 = torch.float64
HIDDEN, INNER, EXPERTS, K = 20, 8, 6, 2

ROUTINGS = {
    "softmax": ("softmax", 1, 1, "max", "none", 0.0, 1.0),
    "with a factor": ("sigmoid", 2, 1, "sum2", "sum", 1e-20, 2.5),
}


def arguments(width, *, gated, joined, routing):
    generator = torch.Generator().manual_seed(width)

    def matrix(*shape):
        return torch.randn(shape, generator=generator, dtype=F64) * 0.3

    shared = (matrix(width, HIDDEN), matrix(width, HIDDEN))
    parts = (torch.cat(shared),) if joined else shared
    gate = (matrix(1, HIDDEN),) if gated else ()
    experts = (matrix(EXPERTS, 2 * INNER, HIDDEN), matrix(EXPERTS, HIDDEN, INNER))
    router = (matrix(EXPERTS, HIDDEN), None, None, K, *ROUTINGS[routing])
    return (matrix(9, HIDDEN), *router, *experts, *parts, matrix(HIDDEN, width), *gate)


@pytest.mark.parametrize("routing", ROUTINGS)
@pytest.mark.parametrize("width", [INNER, 2 * INNER, 4 * INNER, 15, 31])  # one slot, two, four; two and four, padded
@pytest.mark.parametrize("number", range(len(SHARED_EXPERTS)))
def test_slots_compute_what_the_shared_expert_computes(number, width, routing):
    fusion = SHARED_EXPERTS[number]
    args = arguments(width, gated="gate" in fusion.name, joined="ffn" in fusion.name, routing=routing)
    apart, together = fusion.pattern(*args), fusion.replacement(*args)
    assert float((together - apart).abs().max()) < 1e-12
    without = fusion.pattern(*args[:-2], args[-2] * 1.01, args[-1])
    assert float((without - apart).abs().max()) > 1e-4  # the shared part is large enough to be seen


def test_slots_are_as_wide_as_experts_and_end_in_zeros():
    experts, shared = torch.ones(3, 4, 5), torch.full((3, 5), 2.0)
    gate_up = slots_gate_up(experts, shared, 2 * shared)
    assert gate_up.shape == (5, 4, 5)
    assert gate_up[3:, :, 0].tolist() == [[2, 2, 4, 4], [2, 0, 4, 0]]
    down = slots_down(torch.ones(3, 5, 2), torch.full((5, 3), 2.0))
    assert down.shape == (5, 5, 2)
    assert down[3:, 0].tolist() == [[2, 2], [2, 0]]
    assert slot_count(torch.ones(3, 5, 2), torch.ones(5, 3)) == 2


# --- in a model ---

SMALL = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 2, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
}  # fmt: skip


def folded(policies, **changed):
    raw = {"architectures": ["Qwen2MoeForCausalLM"], **SMALL, **changed}
    config, backend = config_of(raw), stub_backend(kernels=references())
    binding = make_binding(make_recipe("/models/m"), config, backend, torch.float32, torch.float32, 16)
    graph = unfolded(config, binding)
    return graph, fold(graph, binding, policies)


@pytest.mark.parametrize("policies", [("shared_experts",), ("ffn", "shared_experts")])
def test_every_layer_is_rewritten_and_the_loader_reads_the_shared_expert_into_slots(policies):
    graph, decisions = folded(policies, shared_expert_intermediate_size=31)
    [outcome] = [one for one in decisions if one.policy == "shared_experts"]
    assert (outcome.applied, outcome.refused) == (2, False)
    assert not any("shared_expert." in name for name in graph.weights)
    [node, _] = [node for node, op in graph.op_nodes() if op.name == "moe_experts"]
    [router, _] = [(node, op) for node, op in graph.op_nodes() if op.name == "router_topk"]
    assert argument(*router, "shared") == 2
    for name, shape in (("gate_up_weight", (6, 32, 32)), ("down_weight", (6, 32, 16))):
        spec = graph.weights[str(argument(node, node.target, name).target)]
        assert spec.shape == shape
        drawn = {source.tensor: torch.randn(source.shape) for source in spec.sources}
        found = assembled(spec.sources, drawn).view(spec.shape)
        mlp = "model.layers.0.mlp.shared_expert"
        if name == "down_weight":
            whole = drawn[f"{mlp}.down_proj.weight"]
            assert torch.equal(torch.cat((found[4], found[5]), dim=1)[:, :31], whole)
            assert found[5][:, 15].eq(0).all()
        else:
            gate, up = drawn[f"{mlp}.gate_proj.weight"], drawn[f"{mlp}.up_proj.weight"]
            assert torch.equal(found[4], torch.cat((gate[:16], up[:16])))
            assert torch.equal(found[5][:15], gate[16:])
            assert torch.equal(found[5][16:31], up[16:])
            assert found[5][[15, 31]].eq(0).all()


def test_too_much_padding_is_refused_with_the_figures():
    _, [outcome] = folded(("shared_experts",), shared_expert_intermediate_size=24)
    assert (outcome.applied, outcome.refused) == (0, True)
    assert "has 24 channels, the others 16: 8 zeros" in outcome.reason


def test_a_backend_without_the_kernels_refuses():
    raw = {"architectures": ["Qwen2MoeForCausalLM"], **SMALL, "shared_expert_intermediate_size": 32}
    binding = make_binding(
        make_recipe("/models/m"),
        config_of(raw),
        stub_backend(kernels=references("moe_experts")),
        torch.float32,
        torch.float32,
        16,
    )
    [outcome] = fold(unfolded(config_of(raw), binding), binding, ("shared_experts",))
    assert outcome.reason == "the backend has no kernel for moe_experts"
