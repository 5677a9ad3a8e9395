"""Tiny random checkpoints of any family that transformers has, written by transformers. Knows its classes alone.

Matrices are spread so that logits differ enough to compare. Norms, biases, sinks and whatever else comes out as 0 or 1
is random too: else a test could not see whether it is used.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers

SMALL: dict[str, Any] = {
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
STD = 0.15
#: families whose norms are held as distances from 1
FROM_ONE = ("gemma2", "gemma3_text", "qwen3_5_text", "qwen3_5_moe_text", "qwen3_next")


def make_family(directory: Path, model_type: str, *, seed: int = 0, **overrides: Any) -> Path:
    """Write a checkpoint of a family's class, float32; overrides are config keys."""
    config = transformers.AutoConfig.for_model(model_type, **{**SMALL, **overrides})
    model = transformers.AutoModelForCausalLM.from_config(config)
    generator = torch.Generator().manual_seed(seed)
    middle = 0.0 if model_type in FROM_ONE else 1.0
    with torch.no_grad():
        for name, value in model.named_parameters():
            if value.dim() > 1:
                value.normal_(0.0, STD, generator=generator)
            else:
                value.normal_(middle if "norm" in name else 0.0, 0.2, generator=generator)
        for name, value in model.named_buffers():
            if name.endswith("correction_bias"):
                value.normal_(0.0, 0.2, generator=generator)
    model.save_pretrained(directory)
    return directory


__all__ = ["SMALL", "make_family"]
