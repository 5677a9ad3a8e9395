"""Which tensors a model needs, by Hugging Face name and shape. Knows model configs; knows no file.

Also the translation of GGUF's names into these.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from anychip.models.config import ModelConfig
from anychip.weights.tensors import TensorInfo

EMBEDDING = "model.embed_tokens.weight"
LM_HEAD = "lm_head.weight"

# Buffers that older versions of transformers saved; the engine computes them from the config.
_BUFFERS = re.compile(r"(^|\.)rotary_emb\.(inv_freq|cos_cached|sin_cached)$|\.self_attn\.(masked_)?bias$")

_GGUF_TOP = {"token_embd.weight": EMBEDDING, "output_norm.weight": "model.norm.weight", "output.weight": LM_HEAD}
_GGUF_LAYER = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_GGUF_BLOCK = re.compile(r"^blk\.(\d+)\.(\w+)\.(weight|bias)$")

_SHOWN = 8  # names shown of a long list


def from_gguf(name: str) -> str | None:
    """The Hugging Face name of a GGUF tensor, None for one that no supported model has."""
    if name in _GGUF_TOP:
        return _GGUF_TOP[name]
    match = _GGUF_BLOCK.match(name)
    if match is None or match[2] not in _GGUF_LAYER:
        return None
    return f"model.layers.{match[1]}.{_GGUF_LAYER[match[2]]}.{match[3]}"


def expected_tensors(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor that the model reads, with its shape, in the order of the forward pass."""
    hidden = config.hidden_size
    expected: dict[str, tuple[int, ...]] = {EMBEDDING: (config.vocab_size, hidden)}
    for layer in range(config.num_layers):
        expected |= _layer(config, f"model.layers.{layer}.")
    expected["model.norm.weight"] = (hidden,)
    if not config.tie_word_embeddings:
        expected[LM_HEAD] = (config.vocab_size, hidden)
    return expected


def _layer(config: ModelConfig, prefix: str) -> dict[str, tuple[int, ...]]:
    hidden, inner = config.hidden_size, config.intermediate_size
    linears = (
        ("self_attn.q_proj", config.q_size, hidden, config.attention_bias),
        ("self_attn.k_proj", config.kv_size, hidden, config.attention_bias),
        ("self_attn.v_proj", config.kv_size, hidden, config.attention_bias),
        ("self_attn.o_proj", hidden, config.q_size, config.attention_out_bias),
        ("mlp.gate_proj", inner, hidden, config.mlp_bias),
        ("mlp.up_proj", inner, hidden, config.mlp_bias),
        ("mlp.down_proj", hidden, inner, config.mlp_bias),
    )
    expected: dict[str, tuple[int, ...]] = {
        f"{prefix}input_layernorm.weight": (hidden,),
        f"{prefix}post_attention_layernorm.weight": (hidden,),
    }
    if config.qk_norm:
        expected[f"{prefix}self_attn.q_norm.weight"] = (config.head_dim,)
        expected[f"{prefix}self_attn.k_norm.weight"] = (config.head_dim,)
    for name, rows, columns, has_bias in linears:
        expected[f"{prefix}{name}.weight"] = (rows, columns)
        if has_bias:
            expected[f"{prefix}{name}.bias"] = (rows,)
    return expected


def ignorable(config: ModelConfig, name: str) -> bool:
    """Whether a tensor may be in the file without being read: derived buffers, the copy of a tied embedding."""
    return bool(_BUFFERS.search(name)) or (name == LM_HEAD and config.tie_word_embeddings)


def check_tensors(config: ModelConfig, tensors: Mapping[str, TensorInfo]) -> list[str]:
    """Compare what the file has with what the model needs; every difference is a problem."""
    expected = expected_tensors(config)
    problems = [
        f"tensor {name} has shape {list(tensors[name].shape)}, the config asks for {list(shape)}"
        for name, shape in expected.items()
        if name in tensors and tensors[name].shape != shape
    ]
    missing = [name for name in expected if name not in tensors]
    surplus = [name for name in tensors if name not in expected and not ignorable(config, name)]
    if missing:
        problems.append(f"{len(missing)} tensors are missing: {shorten(missing)}")
    if surplus:
        problems.append(f"{len(surplus)} tensors are not part of {config.architecture}: {shorten(surplus)}")
    return problems


def shorten(names: list[str]) -> str:
    """The first few names of a list and how many more there are."""
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


__all__ = ["EMBEDDING", "LM_HEAD", "check_tensors", "expected_tensors", "from_gguf", "ignorable", "shorten"]
