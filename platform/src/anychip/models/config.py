"""A model's shape, read from the raw config.json. Knows what Llama, Qwen2 and Qwen3 mean by each key; reads no file.

The raw JSON is read rather than a library's config object: a library fills in defaults, after which nobody can
tell a value of the checkpoint from a value of the library's version.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch

from anychip.models.raw import Fields, refuse
from anychip.models.rope_config import RopeConfig, parse_rope


class _Family(NamedTuple):
    """What a class of transformers takes for granted when a key is absent."""

    model_type: str
    vocab_size: int
    intermediate_size: int
    num_kv_heads: int | None  # None: as many as query heads
    head_dim: int | None  # None: hidden_size / num_heads
    max_positions: int
    bos: int | None
    eos: int | None
    has_windows: bool
    qk_norm: bool
    qkv_bias: bool | None  # None: the key attention_bias decides


_FAMILIES: Mapping[str, _Family] = {
    "LlamaForCausalLM": _Family("llama", 32000, 11008, None, None, 2048, 1, 2, False, False, None),
    "Qwen2ForCausalLM": _Family("qwen2", 151936, 22016, 32, None, 32768, None, None, True, False, True),
    "Qwen3ForCausalLM": _Family("qwen3", 151936, 22016, 32, 128, 32768, None, None, True, True, None),
}

SUPPORTED_ARCHITECTURES: tuple[str, ...] = tuple(_FAMILIES)
SUPPORTED_ACTIVATIONS: tuple[str, ...] = ("silu", "gelu_pytorch_tanh")

FULL_ATTENTION = "full_attention"
SLIDING_ATTENTION = "sliding_attention"

_DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class ModelConfig:
    """The shape of one decoder-only model.

    `attention_bias` is about q, k and v; `attention_out_bias` about o. `layer_types` has one entry per layer;
    `sliding_window` (tokens) counts for the sliding ones. `dtype` is None where the checkpoint names none.
    """

    architecture: str
    model_type: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_positions: int
    rms_norm_eps: float
    hidden_act: str
    tie_word_embeddings: bool
    attention_bias: bool
    attention_out_bias: bool
    mlp_bias: bool
    qk_norm: bool
    rope: RopeConfig
    sliding_window: int | None
    layer_types: tuple[str, ...]
    dtype: torch.dtype | None
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    pad_token_id: int | None

    @classmethod
    def from_raw(cls, raw: Mapping[str, object], generation: Mapping[str, object] | None = None) -> ModelConfig:
        """Parse config.json's content, with generation_config.json's where there is one.

        Raises:
            CheckpointInvalid: with every problem at once.
        """
        problems: list[str] = []
        config = parse_config(raw, generation or {}, problems)
        if config is None or problems:
            raise refuse("config", problems)
        return config

    @property
    def q_size(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.num_kv_heads * self.head_dim

    def window(self, layer: int) -> int | None:
        """The sliding window of one layer in tokens, None where it sees everything."""
        return self.sliding_window if self.layer_types[layer] == SLIDING_ATTENTION else None


def parse_config(
    raw: Mapping[str, object], generation: Mapping[str, object], problems: list[str]
) -> ModelConfig | None:
    """Parse both files' content. Problems are appended; None where not even the architecture is known."""
    fields = Fields(raw, problems, "config.json")
    architecture = _architecture(fields)
    if architecture is None:
        return None
    family = _FAMILIES[architecture]
    if "quantization_config" in fields:
        section = fields.section("quantization_config")
        method = section.string("quant_method", "unnamed") if section else "unnamed"
        problems.append(f"config.json: quantization_config ({method}) is not supported; use unquantized weights")
    heads = _heads(fields, family)
    num_layers = fields.integer("num_hidden_layers", 32)
    max_positions = fields.integer("max_position_embeddings", family.max_positions)
    window, layer_types = _windows(fields, family, num_layers)
    bias = fields.boolean("attention_bias", False) if family.qkv_bias is None else family.qkv_bias
    tokens = _tokens(fields, Fields(generation, problems, "generation_config.json"), family)
    return ModelConfig(
        architecture=architecture,
        model_type=family.model_type,
        vocab_size=fields.integer("vocab_size", family.vocab_size),
        hidden_size=heads.hidden_size,
        intermediate_size=fields.integer("intermediate_size", family.intermediate_size),
        num_layers=num_layers,
        num_heads=heads.num_heads,
        num_kv_heads=heads.num_kv_heads,
        head_dim=heads.head_dim,
        max_positions=max_positions,
        rms_norm_eps=fields.number("rms_norm_eps", 1e-6),
        hidden_act=_activation(fields),
        tie_word_embeddings=fields.boolean("tie_word_embeddings", False),
        attention_bias=bias,
        attention_out_bias=bias and family.qkv_bias is None,
        mlp_bias=family.model_type == "llama" and fields.boolean("mlp_bias", False),
        qk_norm=family.qk_norm,
        rope=parse_rope(fields, max_positions),
        sliding_window=window,
        layer_types=layer_types,
        dtype=_dtype(fields),
        bos_token_id=tokens.bos,
        eos_token_ids=tokens.eos,
        pad_token_id=tokens.pad,
    )


