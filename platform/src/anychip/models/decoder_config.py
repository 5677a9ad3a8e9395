"""The config that families of decoders with grouped-query attention and rotary positions share. Reads no file."""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, TypeVar

from anychip.models.config import ModelConfig, parse_dtype, parse_token_ids
from anychip.models.layer_windows import FULL_ATTENTION, SLIDING_ATTENTION, Windows, no_windows, parse_windows
from anychip.models.layers import ACTIVATIONS, Norm, RMSNorm
from anychip.models.raw import Fields
from anychip.models.rope_config import RopeConfig, RopeDefaults, check_factors, extended_positions, parse_rope

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
    hidden_size: int = 4096
    num_layers: int = 32
    num_heads: int = 32
    num_kv_heads: int | None = None  # None: as many as query heads
    head_dim: int | None = None  # None: hidden_size / num_heads
    is_head_dim_rounded: bool = False  # that quotient is rounded down
    bos: int | None = None
    eos: int | tuple[int, ...] | None = None
    rms_norm_eps: float = 1e-6
    hidden_act: tuple[str, str] = ("hidden_act", "silu")  # the key, and its value where it is absent
    is_tied: bool = False
    rope: RopeDefaults = RopeDefaults()
    has_local_rope: bool = False  # layers with a window turn in a way of their own
    has_windows: bool = False
    qk_norm: bool = False
    qkv_bias: bool | None = None  # None: the key attention_bias decides
    reads_mlp_bias: bool = False


class AttentionTraits(NamedTuple):
    """What a layer's attention does beside projecting and mixing."""

    scale: float  #: of scores
    window: int | None  #: in tokens; None: it sees everything
    is_turned: bool = True  #: queries and keys are turned to their positions
    soft_cap: float | None = None  #: of scores
    has_sinks: bool = False


class Factors(NamedTuple):
    """What a model's ends are multiplied by; None: by nothing."""

    embedding: float | None = None  #: what comes out of the table
    head: float | None = None  #: what goes into the last product
    logit_cap: float | None = None  #: logits become logit_cap * tanh(logit / logit_cap)


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
        return cls(architecture=architecture, **cls.read(fields, generation))

    @classmethod
    def read(cls, fields: Fields, generation: Fields) -> dict[str, Any]:
        """The config's fields but for the architecture; families add their own."""
        known = cls.defaults
        heads = _heads(fields, known)
        num_layers = fields.integer("num_hidden_layers", known.num_layers, maximum=MAX_LAYERS)
        max_positions = fields.integer("max_position_embeddings", known.max_positions)
        window, layer_types = cls.windows(fields, num_layers)
        bias = fields.boolean("attention_bias", False) if known.qkv_bias is None else known.qkv_bias
        tokens = parse_token_ids(fields, generation, known.bos, known.eos)
        rope = parse_rope(fields, max_positions, known.rope, FULL_ATTENTION if known.has_local_rope else None)
        check_factors(fields, rope, heads.head_dim)
        return dict(
            vocab_size=fields.integer("vocab_size", known.vocab_size, maximum=MAX_VOCABULARY),
            hidden_size=heads.hidden_size,
            intermediate_size=fields.integer("intermediate_size", known.intermediate_size),
            num_layers=num_layers,
            num_heads=heads.num_heads,
            num_kv_heads=heads.num_kv_heads,
            head_dim=heads.head_dim,
            max_positions=max_positions,
            rms_norm_eps=fields.number("rms_norm_eps", known.rms_norm_eps, above=0, maximum=1),
            hidden_act=_activation(fields, *known.hidden_act),
            tie_word_embeddings=fields.boolean("tie_word_embeddings", known.is_tied),
            attention_bias=bias,
            attention_out_bias=bias and known.qkv_bias is None,
            mlp_bias=known.reads_mlp_bias and fields.boolean("mlp_bias", False),
            qk_norm=known.qk_norm,
            rope=rope,
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

    @classmethod
    def windows(cls, fields: Fields, num_layers: int) -> Windows:
        """The window and each layer's type; by default what Qwen's keys say, in families that have windows."""
        if not cls.defaults.has_windows:
            return no_windows(num_layers)
        fields.settle("sliding_window", "max_window_layers", "layer_types")
        if not fields.boolean("use_sliding_window", False):
            return no_windows(num_layers)
        first = fields.integer("max_window_layers", 28, minimum=0)
        return parse_windows(fields, num_layers, 4096, lambda layer: layer >= first)

    def window(self, layer: int) -> int | None:
        """The sliding window of one layer in tokens, None where it sees everything."""
        return self.sliding_window if self.layer_types[layer] == SLIDING_ATTENTION else None

    def attention(self, layer: int) -> AttentionTraits:
        return AttentionTraits(self.head_dim**-0.5, self.window(layer))

    def norm(self, size: int) -> Norm:
        """A normalisation of rows so long, as the family has them."""
        return RMSNorm(size, self.rms_norm_eps)

    @property
    def factors(self) -> Factors:
        return Factors()

    @property
    def rotary_dim(self) -> int:
        """Of each head, so many of the first dimensions turn."""
        return int(self.head_dim * self.rope.partial)

    def rope_of(self, layer: int) -> RopeConfig:
        """How queries and keys of a layer turn."""
        return self.rope

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
        return replace(self.pick(range(min(layers, self.num_layers))), vocab_size=vocab_size)

    def sample(self: Self, vocab_size: int) -> Self:
        """The first layer of each kind."""
        firsts: dict[Hashable, int] = {}
        for layer in range(self.num_layers):
            firsts.setdefault(self.kind(layer), layer)
        return replace(self.pick(tuple(firsts.values())), vocab_size=vocab_size)

    def kind(self, layer: int) -> Hashable:
        """What layers of another kind have otherwise."""
        return self.attention(layer), self.rope_of(layer)

    def pick(self: Self, layers: Sequence[int]) -> Self:
        """The same model with some of its layers; families cut what else has an entry per layer."""
        return replace(self, num_layers=len(layers), layer_types=tuple(self.layer_types[layer] for layer in layers))


class _Heads(NamedTuple):
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int


def _heads(fields: Fields, known: DecoderDefaults) -> _Heads:
    hidden_size = fields.integer("hidden_size", known.hidden_size)
    num_heads = fields.integer("num_attention_heads", known.num_heads, maximum=MAX_HEADS)
    if "num_key_value_heads" in fields.raw or known.num_kv_heads is None:
        num_kv_heads = fields.integer("num_key_value_heads", num_heads, maximum=MAX_HEADS)
    else:
        num_kv_heads = known.num_kv_heads
    if num_heads % num_kv_heads:
        fields.problems.append(
            f"{fields.where}: num_attention_heads {num_heads} is not a multiple of num_key_value_heads {num_kv_heads}"
        )
    is_exact = known.head_dim is not None or known.is_head_dim_rounded or hidden_size % num_heads == 0
    if "head_dim" not in fields and not is_exact:
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


def _activation(fields: Fields, key: str, default: str) -> str:
    name = fields.string(key, default)
    if name not in ACTIVATIONS:
        supported = ", ".join(ACTIVATIONS)
        fields.problems.append(f"{fields.where}: {key} {name!r} is not supported (supported: {supported})")
    return name


__all__ = [
    "FULL_ATTENTION",
    "MAX_HEADS",
    "MAX_VOCABULARY",
    "SLIDING_ATTENTION",
    "AttentionTraits",
    "DecoderConfig",
    "DecoderDefaults",
    "Factors",
]
