"""The logits of tiny models are transformers', whatever the format and the chunks. Knows no scheduler."""

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from support.engines import NO_FUSION, loaded, logits_of, make_recipe, random_prompts
from support.tiny_models import make_tiny, write_gguf

KINDS = ("llama", "qwen2", "qwen3")
TOKENS = 96
CHUNKS = (1, 16, 7, 40, 1, 31)
TOLERANCE = 1e-4  # of the largest logit

LINEAR = {"rope_type": "linear", "factor": 4.0}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
VARIANTS = {
    "llama untied": ("llama", {"tie_word_embeddings": False}),
    "llama biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama head_dim beside hidden size": ("llama", {"head_dim": 32}),
    "llama one kv head": ("llama", {"num_key_value_heads": 1}),
    "llama all kv heads": ("llama", {"num_key_value_heads": 4}),
    "llama gelu": ("llama", {"hidden_act": "gelu_pytorch_tanh"}),
    "llama linear": ("llama", {"rope_scaling": LINEAR}),
    "llama llama3": ("llama", {"rope_scaling": LLAMA3}),
    "llama yarn": ("llama", {"rope_scaling": YARN}),
    "llama yarn with factors": ("llama", {"rope_scaling": {**YARN, "beta_fast": 16.0, "attention_factor": 1.3}}),
    "llama theta": ("llama", {"rope_theta": 500000.0}),
    "qwen2 tied": ("qwen2", {"tie_word_embeddings": True}),
    "qwen2 yarn": ("qwen2", {"rope_scaling": YARN}),
    "qwen2 window": ("qwen2", {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}),
    "qwen3 untied": ("qwen3", {"tie_word_embeddings": False}),
    "qwen3 biases": ("qwen3", {"attention_bias": True}),
    "qwen3 yarn": ("qwen3", {"rope_scaling": YARN}),
}


def reference_logits(directory, ids):
    model = AutoModelForCausalLM.from_pretrained(directory, attn_implementation="eager", dtype=torch.float32)
    with torch.inference_mode():
        return model.eval()(torch.tensor([ids])).logits[0].float()


def our_logits(source, ids, chunks=None, **sections):
    with loaded(make_recipe(source, **sections)) as model:
        return logits_of(model, ids, chunks)


def distance(ours, reference):
    """Of the largest logit. What is compared must differ from token to token, or agreement would mean nothing."""
    assert reference.std() > 0.3
    assert reference.std(dim=0).mean() > 0.3
    return float((ours - reference).abs().max() / reference.abs().max())


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def ids():
    return random_prompts(1, [TOKENS])[0]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """Kind -> (directory, reference logits)."""
    folder = tmp_path_factory.mktemp("tiny")
    made = {}

    def get(kind, ids):
        if kind not in made:
            directory = make_tiny(folder / kind, kind)
            made[kind] = directory, reference_logits(directory, ids)
        return made[kind]

    return get


@pytest.mark.parametrize("kind", KINDS)
def test_logits_equal_transformers(tiny, ids, kind):
    directory, reference = tiny(kind, ids)
    assert distance(our_logits(directory, ids), reference) < TOLERANCE
    assert distance(our_logits(directory, ids, CHUNKS), reference) < TOLERANCE


@pytest.mark.parametrize("kind", KINDS)
def test_logits_equal_transformers_without_fusions_token_by_token(tiny, ids, kind):
    directory, reference = tiny(kind, ids)
    ours = our_logits(directory, ids, [1] * TOKENS, fusion=NO_FUSION, memory={"page_size": 1})
    assert distance(ours, reference) < TOLERANCE


@pytest.mark.parametrize("kind", KINDS)
def test_logits_of_gguf_files_equal_transformers(tiny, ids, kind, tmp_path):
    directory, reference = tiny(kind, ids)
    file = write_gguf(directory, tmp_path / "model.gguf")
    assert distance(our_logits(file, ids, CHUNKS), reference) < TOLERANCE


@pytest.mark.parametrize("name", VARIANTS)
def test_logits_of_every_variant_equal_transformers(tmp_path, ids, name):
    kind, overrides = VARIANTS[name]
    directory = make_tiny(tmp_path / "model", kind, **overrides)
    assert distance(our_logits(directory, ids, CHUNKS), reference_logits(directory, ids)) < TOLERANCE


@pytest.mark.parametrize("scaling", [LINEAR, {**LLAMA3, "original_max_position_embeddings": 256}, YARN])
def test_rope_scaling_of_gguf_files_equals_transformers(tmp_path, ids, scaling):
    directory = make_tiny(tmp_path / "model", "llama", head_dim=64, rope_scaling=scaling)
    file = write_gguf(directory, tmp_path / "model.gguf")
    assert distance(our_logits(file, ids), reference_logits(directory, ids)) < TOLERANCE


@pytest.mark.parametrize(
    "weight",
    [
        "model.layers.1.self_attn.k_proj.weight",
        "model.layers.2.mlp.up_proj.weight",
        "model.layers.0.self_attn.q_norm.weight",
        "model.layers.1.post_attention_layernorm.weight",
        "model.norm.weight",
    ],
)
def test_a_changed_weight_shows(tiny, ids, tmp_path, weight):
    """The comparison can fail: one part in ten of one tensor is enough."""
    directory, reference = tiny("qwen3", ids)
    tensors = load_file(directory / "model.safetensors")
    tensors[weight] = tensors[weight] * (1 + 0.1 * torch.arange(tensors[weight].shape[0]).remainder(2).float()).view(
        -1, *[1] * (tensors[weight].dim() - 1)
    )
    (tmp_path / "config.json").write_bytes((directory / "config.json").read_bytes())
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    assert distance(our_logits(tmp_path, ids), reference) > 10 * TOLERANCE


def test_a_window_shows(tmp_path, ids):
    windowed = {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}
    with_window = make_tiny(tmp_path / "with", "qwen2", **windowed)
    without = make_tiny(tmp_path / "without", "qwen2")
    assert distance(our_logits(with_window, ids), reference_logits(without, ids)) > 10 * TOLERANCE


@pytest.mark.parametrize("scaling", [LINEAR, LLAMA3, YARN])
def test_a_rope_scaling_shows(tiny, ids, tmp_path, scaling):
    plain, _ = tiny("llama", ids)
    scaled = make_tiny(tmp_path / "scaled", "llama", rope_scaling=scaling)
    assert distance(our_logits(plain, ids), reference_logits(scaled, ids)) > 10 * TOLERANCE


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_is_near_float32(tiny, ids, dtype):
    directory, reference = tiny("qwen3", ids)
    eps = torch.finfo(getattr(torch, dtype)).eps
    assert distance(our_logits(directory, ids, CHUNKS, model={"dtype": dtype}), reference) < 8 * eps
