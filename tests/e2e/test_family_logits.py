"""The logits of every dense family are transformers', in one chunk and in several. Knows no scheduler."""

import pytest
import torch
from transformers import AutoModelForCausalLM

from support.engines import loaded, logits_of, make_recipe, random_prompts
from support.family_models import make_family

TOKENS = 40
CHUNKS = (1, 16, 7, 15, 1)
TOLERANCE = 1e-4  # of the largest logit

WINDOW = {"sliding_window": 6}
DELTA = {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 24}
LATENTS = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 24,
    "qk_rope_head_dim": 16,
    "v_head_dim": 20,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "original_max_position_embeddings": 64,
    "mscale": 0.7,
    "mscale_all_dim": 1.0,
}
FAMILIES = {
    "mistral": ("mistral", {"head_dim": 16, **WINDOW}),
    "mistral without window": ("mistral", {"sliding_window": None}),
    "ministral3": ("ministral3", {"head_dim": 16, "rope_parameters": {
        "rope_type": "yarn", "rope_theta": 10000.0, "factor": 8.0, "original_max_position_embeddings": 8,
        "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.5}}),
    "smollm3": ("smollm3", {"no_rope_layer_interval": 2, "tie_word_embeddings": False}),
    "internlm3": ("internlm3", {"head_dim": 32, "qkv_bias": True, "bias": True}),
    "granite": ("granite", {"embedding_multiplier": 12.0, "residual_multiplier": 0.22, "attention_multiplier": 0.3,
                            "logits_scaling": 0.7, "tie_word_embeddings": False}),
    "olmo2": ("olmo2", {"attention_bias": True}),
    "olmo3": ("olmo3", {"layer_types": ["sliding_attention", "full_attention"], **WINDOW, "rope_scaling": {
        "rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 64, "attention_factor": 1.2}}),
    "gemma2": ("gemma2", {"head_dim": 32, **WINDOW, "query_pre_attn_scalar": 24, "attn_logit_softcapping": 2.0,
                          "final_logit_softcapping": 3.0}),
    "gemma3": ("gemma3_text", {"head_dim": 32, **WINDOW, "query_pre_attn_scalar": 24, "final_logit_softcapping": 5.0,
                               "layer_types": ["sliding_attention", "full_attention"], "rope_scaling": {
                                   "rope_type": "linear", "factor": 4.0}}),
    "glm4": ("glm4", {"head_dim": 32}),
    "phi3": ("phi3", {"partial_rotary_factor": 0.5, **WINDOW}),
    "phi3 with longrope": ("phi3", {"original_max_position_embeddings": 512, "rope_scaling": {
        "rope_type": "longrope", "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7],
        "long_factor": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0], "attention_factor": 1.19}}),
    "cohere2": ("cohere2", {"layer_types": ["sliding_attention", "full_attention"], **WINDOW, "logit_scale": 0.4}),
    "qwen3.5": ("qwen3_5_text", {"head_dim": 32, "layer_types": ["linear_attention", "full_attention"], **DELTA}),
    "qwen3.5 with few value heads": ("qwen3_5_text", {"attention_bias": True, "num_hidden_layers": 3, "head_dim": 16,
                                                      "full_attention_interval": 3, **DELTA, "linear_num_key_heads": 4,
                                                      "linear_conv_kernel_dim": 2}),
    "minicpm3": ("minicpm3", {**LATENTS, "q_lora_rank": 24, "scale_emb": 3, "scale_depth": 1.1, "dim_model_base": 32,
                              "rope_parameters": YARN}),
}  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def _one_thread():
    torch.set_num_threads(1)


def reference_logits(directory, ids):
    model = AutoModelForCausalLM.from_pretrained(directory, attn_implementation="eager", dtype=torch.float32)
    with torch.inference_mode():
        return model.eval()(torch.tensor([ids])).logits[0].float()


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
