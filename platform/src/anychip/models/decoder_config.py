"""The config that families of decoders with grouped-query attention and rotary positions share. Reads no file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple, TypeVar

from anychip.models.config import ModelConfig, parse_dtype, parse_token_ids
from anychip.models.layers import ACTIVATIONS
from anychip.models.raw import Fields
from anychip.models.rope_config import RopeConfig, extended_positions, parse_rope

FULL_ATTENTION = "full_attention"
SLIDING_ATTENTION = "sliding_attention"

MAX_LAYERS = 2048
MAX_VOCABULARY = 2**22
MAX_HEADS = 2**14  #: and as much for the size of one

# Buffers that older versions of transformers saved; the engine computes them from the config.
_BUFFERS = re.compile(r"(^|\.)rotary_emb\.(inv_freq|cos_cached|sin_cached)$|\.self_attn\.(masked_)?bias$")

Self = TypeVar("Self", bound="DecoderConfig")


class DecoderDefaults(NamedTuple):
    """What a class of transformers takes for granted: values of absent keys, and what no key decides."""

    vocab_size: int
    intermediate_size: int
    max_positions: int
    num_kv_heads: int | None = None  # None: as many as query heads
    head_dim: int | None = None  # None: hidden_size / num_heads
    bos: int | None = None
    eos: int | None = None
    has_windows: bool = False
    qk_norm: bool = False
    qkv_bias: bool | None = None  # None: the key attention_bias decides
    reads_mlp_bias: bool = False


@dataclass(frozen=True)
class DecoderConfig(ModelConfig):
    """The shape of one decoder.

    `attention_bias` is about q, k and v; `attention_out_bias` about o. `layer_types` has one entry per layer;
    `sliding_window` (tokens) counts for the sliding ones.
    """

    defaults: ClassVar[DecoderDefaults]

    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    hidden_act: str
    attention_bias: bool
    attention_out_bias: bool
    mlp_bias: bool
    qk_norm: bool
    rope: RopeConfig
    sliding_window: int | None
    layer_types: tuple[str, ...]

    @classmethod
    def parse(cls: type[Self], architecture: str, fields: Fields, generation: Fields) -> Self:
        known = cls.defaults
        heads = _heads(fields, known)
        num_layers = fields.integer("num_hidden_layers", 32, maximum=MAX_LAYERS)
        max_positions = fields.integer("max_position_embeddings", known.max_positions)
        window, layer_types = _windows(fields, known, num_layers)
        bias = fields.boolean("attention_bias", False) if known.qkv_bias is None else known.qkv_bias
        tokens = parse_token_ids(fields, generation, known.bos, known.eos)
        return cls(
            architecture=architecture,
            vocab_size=fields.integer("vocab_size", known.vocab_size, maximum=MAX_VOCABULARY),
            hidden_size=heads.hidden_size,
            intermediate_size=fields.integer("intermediate_size", known.intermediate_size),
            num_layers=num_layers,
            num_heads=heads.num_heads,
            num_kv_heads=heads.num_kv_heads,
            head_dim=heads.head_dim,
            max_positions=max_positions,
            rms_norm_eps=fields.number("rms_norm_eps", 1e-6, above=0, maximum=1),
            hidden_act=_activation(fields),
            tie_word_embeddings=fields.boolean("tie_word_embeddings", False),
            attention_bias=bias,
            attention_out_bias=bias and known.qkv_bias is None,
            mlp_bias=known.reads_mlp_bias and fields.boolean("mlp_bias", False),
            qk_norm=known.qk_norm,
            rope=parse_rope(fields, max_positions),
            sliding_window=window,
            layer_types=layer_types,
            dtype=parse_dtype(fields),
            bos_token_id=tokens.bos,
            eos_token_ids=tokens.eos,
            pad_token_id=tokens.pad,
        )

    @property
    def q_size(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.num_kv_heads * self.head_dim

    @property
    def longest_context(self) -> int:
        return extended_positions(self.rope, self.max_positions)

    def window(self, layer: int) -> int | None:
        """The sliding window of one layer in tokens, None where it sees everything."""
        return self.sliding_window if self.layer_types[layer] == SLIDING_ATTENTION else None

    def facts(self) -> dict[str, int]:
        return {
            **super().facts(),
            "heads": self.num_heads,
            "kv_heads": self.num_kv_heads,
            "head_dim": self.head_dim,
            "heads_per_kv_head": self.num_heads // self.num_kv_heads,
            "inner": self.intermediate_size,
        }

    def ignores(self, tensor: str) -> bool:
        """Derived buffers, and the copy of a tied embedding."""
        return bool(_BUFFERS.search(tensor)) or tensor in self.copies()

    def copies(self) -> Mapping[str, str]:
        return {"lm_head.weight": "model.embed_tokens.weight"} if self.tie_word_embeddings else {}

    def with_layers(self: Self, layers: int, vocab_size: int) -> Self:
        return replace(super().with_layers(layers, vocab_size), layer_types=self.layer_types[:layers])


class _Heads(NamedTuple):
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int


def _heads(fields: Fields, known: DecoderDefaults) -> _Heads:
    hidden_size = fields.integer("hidden_size", 4096)
    num_heads = fields.integer("num_attention_heads", 32, maximum=MAX_HEADS)
    if "num_key_value_heads" in fields.raw or known.num_kv_heads is None:
        num_kv_heads = fields.integer("num_key_value_heads", num_heads, maximum=MAX_HEADS)
    else:
        num_kv_heads = known.num_kv_heads
    if num_heads % num_kv_heads:
        fields.problems.append(
            f"{fields.where}: num_attention_heads {num_heads} is not a multiple of num_key_value_heads {num_kv_heads}"
        )
    if "head_dim" not in fields and known.head_dim is None and hidden_size % num_heads:
        fields.problems.append(
            f"{fields.where}: hidden_size {hidden_size} is not a multiple of num_attention_heads {num_heads} "
            "and head_dim is absent"
        )
    computed = known.head_dim or max(1, hidden_size // num_heads)
    head_dim = fields.integer("head_dim", computed, maximum=MAX_HEADS)
    if "head_dim" not in fields and computed > MAX_HEADS:
        fields.problems.append(f"{fields.where}: hidden_size / num_attention_heads is {computed}, above {MAX_HEADS:,}")
    if head_dim % 2:
        fields.problems.append(f"{fields.where}: head_dim {head_dim} is odd; rotary embedding needs an even one")
    return _Heads(hidden_size, num_heads, num_kv_heads, head_dim)


def _windows(fields: Fields, known: DecoderDefaults, num_layers: int) -> tuple[int | None, tuple[str, ...]]:
    everything = (FULL_ATTENTION,) * num_layers
    if not known.has_windows:
        return None, everything
    fields.settle("sliding_window", "max_window_layers", "layer_types")
    if not fields.boolean("use_sliding_window", False):
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
        fields.problems.append(f"{fields.where}: layer_types has {len(types)} entries for {num_layers} layers")
    unknown = sorted(set(types) - {FULL_ATTENTION, SLIDING_ATTENTION})
    if unknown:
        fields.problems.append(f"{fields.where}: layer_types {', '.join(unknown)} are not supported")
    return window, types


def _activation(fields: Fields) -> str:
    name = fields.string("hidden_act", "silu")
    if name not in ACTIVATIONS:
        supported = ", ".join(ACTIVATIONS)
        fields.problems.append(f"{fields.where}: hidden_act {name!r} is not supported (supported: {supported})")
    return name


__all__ = ["FULL_ATTENTION", "MAX_VOCABULARY", "SLIDING_ATTENTION", "DecoderConfig", "DecoderDefaults"]
