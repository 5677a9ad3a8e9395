"""The small models that the suite makes itself, from a seed: their configs and checkpoints. Knows files; runs nothing.

Weights are spread so that logits lie well apart, and norms are near 1 but not 1, so that one in the wrong place shows.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from anychip.models.config import ModelConfig
from anychip.weights.names import expected_tensors

STD = 0.15
NORM_STD = 0.1
#: what real models have; 1e-6 beside heads of unit variance would be the same to rounding with it and without
EPS = 1e-3

_COMMON: Mapping[str, Any] = {
    "vocab_size": 256,
    "hidden_size": 128,
    "intermediate_size": 192,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": EPS,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
#: by name: what a fusion can meet. qwen3 is the one that is served: grouped queries, norms of queries and keys.
SHAPES: Mapping[str, Mapping[str, Any]] = {
    "qwen3": {"architectures": ["Qwen3ForCausalLM"]},
    "llama": {"architectures": ["LlamaForCausalLM"]},
    "llama-gelu": {"architectures": ["LlamaForCausalLM"], "hidden_act": "gelu_pytorch_tanh"},
    "qwen2": {"architectures": ["Qwen2ForCausalLM"], "num_key_value_heads": 4},
}
_NAMES = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}


def raw_config(shape: str, head_dim: int, dtype: torch.dtype, **overrides: object) -> dict[str, Any]:
    """A config.json's content."""
    named = {"head_dim": head_dim, "torch_dtype": str(dtype).removeprefix("torch.")}
    if shape == "qwen2":  # its heads share the hidden size
        named["head_dim"] = _COMMON["hidden_size"] // _COMMON["num_attention_heads"]
    return {**_COMMON, **named, **SHAPES[shape], **overrides}


def random_weights(config: ModelConfig, dtype: torch.dtype, seed: int) -> dict[str, torch.Tensor]:
    """The checkpoint's tensors by name, rounded to the dtype; the same for the same seed."""
    generator = torch.Generator().manual_seed(seed)
    found = {}
    for name, shape in expected_tensors(config).items():
        values = torch.randn(shape, generator=generator)
        found[name] = (values * STD if len(shape) > 1 else 1 + values * NORM_STD).to(dtype)
    return found


def write_checkpoint(directory: Path, raw: Mapping[str, Any], weights: Mapping[str, torch.Tensor]) -> Path:
    """A directory with config.json and one file of safetensors."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(raw), encoding="utf-8")
    header: dict[str, Any] = {}
    at = 0
    for name, tensor in weights.items():
        header[name] = {
            "dtype": _NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [at, at + tensor.nbytes],
        }
        at += tensor.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with (directory / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for tensor in weights.values():
            file.write(tensor.contiguous().view(torch.uint8).numpy().tobytes())
    return directory


__all__ = ["SHAPES", "random_weights", "raw_config", "write_checkpoint"]
