"""GGUF files of the dense families as converters write them give the logits of the folders that they come from."""

import json

import gguf
import pytest
import torch
from safetensors.torch import load_file

from support.engines import loaded, logits_of, make_recipe, random_prompts
from support.family_models import make_family

TOKENS = 24
WINDOW = {"sliding_window": 6}
#: model type -> the architecture in GGUF, config keys, what the converter writes of them
FAMILIES = {
    "smollm3": ("SMOLLM3", {"no_rope_layer_interval": 4, "num_hidden_layers": 4}, {}),
    "granite": (
        "GRANITE",
        {"embedding_multiplier": 12.0, "residual_multiplier": 0.25, "attention_multiplier": 0.3, "logits_scaling": 0.5},
        {"embedding_scale": 12.0, "residual_scale": 0.25, "attention_scale": 0.3, "logit_scale": 0.5},
    ),
    "olmo2": ("OLMO2", {}, {}),
    "gemma2": (
        "GEMMA2",
        {"head_dim": 32, "query_pre_attn_scalar": 32, **WINDOW, "attn_logit_softcapping": 2.0},
        {"sliding_window": 6, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 30.0},
    ),
    "gemma3_text": (
        "GEMMA3",
        {"head_dim": 32, "query_pre_attn_scalar": 32, **WINDOW, "num_hidden_layers": 6},
        {"sliding_window": 6, "rope_freq_base": 1000000.0},
    ),
    "glm4": ("GLM4", {"head_dim": 32, "attention_bias": True}, {"rope_dimension_count": 16}),
    "phi3": (
        "PHI3",
        {"original_max_position_embeddings": 512, "rope_scaling": {
            "rope_type": "longrope", "short_factor": [1.0 + i / 8 for i in range(8)],
            "long_factor": [1.0 + i for i in range(8)], "attention_factor": 1.25}},
        {"rope_dimension_count": 16, "rope_scaling_orig_ctx_len": 512, "rope_scaling_attn_factors": 1.25},
    ),
    "cohere2": (
        "COHERE2", {**WINDOW, "num_hidden_layers": 4, "logit_scale": 0.5}, {"sliding_window": 6, "logit_scale": 0.5},
    ),
}  # fmt: skip


def write(directory, out, arch, written):
    """As llama.cpp's converter does: names by the package's own map, pairs of Llama's rotation side by side."""
    config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    kind = getattr(gguf.MODEL_ARCH, arch)
    writer = gguf.GGUFWriter(out, gguf.MODEL_ARCH_NAMES[kind])
    sizes = {
        "block_count": config["num_hidden_layers"],
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "feed_forward_length": config["intermediate_size"],
        "head_count": config["num_attention_heads"],
        "head_count_kv": config["num_key_value_heads"],
        "key_length": config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"],
        "rope_freq_base": config["rope_parameters"].get("rope_theta", 10000.0),
        ("layer_norm_eps" if arch == "COHERE2" else "layer_norm_rms_eps"): config.get("rms_norm_eps", 1e-5),
    }
    for name, value in {**sizes, **written}.items():
        getattr(writer, f"add_{name}")(value)
    names = gguf.get_tensor_name_map(kind, config["num_hidden_layers"])
    for name, tensor in load_file(directory / "model.safetensors").items():
        stored = converted(arch, config, name, tensor).contiguous().numpy()
        writer.add_tensor(names.get_name(name, (".weight", ".bias")), stored)
    for key, factors in (config["rope_parameters"] or {}).items():
        if key in ("short_factor", "long_factor"):
            name = f"rope_factors_{key.removesuffix('_factor')}.weight"
            writer.add_tensor(name, torch.tensor(factors).numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return out


def converted(arch, config, name, tensor):
    if arch in ("SMOLLM3", "GRANITE") and name.endswith(("q_proj.weight", "k_proj.weight")):
        heads = config["num_attention_heads" if "q_proj" in name else "num_key_value_heads"]
        return tensor.view(heads, 2, -1, tensor.shape[1]).transpose(1, 2).reshape(tensor.shape)
    return tensor + 1 if arch.startswith("GEMMA") and name.endswith("norm.weight") else tensor


@pytest.mark.parametrize("model_type", FAMILIES)
def test_logits_equal_those_of_the_folder(model_type, tmp_path):
    arch, overrides, written = FAMILIES[model_type]
    directory = make_family(tmp_path / "folder", model_type, **overrides)
    file = write(directory, tmp_path / "model.gguf", arch, written)
    [ids] = random_prompts(1, [TOKENS], vocab=256)
    found = []
    for source in (directory, file):
        with loaded(make_recipe(source)) as model:
            found.append(logits_of(model, ids))
    torch.testing.assert_close(found[1], found[0], rtol=1e-5, atol=1e-5)
