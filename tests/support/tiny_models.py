"""Tiny random checkpoints on disk, as Hugging Face directories and as GGUF files. Knows formats; runs no model.

Weights are spread (standard deviation 0.15) so that logits differ enough to compare; norms are near 1 but not 1,
so that a norm applied to the wrong place shows.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from safetensors.torch import load_file, save_file

from support.tiny_tokenizer import write_tokenizer

STD = 0.15

_COMMON: dict[str, Any] = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "hidden_act": "silu",
    "rope_theta": 10000.0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "torch_dtype": "float32",
}
_KINDS: dict[str, dict[str, Any]] = {
    "llama": {
        "architectures": ["LlamaForCausalLM"], "head_dim": 16, "rms_norm_eps": 1e-5,
        "tie_word_embeddings": True, "attention_bias": False, "mlp_bias": False,
    },
    "qwen2": {
        "architectures": ["Qwen2ForCausalLM"], "rms_norm_eps": 1e-6, "tie_word_embeddings": False,
        "use_sliding_window": False,
    },
    "qwen3": {
        "architectures": ["Qwen3ForCausalLM"], "head_dim": 32, "rms_norm_eps": 1e-6,
        "tie_word_embeddings": True, "attention_bias": False, "use_sliding_window": False,
    },
}  # fmt: skip

_DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


def make_tiny(
    directory: Path, kind: str, *, seed: int = 0, shards: int = 1, tokenizer: bool = False, **overrides: Any
) -> Path:
    """Write config.json and the weights of a tiny `kind` (llama, qwen2, qwen3); overrides are config keys.

    With `shards` > 1 the weights are split and indexed; with `tokenizer` a small byte-level BPE and a ChatML
    template are added, so that the directory can be served.
    """
    config = {"model_type": kind, **_COMMON, **_KINDS[kind], **overrides}
    directory.mkdir(parents=True, exist_ok=True)
    _dump(directory / "config.json", config)
    _save(directory, _random_weights(config, seed), shards)
    if tokenizer:
        write_tokenizer(directory)
    return directory


def _random_weights(config: Mapping[str, Any], seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    dtype = _DTYPES[config["torch_dtype"]]

    def matrix(*shape: int) -> torch.Tensor:
        return (torch.randn(*shape, generator=generator) * STD).to(dtype)

    def norm(size: int) -> torch.Tensor:
        return (1 + torch.randn(size, generator=generator) * 0.1).to(dtype)

    hidden, inner, kind = config["hidden_size"], config["intermediate_size"], config["model_type"]
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    head_dim = config.get("head_dim") or hidden // heads
    qkv_bias = kind == "qwen2" or config.get("attention_bias")
    out_bias = kind != "qwen2" and config.get("attention_bias")
    weights = {"model.embed_tokens.weight": matrix(config["vocab_size"], hidden)}
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        weights[prefix + "input_layernorm.weight"] = norm(hidden)
        weights[prefix + "post_attention_layernorm.weight"] = norm(hidden)
        linears = [
            ("self_attn.q_proj", heads * head_dim, hidden, qkv_bias),
            ("self_attn.k_proj", kv_heads * head_dim, hidden, qkv_bias),
            ("self_attn.v_proj", kv_heads * head_dim, hidden, qkv_bias),
            ("self_attn.o_proj", hidden, heads * head_dim, out_bias),
            ("mlp.gate_proj", inner, hidden, config.get("mlp_bias")),
            ("mlp.up_proj", inner, hidden, config.get("mlp_bias")),
            ("mlp.down_proj", hidden, inner, config.get("mlp_bias")),
        ]
        for name, rows, columns, has_bias in linears:
            weights[f"{prefix}{name}.weight"] = matrix(rows, columns)
            if has_bias:
                weights[f"{prefix}{name}.bias"] = matrix(rows)
        if kind == "qwen3":
            weights[prefix + "self_attn.q_norm.weight"] = norm(head_dim)
            weights[prefix + "self_attn.k_norm.weight"] = norm(head_dim)
    weights["model.norm.weight"] = norm(hidden)
    if not config["tie_word_embeddings"]:
        weights["lm_head.weight"] = matrix(config["vocab_size"], hidden)
    return weights


def _save(directory: Path, weights: dict[str, torch.Tensor], shards: int) -> None:
    if shards == 1:
        save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
        return
    names = list(weights)
    weight_map: dict[str, str] = {}
    for shard in range(shards):
        file = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        part = {name: weights[name] for name in names[shard::shards]}
        weight_map |= dict.fromkeys(part, file)
        save_file(part, directory / file, metadata={"format": "pt"})
    total = sum(weight.nbytes for weight in weights.values())
    _dump(
        directory / "model.safetensors.index.json",
        {"metadata": {"total_size": total}, "weight_map": weight_map},
    )


def _dump(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")


_TO_GGUF = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_TOP = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}


def write_gguf(directory: Path, out: Path, dtype: str = "F32") -> Path:
    """Convert a directory that `make_tiny` wrote to GGUF, matrices stored as `dtype`, everything else as F32.

    With dtype F32 or (for bfloat16 and float16 checkpoints) the checkpoint's own dtype nothing is lost.
    """
    config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    writer = gguf.GGUFWriter(out, config["model_type"])
    _write_config(writer, config)
    if (directory / "tokenizer.json").is_file():
        _write_tokenizer(writer, directory, config)
    for name, tensor in _all_weights(directory).items():
        array = tensor.to(torch.float32).numpy()
        if config["model_type"] == "llama":
            array = _permute(name, array, config)
        _write_tensor(writer, _gguf_name(name), array, dtype)
    _write_rope_scaling(writer, config)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return out


def _write_config(writer: gguf.GGUFWriter, config: Mapping[str, Any]) -> None:
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_bos_token_id(config["bos_token_id"])
    writer.add_eos_token_id(config["eos_token_id"])
    writer.add_pad_token_id(config["pad_token_id"])


def _write_rope_scaling(writer: gguf.GGUFWriter, config: Mapping[str, Any]) -> None:
    """linear and yarn go into the metadata; llama3 becomes a tensor of factors, as converters write it."""
    scaling = config.get("rope_scaling")
    if scaling is None:
        return
    if scaling["rope_type"] == "llama3":
        _write_tensor(writer, "rope_freqs.weight", _llama3_factors(config, scaling), "F32")
        return
    writer.add_rope_scaling_type(gguf.RopeScalingType(scaling["rope_type"]))
    writer.add_rope_scaling_factor(scaling["factor"])
    if "original_max_position_embeddings" in scaling:
        writer.add_rope_scaling_orig_ctx_len(scaling["original_max_position_embeddings"])


def _llama3_factors(config: Mapping[str, Any], scaling: Mapping[str, Any]) -> np.ndarray:
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    half = config["head_dim"] // 2
    waves = 2 * np.pi * config["rope_theta"] ** (np.arange(half) / half)
    smooth = (scaling["original_max_position_embeddings"] / waves - low) / (high - low)
    smooth = np.clip(smooth, 0, 1)
    return (1 / ((1 - smooth) / scaling["factor"] + smooth)).astype(np.float32)


def _write_tokenizer(writer: gguf.GGUFWriter, directory: Path, config: Mapping[str, Any]) -> None:
    tokenizer = json.loads((directory / "tokenizer.json").read_text(encoding="utf-8"))
    tokens = {index: token for token, index in tokenizer["model"]["vocab"].items()}
    types = dict.fromkeys(tokens, gguf.TokenType.NORMAL)
    for added in tokenizer["added_tokens"]:
        tokens[added["id"]] = added["content"]
        types[added["id"]] = gguf.TokenType.CONTROL if added["special"] else gguf.TokenType.USER_DEFINED
    for index in range(config["vocab_size"]):
        tokens.setdefault(index, f"[PAD{index}]")
        types.setdefault(index, gguf.TokenType.UNUSED)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([tokens[index] for index in sorted(tokens)])
    writer.add_token_types([types[index] for index in sorted(tokens)])
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in tokenizer["model"]["merges"]]
    writer.add_token_merges(merges)
    writer.add_add_bos_token(False)
    template = directory / "chat_template.jinja"
    if template.is_file():
        writer.add_chat_template(template.read_text(encoding="utf-8"))


def _all_weights(directory: Path) -> dict[str, torch.Tensor]:
    weights: dict[str, torch.Tensor] = {}
    for file in sorted(directory.glob("*.safetensors")):
        weights |= load_file(file)
    return weights


def _gguf_name(name: str) -> str:
    if name in _TOP:
        return _TOP[name]
    _, _, layer, *role, suffix = name.split(".")
    return f"blk.{layer}.{_TO_GGUF['.'.join(role)]}.{suffix}"


def _permute(name: str, array: np.ndarray, config: Mapping[str, Any]) -> np.ndarray:
    """What converters do to llama's q and k: the halves of each head become interleaved pairs."""
    heads = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}.get(name.split(".")[-2])
    if heads is None:
        return array
    split = array.reshape(config[heads], 2, array.shape[0] // config[heads] // 2, *array.shape[1:])
    return np.ascontiguousarray(split.swapaxes(1, 2).reshape(array.shape))


def _write_tensor(writer: gguf.GGUFWriter, name: str, array: np.ndarray, dtype: str) -> None:
    kind = gguf.GGMLQuantizationType[dtype if array.ndim > 1 else "F32"]
    writer.add_tensor(name, gguf.quants.quantize(array, kind), raw_dtype=kind)


def tiny_by_kind(folder: Path) -> Callable[[str], Path]:
    """The tiny model of a kind, in a folder below; made when it is first asked for."""
    return lru_cache(maxsize=None)(lambda kind: make_tiny(folder / kind, kind))


__all__ = ["make_tiny", "tiny_by_kind", "write_gguf"]
