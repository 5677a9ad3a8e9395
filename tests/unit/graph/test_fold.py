"""Where fusions apply, where a near miss keeps them away, and that nothing is left to fuse. Knows graphs; runs none."""

import pytest
import torch
from torch import nn

from anychip.graph.fold import fold
from anychip.graph.fusions import FUSIONS
from anychip.graph.ir import ModelGraph, WeightSpec, argument, as_text
from anychip.graph.replace import Binding, replace
from anychip.graph.trace import OpTracer
from anychip.models.source import same_name
from anychip.plan.resolve import make_binding, unfolded
from anychip.weights.names import expected_tensors
from anychip_sdk import ops
from anychip_sdk.backend import load_backend
from anychip_sdk.errors import KernelMissing
from anychip_sdk.fusion import POLICIES, Fusion
from anychip_sdk.hooks import hookimpl
from anychip_sdk.registry import one_of
from support.engines import make_recipe
from support.plans import FLOATS, StubPlugin, references, stub_backend, tiny_config

SMALL = ("qkv_proj", "gate_up_proj", "add_rms_norm", "qk_norm_rope", "silu_mul")
ALL = ("mha", "ffn", *SMALL)
FUSED = ("mha", "ffn", "add_rms_norm", "qk_norm_rope", "silu_mul", "gelu_mul")


@pytest.fixture(scope="module")
def backend():
    return stub_backend()


def binding_for(backend, config):
    return make_binding(make_recipe("/models/m"), config, backend, torch.float32, torch.float32, 16)


def folded(backend, policies, kind="qwen3", **config):
    shape = tiny_config(kind, **config)
    binding = binding_for(backend, shape)
    graph = unfolded(shape, binding)
    decisions = fold(graph, binding, policies, backend.fusions)
    return graph, {one.policy: one for one in decisions}


def counts(graph):
    found = {}
    for _, op in graph.op_nodes():
        found[op.name] = found.get(op.name, 0) + 1
    return found


# --- whole models ---


def test_an_unfused_decoder_has_only_unfused_ops(backend):
    graph, _ = folded(backend, ())
    assert counts(graph) == {
        "embedding": 1, "rms_norm": 3 * 4 + 1, "linear": 3 * 7, "rope": 3, "kv_write": 3, "paged_attention": 3,
        "add": 6, "silu": 3, "mul": 3, "select_rows": 1, "lm_head": 1,
    }  # fmt: skip


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
def test_small_fusions_leave_one_op_for_each_group(backend, kind):
    graph, decisions = folded(backend, SMALL, kind)
    found = counts(graph)
    assert found["linear"] == 3 * 4  # qkv, out, gate_up, down
    assert found["silu_mul"] == 3
    assert found["add_rms_norm"] == 5  # all sums but the last, behind which rows are selected first
    assert found["rms_norm"] == 2
    assert found.get("qk_norm_rope", 0) == (3 if kind == "qwen3" else 0)
    assert not decisions["qkv_proj"].refused
    assert decisions["qk_norm_rope"].refused == (kind != "qwen3")


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
def test_whole_blocks_leave_nothing_of_their_parts(backend, kind):
    graph, decisions = folded(backend, ALL, kind)
    assert counts(graph) == {
        "embedding": 1, "rms_norm": 2, "add_rms_norm": 5, "mha": 3, "ffn": 3, "add": 1, "select_rows": 1, "lm_head": 1,
    }  # fmt: skip
    assert decisions["qkv_proj"].reason == "part of mha already"
    assert decisions["silu_mul"].reason == "part of ffn already"
    assert not any(one.refused for policy, one in decisions.items() if policy != "qk_norm_rope" or kind == "qwen3")


@pytest.mark.parametrize(
    ("kind", "config", "products"),
    [
        ("gemma2", {}, 4),  # capped scores
        ("gemma3_text", {}, 4),  # queries and keys normalised with an offset
        ("smollm3", {"no_rope_layer_interval": 2}, 4),  # a layer that turns nothing
        ("granite", {}, 4),
        ("olmo2", {"head_dim": None}, 6),  # norms between the products and the heads: q, k and v stay apart
    ],
)
def test_products_are_joined_where_layers_are_of_another_kind(backend, kind, config, products):
    graph, decisions = folded(backend, ALL, kind, **config)
    found = counts(graph)
    assert found.get("linear", 0) + 2 * found.get("ffn", 0) + 2 * found.get("mha", 0) == 3 * products
    assert decisions["qkv_proj"].refused == (kind == "olmo2")


