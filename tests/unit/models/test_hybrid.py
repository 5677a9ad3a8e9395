"""Qwen3-Next's and Qwen3.5's configs, layouts on disk and states. Knows raw configs and tensors' names."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from anychip.graph.trace import trace_config
from anychip.models.registry import build_model, config_of
from anychip.models.state import State
from anychip_sdk.errors import CheckpointInvalid
from support.engines import loaded, logits_of, make_recipe, random_prompts
from support.family_models import make_family

SHAPE = {
    "hidden_size": 32, "head_dim": 16, "num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 48,
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 16,
    "layer_types": ["linear_attention", "full_attention"],
}  # fmt: skip
DENSE = {"architectures": ["Qwen3_5ForCausalLM"], "num_hidden_layers": 2, "vocab_size": 64, **SHAPE}


def refusal(**raw):
    with pytest.raises(CheckpointInvalid) as caught:
        config_of({**DENSE, **raw})
    return str(caught.value)


def sources(config, name):
    return trace_config(config).weights[name].sources


def test_states_are_float32_whatever_the_models_dtype():
    model = build_model(config_of({**DENSE, "dtype": "bfloat16"}))
    kinds = {module.spec.name: module.spec for module in model.modules() if isinstance(module, State)}
    assert {name: spec.kind for name, spec in kinds.items()} == {"gated_delta": "slot", "kv": "paged"}
    kept = {tensor.name: (tensor.shape, tensor.dtype) for tensor in kinds["gated_delta"].tensors}
    assert kept == {"history": ((3, 96), torch.float32), "sums": ((4, 8, 16), torch.float32)}
    assert kinds["gated_delta"].nbytes(torch.bfloat16) == 4 * (3 * 96 + 4 * 8 * 16)


def test_every_fourth_layer_sees_all_tokens_unless_the_config_says_otherwise():
    def full(**raw):
        types = config_of({**DENSE, "layer_types": None, "num_hidden_layers": 8, **raw}).layer_types
        return [at for at, one in enumerate(types) if one == "full_attention"]

    assert full() == [3, 7]
    assert full(full_attention_interval=3) == [2, 5]
    assert config_of(DENSE).sample(32).layer_types == ("linear_attention", "full_attention")


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        ({"layer_types": ["linear_attention"]}, "layer_types has 1 entries for 2 layers"),
        ({"layer_types": ["linear_attention", "mamba"]}, "layer_types mamba are not supported"),
        ({"linear_num_value_heads": 3}, "linear_num_value_heads is 3, expected a multiple of linear_num_key_heads"),
        ({"linear_conv_kernel_dim": 1}, "linear_conv_kernel_dim is 1"),
        ({"attn_output_gate": False}, "attn_output_gate is False"),
        ({"mamba_ssm_dtype": "bfloat16"}, "mamba_ssm_dtype is 'bfloat16'"),
        ({"architectures": ["Qwen3_5MoeForCausalLM"], "norm_topk_prob": False}, "norm_topk_prob is False"),
    ],
)
def test_what_would_be_computed_wrongly_is_refused_by_name(raw, words):
    assert words in refusal(**raw)


def test_a_key_within_the_text_s_config_is_judged_like_one_outside():
    inner = {key: value for key, value in DENSE.items() if key != "architectures"}
    both = {"architectures": ["Qwen3_5ForConditionalGeneration"], "vision_config": {"depth": 1}}
    config_of({**both, "text_config": {**inner, "mamba_ssm_dtype": "float32"}})
    with pytest.raises(CheckpointInvalid, match=r"text_config\.final_logit_softcapping"):
        config_of({**both, "text_config": {**inner, "final_logit_softcapping": 30.0}})


def test_queries_and_their_gates_are_rows_of_one_tensor():
    config = config_of(DENSE)
    prefix = "model.layers.1.self_attn."
    rows = {name: [source.rows for source in sources(config, f"{prefix}{name}.weight")] for name in ("q_proj", "gate")}
    assert rows == {"q_proj": [range(16), range(32, 48)], "gate": [range(16, 32), range(48, 64)]}
    assert {source.tensor for source in sources(config, f"{prefix}gate.weight")} == {f"{prefix}q_proj.weight"}


def test_qwen3_next_groups_rows_by_key_head():
    config = config_of({**DENSE, "architectures": ["Qwen3NextForCausalLM"], "num_experts": 16})
    prefix = "model.layers.0.linear_attn."
    rows = [source.rows for source in sources(config, f"{prefix}in_proj_qkvz.weight")]
    assert rows == [
        *(range(8), range(80, 88)),
        *(range(8, 16), range(88, 96)),
        *(range(16, 48), range(96, 128)),
        *(range(48, 80), range(128, 160)),
    ]
    rows = [source.rows for source in sources(config, f"{prefix}in_proj_ba.weight")]
    assert rows == [range(2), range(4, 6), range(2, 4), range(6, 8)]


def test_a_text_model_beside_a_vision_tower_is_the_same_model(tmp_path):
    plain = make_family(tmp_path / "plain", "qwen3_5_text", **SHAPE, vocab_size=64)
    beside = tmp_path / "beside"
    beside.mkdir()
    tensors = {
        name.replace("model.", "model.language_model.", 1): tensor
        for name, tensor in load_file(plain / "model.safetensors").items()
    }
    unread = {"model.visual.patch_embed.proj.weight": torch.ones(3), "mtp.fc.weight": torch.ones(2, 2)}
    save_file({**tensors, **unread}, beside / "model.safetensors", metadata={"format": "pt"})
    text = json.loads((plain / "config.json").read_text())
    text.pop("architectures")
    config = {
        "architectures": ["Qwen3_5ForConditionalGeneration"], "model_type": "qwen3_5", "vision_config": {"depth": 2},
        "image_token_id": 60, "tie_word_embeddings": False, "text_config": text,
    }  # fmt: skip
    (beside / "config.json").write_text(json.dumps(config))
    [ids] = random_prompts(1, [9], vocab=64)
    found = []
    for folder in (plain, beside):
        with loaded(make_recipe(folder)) as model:
            found.append(logits_of(model, ids))
    assert torch.equal(*found)