def _architecture(fields: Fields) -> str | None:
    supported = ", ".join(SUPPORTED_ARCHITECTURES)
    names = fields.strings("architectures")
    if names:
        known = next((name for name in names if name in _FAMILIES), None)
        if known is None:
            fields.problems.append(f"config.json: architecture {names[0]!r} is not supported (supported: {supported})")
        return known
    model_type = fields.string("model_type", "")
    for name, family in _FAMILIES.items():
        if family.model_type == model_type:
            return name
    fields.problems.append(
        f"config.json: names no known architecture (architectures absent, model_type {model_type!r}; "
        f"supported: {supported})"
    )
    return None


class _Heads(NamedTuple):
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int


def _heads(fields: Fields, family: _Family) -> _Heads:
    hidden_size = fields.integer("hidden_size", 4096)
    num_heads = fields.integer("num_attention_heads", 32)
    if "num_key_value_heads" in fields.raw or family.num_kv_heads is None:
        num_kv_heads = fields.integer("num_key_value_heads", num_heads)
    else:
        num_kv_heads = family.num_kv_heads
    if num_heads % num_kv_heads:
        fields.problems.append(
            f"config.json: num_attention_heads {num_heads} is not a multiple of num_key_value_heads {num_kv_heads}"
        )
    if "head_dim" not in fields and family.head_dim is None and hidden_size % num_heads:
        fields.problems.append(
            f"config.json: hidden_size {hidden_size} is not a multiple of num_attention_heads {num_heads} "
            "and head_dim is absent"
        )
    head_dim = fields.integer("head_dim", family.head_dim or max(1, hidden_size // num_heads))
    if head_dim % 2:
        fields.problems.append(f"config.json: head_dim {head_dim} is odd; rotary embedding needs an even one")
    return _Heads(hidden_size, num_heads, num_kv_heads, head_dim)


def _windows(fields: Fields, family: _Family, num_layers: int) -> tuple[int | None, tuple[str, ...]]:
    everything = (FULL_ATTENTION,) * num_layers
    if not family.has_windows or not fields.boolean("use_sliding_window", False):
        return None, everything
    # null means "no window", an absent key means the class's 4096
    window = fields.optional_integer("sliding_window", minimum=1) if "sliding_window" in fields.raw else 4096
    if window is None:
        return None, everything
    types = fields.strings("layer_types")
    if types is None:
        first = fields.integer("max_window_layers", 28, minimum=0)
        types = tuple(SLIDING_ATTENTION if i >= first else FULL_ATTENTION for i in range(num_layers))
    if len(types) != num_layers:
        fields.problems.append(f"config.json: layer_types has {len(types)} entries for {num_layers} layers")
    unknown = sorted(set(types) - {FULL_ATTENTION, SLIDING_ATTENTION})
    if unknown:
        fields.problems.append(f"config.json: layer_types {', '.join(unknown)} are not supported")
    return window, types


def _activation(fields: Fields) -> str:
    name = fields.string("hidden_act", "silu")
    if name not in SUPPORTED_ACTIVATIONS:
        supported = ", ".join(SUPPORTED_ACTIVATIONS)
        fields.problems.append(f"config.json: hidden_act {name!r} is not supported (supported: {supported})")
    return name


def _dtype(fields: Fields) -> torch.dtype | None:
    found: dict[str, torch.dtype] = {}
    for key in ("dtype", "torch_dtype"):
        name = fields.string(key, "").removeprefix("torch.")
        if name in ("", "auto"):
            continue
        if name not in _DTYPES:
            fields.complain(key, f"one of {', '.join(_DTYPES)}")
            continue
        found[key] = _DTYPES[name]
    if len(set(found.values())) > 1:
        fields.problems.append(
            f"config.json: dtype is {fields.raw['dtype']!r} but torch_dtype is {fields.raw['torch_dtype']!r}; "
            "keep one of the two"
        )
    return next(iter(found.values()), None)


class _Tokens(NamedTuple):
    bos: int | None
    eos: tuple[int, ...]
    pad: int | None


def _tokens(fields: Fields, generation: Fields, family: _Family) -> _Tokens:
    """generation_config.json's ids come first; config.json's end ids stop the text too.

    Chat models often name the end of the turn in one file and the end of the text in the other.
    """
    default = (family.eos,) if family.eos is not None and "eos_token_id" not in fields.raw else ()
    ours, theirs = generation.token_ids("eos_token_id"), fields.token_ids("eos_token_id")
    eos = dict.fromkeys((*ours, *theirs)) or dict.fromkeys(default)
    first_bos = (*generation.token_ids("bos_token_id"), *fields.token_ids("bos_token_id"))
    bos = first_bos[0] if first_bos else (family.bos if "bos_token_id" not in fields.raw else None)
    first_pad = (*generation.token_ids("pad_token_id"), *fields.token_ids("pad_token_id"))
    return _Tokens(bos, tuple(eos), first_pad[0] if first_pad else None)


__all__ = [
    "FULL_ATTENTION",
    "SLIDING_ATTENTION",
    "SUPPORTED_ACTIVATIONS",
    "SUPPORTED_ARCHITECTURES",
    "ModelConfig",
    "RopeConfig",
    "parse_config",
]
