"""The logits of every family of mixtures are transformers', in one chunk and in several. Knows no scheduler."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from support.engines import loaded, logits_of, make_recipe, random_prompts
from support.family_models import make_family

TOKENS = 24
CHUNKS = (1, 9, 4, 9, 1)
TOLERANCE = 1e-4  # of the largest logit

LATENTS = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 24,
    "qk_rope_head_dim": 16,
    "v_head_dim": 20,
}
GROUPS = {"n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "n_group": 2, "topk_group": 1}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 8.0, "original_max_position_embeddings": 64}
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
DELTA = {
    "head_dim": 32, "layer_types": ["linear_attention", "full_attention"], "shared_expert_intermediate_size": 48,
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 24,
}  # fmt: skip
FAMILIES = {
    "qwen3_moe": ("qwen3_moe", {**EXPERTS, "head_dim": 16, "norm_topk_prob": True}),
    "qwen3_moe with a dense layer": ("qwen3_moe", {**EXPERTS, "mlp_only_layers": [1], "decoder_sparse_step": 1}),
    "qwen2_moe": ("qwen2_moe", {**EXPERTS, "shared_expert_intermediate_size": 48}),
    "olmoe": ("olmoe", {"num_experts": 8, "num_experts_per_tok": 3, "norm_topk_prob": False}),
    "mixtral": ("mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 6}),
    "glm4_moe": ("glm4_moe", {"n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
                              "n_group": 2, "topk_group": 1, "first_k_dense_replace": 1, "routed_scaling_factor": 2.5,
                              "head_dim": 32, "use_qk_norm": True, "attention_bias": True,
                              "num_nextn_predict_layers": 0}),
    "ernie4_5_moe": ("ernie4_5_moe", {"moe_num_experts": 8, "moe_k": 3, "moe_intermediate_size": 32,
                                      "moe_num_shared_experts": 2, "moe_layer_start_index": 1}),
    "qwen3_next": ("qwen3_next", {**EXPERTS, **DELTA, "norm_topk_prob": False}),
    "qwen3_5_moe": ("qwen3_5_moe_text", {**EXPERTS, **DELTA}),
    "hunyuan_v1_moe": ("hunyuan_v1_moe", {"num_experts": 4, "moe_topk": 2, "head_dim": 16}),
    "granitemoe": ("granitemoe", {"num_local_experts": 4, "num_experts_per_tok": 2, "embedding_multiplier": 6.0,
                                  "residual_multiplier": 0.5, "attention_multiplier": 0.3, "logits_scaling": 0.7}),
    "gpt_oss": ("gpt_oss", {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 16, "sliding_window": 6,
                            "rope_parameters": {"rope_type": "yarn", "rope_theta": 150000.0, "factor": 4.0,
                                                "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
                                                "original_max_position_embeddings": 128}}),
    "deepseek_v2": ("deepseek_v2", {**LATENTS, **GROUPS, "q_lora_rank": 24, "topk_method": "group_limited_greedy",
                                    "first_k_dense_replace": 1, "routed_scaling_factor": 1.7, "attention_bias": True}),
    "deepseek_v2 lite": ("deepseek_v2", {**LATENTS, **GROUPS, "q_lora_rank": None, "first_k_dense_replace": 1,
                                         "rope_parameters": {**YARN, "mscale": 0.707, "mscale_all_dim": 0.707}}),
    "deepseek_v3": ("deepseek_v3", {**LATENTS, **GROUPS, "q_lora_rank": 24, "first_k_dense_replace": 1,
                                    "num_nextn_predict_layers": 0,
                                    "rope_parameters": {**YARN, "mscale": 1.0, "mscale_all_dim": 0.7}}),
    "glm4_moe_lite": ("glm4_moe_lite", {**LATENTS, **GROUPS, "q_lora_rank": 24, "v_head_dim": 48}),
}  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def _one_thread():
    torch.set_num_threads(1)


def reference_logits(directory, ids):
    model = AutoModelForCausalLM.from_pretrained(
        directory, attn_implementation="eager", experts_implementation="eager", dtype=torch.float32
    )
    with torch.inference_mode():
        return model.eval()(torch.tensor([ids])).logits[0].float()


def distance(directory, ids, expected, chunks=None):
    with loaded(make_recipe(directory)) as model:
        found = logits_of(model, ids, chunks)
    return float((found - expected).abs().max() / expected.abs().max())


@pytest.mark.parametrize("name", FAMILIES)
def test_logits_equal_transformers_in_one_chunk_and_in_several(name, tmp_path):
    kind, overrides = FAMILIES[name]
    directory = make_family(tmp_path, kind, **overrides)
    [ids] = random_prompts(1, [TOKENS], vocab=256)
    expected = reference_logits(directory, ids)
    assert expected.std(dim=0).mean() > 0.3  # what is compared must differ from token to token
    with loaded(make_recipe(directory)) as model:
        for chunks in (None, CHUNKS):
            found = logits_of(model, ids, chunks)
            assert float((found - expected).abs().max() / expected.abs().max()) < TOLERANCE


def test_experts_in_stacks_are_the_same_model(tmp_path):
    """Some releases hold a tensor per expert, some one for all, gate and up joined."""
    kind, overrides = FAMILIES["qwen3_moe"]
    directory = make_family(tmp_path / "each", kind, **overrides)
    [ids] = random_prompts(1, [TOKENS], vocab=256)
    expected = reference_logits(directory, ids)
    tensors = load_file(directory / "model.safetensors")
    stacked = {name: value for name, value in tensors.items() if ".mlp.experts." not in name}
    for layer in range(2):
        mlp = f"model.layers.{layer}.mlp.experts"
        gate, up, down = (
            torch.stack([tensors[f"{mlp}.{expert}.{part}_proj.weight"] for expert in range(8)])
            for part in ("gate", "up", "down")
        )
        stacked[f"{mlp}.gate_up_proj"], stacked[f"{mlp}.down_proj"] = torch.cat((gate, up), dim=1), down
    other = tmp_path / "stacked"
    other.mkdir()
    (other / "config.json").write_text(json.dumps(json.loads((directory / "config.json").read_text())))
    save_file(stacked, other / "model.safetensors")
    assert distance(other, ids, expected) < TOLERANCE
