"""What mixtures' configs refuse, and that a checkpoint's experts are all read or refused. Builds no model."""

import pytest
import torch

from anychip.models.registry import config_of
from anychip.weights.names import check_tensors, expected_tensors
from anychip.weights.tensors import TensorInfo
from anychip_sdk.errors import CheckpointInvalid

SMALL = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 2, "moe_intermediate_size": 16, "num_experts_per_tok": 2,
}  # fmt: skip
QWEN = {"architectures": ["Qwen2MoeForCausalLM"], **SMALL, "num_experts": 4, "shared_expert_intermediate_size": 32}
GLM = {"architectures": ["Glm4MoeForCausalLM"], **SMALL, "n_routed_experts": 8, "num_nextn_predict_layers": 1}


def problems(raw, change):
    config = config_of(raw)
    shapes = expected_tensors(config)
    change(shapes)
    return check_tensors(
        config, {name: TensorInfo(name, shape, torch.float32, "F32", 0) for name, shape in shapes.items()}
    )


def test_a_checkpoint_as_the_family_has_it_is_whole():
    assert problems(QWEN, lambda shapes: None) == []
    assert problems(GLM, lambda shapes: None) == []


def test_a_shared_expert_that_is_not_there_is_missing():
    name = "model.layers.1.mlp.shared_expert.down_proj.weight"
    assert problems(QWEN, lambda shapes: shapes.pop(name)) == [f"1 tensors are missing: {name}"]


def test_one_expert_that_is_not_there_is_missing():
    name = "model.layers.0.mlp.experts.3.up_proj.weight"
    assert problems(QWEN, lambda shapes: shapes.pop(name)) == [f"1 tensors are missing: {name}"]


def test_experts_under_unknown_names_are_refused_not_dropped():
    def rename(shapes):
        shapes["model.layers.0.mlp.experts.3.up_proj.qweight"] = shapes.pop(
            "model.layers.0.mlp.experts.3.up_proj.weight"
        )

    missing, surplus = problems(QWEN, rename)
    assert "1 tensors are missing" in missing
    assert "up_proj.qweight" in surplus


def test_a_router_of_other_experts_is_told_with_both_shapes():
    def cut(shapes):
        shapes["model.layers.0.mlp.gate.weight"] = (3, 32)

    [problem] = problems(QWEN, cut)
    assert "has shape [3, 32], the config asks for [4, 32]" in problem


def test_layers_that_predict_further_tokens_are_left_out():
    config = config_of(GLM)
    assert config.ignores("model.layers.2.mlp.experts.0.up_proj.weight")
    assert not config.ignores("model.layers.1.mlp.experts.0.up_proj.weight")
    assert not config.ignores("model.layers.3.mlp.experts.0.up_proj.weight")
    assert config.sample(64).ignores("model.layers.2.eh_proj.weight")


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        ({**QWEN, "num_experts_per_tok": 5}, "5 experts per token of 4 experts"),
        ({**GLM, "n_group": 3}, "8 experts are no multiple of 3 groups"),
        ({**GLM, "n_group": 8}, "groups of one expert have no two best"),
        ({**GLM, "n_group": 2, "topk_group": 3}, "topk_group 3 of 2 groups"),
        ({**GLM, "n_group": 4, "topk_group": 1, "num_experts_per_tok": 3}, "fewer are in the chosen groups"),
        ({**QWEN, "mlp_only_layers": "none"}, "mlp_only_layers is 'none'"),
        ({**QWEN, "qkv_bias": False}, "qkv_bias is False"),
        ({"architectures": ["GptOssForCausalLM"], **SMALL, "head_dim": 16, "swiglu_limit": 5.0}, "swiglu_limit is 5.0"),
        ({"architectures": ["OlmoeForCausalLM"], **SMALL, "num_experts": 4, "clip_qkv": 8.0}, "clip_qkv is 8.0"),
    ],
)
def test_what_would_be_computed_wrongly_is_refused_by_name(raw, words):
    with pytest.raises(CheckpointInvalid) as caught:
        config_of(raw)
    assert words in str(caught.value)


def test_a_sample_has_a_layer_of_each_kind_and_few_experts():
    """What verification compares: a real width would take the memory of all experts."""
    config = config_of({**GLM, "n_routed_experts": 128, "num_hidden_layers": 6}).sample(32)
    assert config.is_sparse == (False, True)
    assert config.mixture.experts == 4