@pytest.mark.parametrize("policies", [SMALL, ALL])
@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
def test_every_tensor_of_the_checkpoint_is_read_once_after_folding(backend, kind, policies):
    overrides = {"tie_word_embeddings": False, "attention_bias": kind != "qwen2"}
    graph, _ = folded(backend, policies, kind, **overrides)
    sources = [source for spec in graph.used_weights().values() for source in spec.sources]
    expected = expected_tensors(tiny_config(kind, **overrides))
    assert sorted(source.tensor for source in sources) == sorted(expected)
    assert all(source.is_whole for source in sources)
    assert set(graph.weights) == set(graph.used_weights())
    joined = graph.weights["model.layers.0.self_attn.q_proj+k_proj+v_proj.weight"]
    assert joined.shape == (64 + 32 + 32, 64)
    assert [one.tensor.split(".")[-2] for one in joined.sources] == ["q_proj", "k_proj", "v_proj"]


def test_a_tied_weight_is_one_weight(backend):
    graph, _ = folded(backend, ALL, tie_word_embeddings=True)
    assert "lm_head.weight" not in graph.used_weights()
    assert "model.embed_tokens.weight" in graph.used_weights()


@pytest.mark.parametrize("policies", [SMALL, ALL, *[(one,) for one in ALL]])
def test_folding_twice_changes_nothing(backend, policies):
    config = tiny_config()
    binding = binding_for(backend, config)
    graph = unfolded(config, binding)
    fold(graph, binding, policies)
    before, weights = as_text(graph), dict(graph.weights)
    again = fold(graph, binding, policies)
    assert as_text(graph) == before
    assert graph.weights == weights
    assert all(one.applied == 0 for one in again)


def test_the_order_of_policies_does_not_matter(backend):
    forwards, _ = folded(backend, ALL)
    backwards, _ = folded(backend, ALL[::-1])
    assert as_text(forwards) == as_text(backwards)


def test_gelu_gates_fuse_too_but_not_into_ffn(backend):
    graph, decisions = folded(backend, ALL, "llama", hidden_act="gelu_pytorch_tanh")
    assert decisions["ffn"].reason == "nothing in this model matches"
    assert counts(graph)["gelu_mul"] == 3
    assert decisions["silu_mul"].applied == decisions["gate_up_proj"].applied == 3


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_norms_of_queries_and_keys_decide_the_variant_of_mha(backend, kind):
    graph, _ = folded(backend, ("mha",), kind)
    [first, *_] = [node for node, op in graph.op_nodes() if op.name == "mha"]
    q_norm, k_norm, eps = (argument(first, first.target, name) for name in ("q_norm", "k_norm", "eps"))
    if kind == "llama":
        assert (q_norm, k_norm) == (None, None)
    else:
        assert (q_norm.target, k_norm.target) == (
            "model.layers.0.self_attn.q_norm.weight",
            "model.layers.0.self_attn.k_norm.weight",
        )
        assert eps == 1e-6


def test_a_window_goes_into_the_fused_block(backend):
    windowed = {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}
    graph, _ = folded(backend, ("mha",), "qwen2", **windowed)
    blocks = [(node, op) for node, op in graph.op_nodes() if op.name == "mha"]
    assert [argument(node, op, "window") for node, op in blocks] == [None, 8, 8]
    assert [argument(node, op, "group") for node, op in blocks] == [0, 1, 1]


# --- no kernel, no fusion ---


def test_a_fusion_without_a_kernel_of_the_backend_is_not_applied():
    lacking = stub_backend(kernels=references(*FUSED))
    graph, decisions = folded(lacking, ALL)
    assert {policy for policy, one in decisions.items() if one.refused} == {
        "mha", "ffn", "add_rms_norm", "qk_norm_rope", "silu_mul",
    }  # fmt: skip
    assert decisions["mha"].reason == "the backend has no kernel for mha"
    assert decisions["qkv_proj"].applied == decisions["gate_up_proj"].applied == 3  # they need nothing but linear
    assert not set(FUSED) & set(counts(graph))


