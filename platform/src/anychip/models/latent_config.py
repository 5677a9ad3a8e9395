"""What a config says of latent attention, and where its matrices stand in checkpoints. Reads no file."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

from anychip.models.decoder_config import MAX_HEADS, AttentionTraits, DecoderConfig
from anychip.models.raw import Fields
from anychip.models.rope_config import RopeConfig
from anychip.models.source import Source

#: sizes of attention whose keys and values are alike
OF_EQUAL_HEADS = ("kv_heads", "head_dim", "heads_per_kv_head")


@dataclass(frozen=True)
class LatentShape:
    """Sizes of latent attention (DeepSeek-V2, 2024).

    A token keeps `rank` numbers that keys and values are made of, and `rope_dim` rotated ones with which the keys of
    all heads end. `nope_dim` dimensions of a head's queries and keys are not rotated. Queries are made by way of
    `q_rank` numbers; None: by one matrix. `is_paired`: checkpoints rotate neighbours against each other.
    """

    q_rank: int | None
    rank: int
    rope_dim: int
    nope_dim: int
    value_dim: int
    is_paired: bool

    @property
    def key_dim(self) -> int:
        return self.nope_dim + self.rope_dim

    @property
    def expand_from(self) -> int:
        """From so many query tokens of a row on, expanding keys and values takes fewer products than absorbing.

        For a head and a token that is seen: expanding it takes rank products for each of nope_dim + value_dim numbers,
        once. Absorbed, each query takes rank + rope_dim for its score and rank for what it mixes, in place of key_dim
        and value_dim.
        """
        once = self.rank * (self.nope_dim + self.value_dim)
        each = 2 * self.rank + self.rope_dim - self.key_dim - self.value_dim
        return 1 + once // each if each > 0 else MAX_HEADS


class LatentDefaults(NamedTuple):
    """What a class of transformers takes for granted."""

    q_rank: int | None = 1536
    rank: int = 512
    rope_dim: int = 64
    nope_dim: int = 128
    value_dim: int | None = 128  #: None: hidden_size / num_attention_heads
    is_paired: bool = True


@dataclass(frozen=True)
class LatentConfig(DecoderConfig):
    """A decoder with latent attention; `head_dim` is that of what is rotated."""

    latent_defaults = LatentDefaults()

    latent: LatentShape

    @classmethod
    def read(cls, fields: Fields, generation: Fields) -> dict[str, Any]:
        found = super().read(fields, generation)
        known = cls.latent_defaults
        value_dim = known.value_dim or found["hidden_size"] // found["num_heads"]
        latent = LatentShape(
            q_rank=fields.optional_integer("q_lora_rank", minimum=1) if "q_lora_rank" in fields.raw else known.q_rank,
            rank=fields.integer("kv_lora_rank", known.rank),
            rope_dim=fields.integer("qk_rope_head_dim", known.rope_dim, maximum=MAX_HEADS),
            nope_dim=fields.integer("qk_nope_head_dim", known.nope_dim, maximum=MAX_HEADS),
            value_dim=fields.integer("v_head_dim", value_dim, maximum=MAX_HEADS),
            is_paired=fields.boolean("rope_interleave", True) if known.is_paired else False,
        )
        _check(fields, found, latent)
        return {**found, "head_dim": latent.rope_dim, "latent": latent}

    @property
    def notes(self) -> tuple[str, ...]:
        latent = self.latent
        expanded = f"a prompt's part of {latent.expand_from} tokens or more has keys and values expanded"
        sizes = f"rank {latent.rank}, heads of {latent.nope_dim} + {latent.rope_dim} and {latent.value_dim}"
        return (f"latent attention: {expanded}, which takes fewer products from there on ({sizes})",)

    def attention(self, layer: int) -> AttentionTraits:
        return AttentionTraits(self.latent.key_dim**-0.5 * score_factor(self.rope), None)

    def facts(self) -> dict[str, int]:
        """There is no head_dim: a head's queries are wider than its values."""
        found = {name: size for name, size in super().facts().items() if name not in OF_EQUAL_HEADS}
        names = ("rank", "rope_dim", "nope_dim", "value_dim")
        return {**found, **{name: getattr(self.latent, name) for name in names}}

    def sources(self, name: str, shape: tuple[int, ...]) -> tuple[Source, ...]:
        """Each head's rows for keys and for values are apart; what is rotated has its halves one behind the other."""
        *path, module, kind = name.split(".")
        latent, heads = self.latent, range(self.num_heads)
        if kind in ("key_weight", "value_weight"):
            each = latent.nope_dim + latent.value_dim
            first, stop = (0, latent.nope_dim) if kind == "key_weight" else (latent.nope_dim, each)
            tensor, whole = ".".join((*path, module, "weight")), (self.num_heads * each, latent.rank)
            return tuple(Source(tensor, whole, rows=range(h * each + first, h * each + stop)) for h in heads)
        if not latent.is_paired or module not in ("q_proj", "q_b_proj", "kv_a_proj_with_mqa"):
            return super().sources(name, shape)
        if module == "kv_a_proj_with_mqa":
            return _unpaired(name, shape, 0, latent.rank, latent.rope_dim)
        starts = (head * latent.key_dim for head in heads)
        return tuple(one for at in starts for one in _unpaired(name, shape, at, latent.nope_dim, latent.rope_dim))


def score_factor(rope: RopeConfig) -> float:
    """What YaRN's `mscale_all_dim` multiplies scores by, whatever cosines and sines are multiplied by."""
    if rope.type == "default" or not rope.mscale_all_dim or rope.factor <= 1:
        return 1.0
    return float((0.1 * rope.mscale_all_dim * math.log(rope.factor) + 1.0) ** 2)


def _check(fields: Fields, found: dict[str, Any], latent: LatentShape) -> None:
    if latent.rope_dim % 2:
        fields.complain("qk_rope_head_dim", "an even number")
    if "head_dim" in fields and found["head_dim"] not in (latent.rope_dim, latent.key_dim):
        fields.complain("head_dim", f"qk_rope_head_dim, which is {latent.rope_dim}")
    if found["num_kv_heads"] != found["num_heads"]:
        fields.complain("num_key_value_heads", f"num_attention_heads, which is {found['num_heads']}")


def _unpaired(name: str, shape: tuple[int, ...], start: int, plain: int, turned: int) -> tuple[Source, ...]:
    """So many rows as they are, then even and odd ones of those that are rotated in pairs."""
    first = start + plain
    stop = first + turned
    ranges = (range(start, first), range(first, stop, 2), range(first + 1, stop, 2))
    return tuple(Source(name, shape, rows=rows) for rows in ranges)


__all__ = ["LatentConfig", "LatentDefaults", "LatentShape", "score_factor"]
