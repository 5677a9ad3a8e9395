"""Which module graph serves which architecture. Knows architecture names; knows no weights.

Llama, Qwen2 and Qwen3 are one decoder: biases, qk-norm, tied embeddings and sliding windows are read from the config,
so that adding a member of the family is a row here and a row in `config.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import nn

from anychip.models.config import ModelConfig
from anychip.models.decoder import CausalLM
from anychip.models.state import number_states

MODELS: Mapping[str, Callable[[ModelConfig], nn.Module]] = {
    "LlamaForCausalLM": CausalLM,
    "Qwen2ForCausalLM": CausalLM,
    "Qwen3ForCausalLM": CausalLM,
}


def build_model(config: ModelConfig) -> nn.Module:
    """The model's modules, without memory; their states know their groups."""
    model = MODELS[config.architecture](config)
    number_states(model)
    return model


__all__ = ["MODELS", "build_model"]
