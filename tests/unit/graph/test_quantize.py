"""Products become products of integers, fused or not, and nothing else changes. Knows graphs; runs none."""

import pytest

from anychip.graph.codegen import source_of
from anychip.graph.ir import argument
from anychip.plan.explain import as_json, as_text
from anychip_sdk import one_of
from anychip_sdk.errors import FusionRefused, KernelMissing, PreconditionFailed
from support.engines import make_recipe
from support.plans import WHOLE_ROWS, plan_of, references, stub_backend, tiny_config

SMALL = ["qkv_proj", "gate_up_proj", "add_rms_norm"]


def planned(quantization, policies=SMALL, backend=None, config=None, on_missing="ignore", **sections):
    fusion = {"policies": policies, "on_missing": on_missing}
    recipe = make_recipe("/models/m", model={"quantization": quantization}, fusion=fusion, **sections)
    return plan_of(recipe, config or tiny_config(), backend or stub_backend())


def counts(plan):
    return {row.op: row.count for row in plan.ops if "lin" in row.op or "head" in row.op}


def test_every_product_of_a_layer_and_the_logits_become_integers():
    layers = tiny_config().num_layers
    assert counts(planned("int8", [])) == {"linear_int8": 7 * layers, "lm_head_int8": 1}
    assert counts(planned("int4", [])) == {"linear_int4": 7 * layers, "lm_head_int8": 1}


def test_joined_weights_are_quantized_as_one():
    plan = planned("int8")
    layers = tiny_config().num_layers
    assert counts(plan) == {"linear_int8": 4 * layers, "lm_head_int8": 1}
    spec = plan.weights["model.layers.0.self_attn.q_proj+k_proj+v_proj.int8_weight"]
    assert len(spec.sources) == 3
    assert spec.quantized.shape == spec.shape
    source_of(plan.program, plan.pieces)  # code can be made of it


def test_a_tied_table_is_held_plain_for_the_embedding_and_quantized_for_the_logits():
    plan = planned("int8", config=tiny_config(tie_word_embeddings=True))
    assert {"model.embed_tokens.weight", "model.embed_tokens.int8_weight"} <= set(plan.weights)


def test_biases_stay_as_they_are():
    plan = planned("int4", config=tiny_config("qwen2"))
    assert plan.weights["model.layers.0.self_attn.q_proj+k_proj+v_proj.bias"].quantized is None


def blocks_of(plan):
    found = [(op.name, argument(node, op, "block")) for node, op in plan.graph.op_nodes() if op.name.endswith("_int8")]
    return dict(found)


def test_activations_are_rounded_in_blocks_of_32_or_whole_rows_as_the_backends_kernel_wants():
    assert blocks_of(planned("int8")) == {"linear_int8": 32, "lm_head_int8": 32}
    plan = planned("int8", backend=stub_backend(requires=WHOLE_ROWS))
    assert blocks_of(plan) == {"linear_int8": 0, "lm_head_int8": 32}
    assert {row.op: row.provider for row in plan.ops}["linear_int8"] == "stub"
    assert "row, activations rounded by whole rows, as stub/linear_int8_stub does; 1 " in plan.model.quantization.reason


def test_without_a_kernel_for_either_activations_are_rounded_in_blocks_of_32():
    backend = stub_backend(requires={"linear_int8": {"block": one_of(64)}})
    plan = planned("int8", backend=backend)
    assert blocks_of(plan)["linear_int8"] == 32
    assert {row.op: row.is_fallback for row in plan.ops}["linear_int8"]
    banned = {"overrides": [{"op": "linear_int8", "ban": ["stub"]}]}
    assert blocks_of(planned("int8", backend=stub_backend(requires=WHOLE_ROWS), ops=banned))["linear_int8"] == 32


def test_the_budget_has_the_integers_bytes():
    plain, eight, four = (planned(kind).memory.weights for kind in ("none", "int8", "int4"))
    assert four < eight < plain
    plan = planned("int8")
    config = plan.model.config
    table = config.vocab_size * config.hidden_size * 4
    integers = [one for one in plan.weights.values() if one.quantized]
    rest = sum(4 * one.elements for one in plan.weights.values() if not one.quantized)
    assert plan.memory.weights == rest + sum(one.elements * one.quantized.part.dtype.itemsize for one in integers)
    assert rest >= table


def test_the_plan_says_what_became_of_the_matrices():
    plan = planned("int4")
    layers = tiny_config().num_layers
    assert f"{4 * layers} matrices int4, groups of 32" in plan.model.quantization.reason
    assert "quantized  int4 (" in as_text(plan)
    assert as_json(plan)["model"]["quantization"]["value"] == "int4"
    assert "quantized" not in as_text(planned("none")).split("memory")[0]


def test_auto_leaves_a_checkpoint_without_integers_alone():
    plan = planned("auto")
    assert counts(plan) == counts(planned("none"))
    assert plan.model.quantization.reason == "the checkpoint holds no 8- or 4-bit integers"


def test_whole_blocks_are_refused_with_the_reason():
    with pytest.raises(FusionRefused, match=r"mha: not applied: its op takes plain weights.*int8"):
        planned("int8", ["mha", *SMALL], on_missing="error")
    plan = planned("int8", "auto")
    refused = {one.policy: one.reason for one in plan.fusions if one.refused}
    assert "takes plain weights" in refused["mha"]
    assert "takes plain weights" in refused["ffn"]
    assert counts(plan) == counts(planned("int8"))


def test_matrices_that_a_group_does_not_divide_are_named_together():
    with pytest.raises(
        PreconditionFailed, match=r"(?s)self_attn.*64 columns are no multiple of the group of 128"
    ) as told:
        planned("int4-128")
    assert "int4 (groups of 32) or int8" in told.value.hint


def test_a_forbidden_fallback_names_the_op_of_integers():
    backend = stub_backend(kernels=references("linear_int8"))
    with pytest.raises(KernelMissing, match="linear_int8"):
        planned("int8", backend=backend, ops={"fallback": "forbid"})
    assert any("linear_int8" in one for one in planned("int8", backend=backend).warnings)