def test_a_kernel_that_does_not_fit_is_no_kernel():
    class PickyPlugin(StubPlugin):
        @hookimpl
        def anychip_register_ops(self, registry):
            super().anychip_register_ops(registry)
            kernel = ops.mha.reference
            registry.register("mha", kernel, dtypes=FLOATS, requires={"head_dim": one_of(64, 128)}, name="mha_large")

    plugin = PickyPlugin(kernels=references("mha"))
    picky = load_backend("stub", plugin, distribution="anychip-stub", version="0.1.0")
    graph, decisions = folded(picky, ("mha", "qkv_proj"))
    assert decisions["mha"].reason == (
        "no kernel of the backend for mha fits: mha_large: head_dim is 16, it needs one of 64, 128"
    )
    assert decisions["qkv_proj"].applied == 3  # the smaller one takes its place
    assert "mha" not in counts(graph)
    assert not [name for name in graph.weights if "+" in name and name not in graph.used_weights()]


def gated(gate, up):
    return ops.silu_mul(gate, up)


def turned(gate, up):
    return ops.silu_mul(up, gate)


def gated_sum(gate, up):
    return ops.add(ops.silu_mul(gate, up), gate)


OWN = (
    Fusion("own_sum", "own_sum", gated_sum, gated),
    Fusion("own_gate", "own_gate", gated, turned, ("silu_mul",)),
)


def test_policies_of_a_backends_own_come_after_the_built_in_ones_in_its_order(backend):
    config = tiny_config()
    binding = binding_for(backend, config)
    graph = unfolded(config, binding)
    found = fold(graph, binding, ("own_gate", "silu_mul", "own_sum", "add_rms_norm"), OWN)
    assert [(one.policy, one.applied) for one in found] == [
        ("add_rms_norm", 5), ("silu_mul", 3), ("own_sum", 0), ("own_gate", 3)
    ]  # fmt: skip


def test_a_policy_of_a_backends_own_is_left_alone_unless_it_is_wanted(backend):
    config = tiny_config()
    binding = binding_for(backend, config)
    plain, extended = unfolded(config, binding), unfolded(config, binding)
    fold(plain, binding, SMALL)
    assert [one.policy for one in fold(extended, binding, SMALL, OWN)] == [one for one in POLICIES if one in SMALL]
    assert as_text(extended) == as_text(plain)


def test_every_built_in_fusion_has_a_built_in_policy():
    assert {fusion.policy for fusion in FUSIONS} == set(POLICIES)


def test_a_backend_brings_fusions_of_its_own(backend):
    def pattern(x, y):
        return ops.mul(ops.silu(x), y)

    def replacement(x, y):
        return ops.mul(y, ops.silu(x))

    config = tiny_config()
    binding = binding_for(backend, config)
    graph = unfolded(config, binding)
    [decision] = fold(graph, binding, ("silu_mul",), [Fusion("silu_mul", "mine", pattern, replacement)])
    assert decision.applied == 3
    assert "silu_mul" not in counts(graph)


def test_pattern_and_replacement_must_agree(backend):
    config = tiny_config()
    binding = binding_for(backend, config)
    wrong = Fusion("silu_mul", "wrong", lambda x, y: ops.mul(ops.silu(x), y), lambda x: ops.add(x, x))
    with pytest.raises(ValueError, match="different parameters"):
        fold(unfolded(config, binding), binding, ("silu_mul",), [wrong])


# --- near misses ---


def graph_of(module, backend):
    """A module of catalogue ops as a bound graph."""
    binding = Binding(backend.ops, torch.float32, {})
    weights = {
        name: WeightSpec(name, tuple(one.shape), same_name(name, tuple(one.shape)))
        for name, one in module.named_parameters()
    }
    graph = ModelGraph(OpTracer(()).trace(module), module, weights)
    return replace(graph, binding), binding


def parameter(*shape):
    return nn.Parameter(torch.empty(*shape, device="meta"), requires_grad=False)


def decision(module, policy, backend):
    graph, binding = graph_of(module, backend)
    before = as_text(graph), dict(graph.weights)
    [found] = fold(graph, binding, (policy,))
    assert ((as_text(graph), graph.weights) == before) == (found.applied == 0)
    return found


class Norms(nn.Module):
    """q and k, each normalised and turned, with things that can go wrong in between."""

    def __init__(self, *, eps_of_k=1e-6, uses_q_twice=False, same_positions=True):
        super().__init__()
        self.nq, self.nk = parameter(16), parameter(16)
        self.eps_of_k, self.uses_q_twice, self.same_positions = eps_of_k, uses_q_twice, same_positions

    def forward(self, q, k, positions, table):
        first, second = ops.rms_norm(q, self.nq, 1e-6), ops.rms_norm(k, self.nk, self.eps_of_k)
        turned_q, turned_k = ops.rope(first, second, positions, table)
        if self.uses_q_twice:
            turned_q = ops.add(turned_q, first)
        return turned_q, turned_k


def test_norms_and_rope_fuse(backend):
    assert decision(Norms(), "qk_norm_rope", backend).applied == 1


def test_norms_of_differing_eps_do_not_fuse(backend):
    found = decision(Norms(eps_of_k=1e-5), "qk_norm_rope", backend)
    assert (found.applied, found.refused) == (0, True)


def test_an_intermediate_with_a_second_user_does_not_fuse(backend):
    found = decision(Norms(uses_q_twice=True), "qk_norm_rope", backend)
    assert found.applied == 0
    assert found.reason == "rms_norm is also used by add"


class Projection(nn.Module):
    def __init__(self, *, bias=False, buffer=False):
        super().__init__()
        self.bias = parameter(32) if bias else None
        if buffer:
            self.register_buffer("weight", torch.empty(32, 16, device="meta"))
        else:
            self.weight = parameter(32, 16)

    def forward(self, x):
        return ops.linear(x, self.weight, self.bias)


class Gates(nn.Module):
    """A gated MLP's first half, with things that can go wrong."""

    def __init__(self, *, biases=(False, False), buffer=False, shared=True):
        super().__init__()
        self.gate_proj, self.up_proj = Projection(bias=biases[0]), Projection(bias=biases[1], buffer=buffer)
        self.shared = shared

    def forward(self, x, y):
        return ops.mul(ops.silu(self.gate_proj(x)), self.up_proj(x if self.shared else y))


@pytest.mark.parametrize("biases", [(False, False), (True, True)])
def test_gate_and_up_fuse(backend, biases):
    assert decision(Gates(biases=biases), "gate_up_proj", backend).applied == 1


@pytest.mark.parametrize("biases", [(True, False), (False, True)])
def test_one_bias_of_two_does_not_fuse(backend, biases):
    found = decision(Gates(biases=biases), "gate_up_proj", backend)
    assert found.applied == 0
    assert found.reason == "the operands to be joined are not all parameters of the model"


def test_weights_that_are_no_parameters_do_not_fuse(backend):
    found = decision(Gates(buffer=True), "gate_up_proj", backend)
    assert found.reason == "the operands to be joined are not all parameters of the model"


def test_gate_and_up_of_different_inputs_do_not_fuse(backend):
    assert decision(Gates(shared=False), "gate_up_proj", backend).reason == "nothing in this model matches"


class Sums(nn.Module):
    """A residual sum and its norm; the sum goes on."""

    def __init__(self, use):
        super().__init__()
        self.weight = parameter(16)
        self.use = use

    def forward(self, x, y):
        total = ops.add(x, y)
        if self.use == "before":
            early = ops.silu(total)
            return ops.rms_norm(total, self.weight, 1e-6), early
        return ops.rms_norm(total, self.weight, 1e-6), ops.silu(total)


def test_a_sum_that_is_used_behind_its_norm_fuses(backend):
    assert decision(Sums("behind"), "add_rms_norm", backend).applied == 1


def test_a_sum_that_is_used_before_its_norm_does_not_fuse(backend):
    found = decision(Sums("before"), "add_rms_norm", backend)
    assert found.applied == 0
    assert "is used before the whole pattern is computed" in found.reason


# --- replace ---


def test_kernels_that_are_missing_are_all_named():
    lacking = stub_backend(kernels=references("rope", "kv_write"))
    binding = Binding(lacking.ops, torch.float32, {}, fallback_allowed=False)
    with pytest.raises(KernelMissing) as missing:
        unfolded(tiny_config(), binding)
    assert [line.split()[1] for line in missing.value.message.splitlines()] == ["rope", "kv_write"]
    assert "the backend has no kernel for it" in missing.value.message
