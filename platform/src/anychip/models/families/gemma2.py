"""Gemma 2: norms around attention and MLP, caps on scores and logits, every other layer with a window."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import nn

from anychip.models.attention import Attention
from anychip.models.decoder import CausalLM
from anychip.models.decoder_config import AttentionTraits, DecoderConfig, DecoderDefaults, Factors
from anychip.models.decoder_gguf import POST_NORMS, TENSORS, read_decoder_config
from anychip.models.gguf_names import GGUFFields, GGUFNames
from anychip.models.layer_windows import Windows, parse_windows
from anychip.models.layers import OffsetRMSNorm
from anychip.models.mlp import GatedMLP
from anychip.models.raw import Fields
from anychip_sdk import ops
from anychip_sdk.step import Step

CAPS = ("attn_logit_softcapping", "final_logit_softcapping")
LARGEST = 1e6  #: that a scalar or a cap may be


#: layers of the models whose scores are divided by the root of hidden size / heads: the metadata doesn't say so
_UNUSUAL_LAYERS = {"gemma2": 46, "gemma3": 62}


def read_gemma(fields: GGUFFields) -> dict[str, object]:
    """The keys of config.json of Gemma 2 or 3, text."""
    raw = read_decoder_config(fields, {name: name for name in CAPS}, has_window=True)
    size = raw["head_dim"]
    if raw["num_hidden_layers"] == _UNUSUAL_LAYERS[fields.arch]:
        size = fields.required("embedding_length") / fields.required("attention.head_count")
    return {**dict.fromkeys(CAPS), **raw, "query_pre_attn_scalar": size}


@dataclass(frozen=True)
class GemmaConfig(DecoderConfig):
    """What Gemma 2 and 3 share. `query_scalar`: scores are divided by its root. Caps of None cap nothing."""

    unused = frozenset({"hidden_act"})  # hidden_activation counts

    score_cap_default: ClassVar[float | None]
    logit_cap_default: ClassVar[float | None]

    query_scalar: float
    score_cap: float | None
    logit_cap: float | None

    @classmethod
    def read(cls, fields: Fields, generation: Fields) -> dict[str, Any]:
        if fields.boolean("use_bidirectional_attention", False):
            fields.complain("use_bidirectional_attention", "false: only causal attention is supported")
        own = {
            "query_scalar": fields.number("query_pre_attn_scalar", 256.0, above=0, maximum=LARGEST),
            "score_cap": _cap(fields, "attn_logit_softcapping", cls.score_cap_default),
            "logit_cap": _cap(fields, "final_logit_softcapping", cls.logit_cap_default),
        }
        return {**super().read(fields, generation), **own}

    def attention(self, layer: int) -> AttentionTraits:
        return super().attention(layer)._replace(scale=self.query_scalar**-0.5, soft_cap=self.score_cap)

    def norm(self, size: int) -> OffsetRMSNorm:
        return OffsetRMSNorm(size, self.rms_norm_eps)

    @property
    def factors(self) -> Factors:
        """Embeddings are multiplied by a root that has the digits of the model's dtype."""
        root = torch.tensor(self.hidden_size**0.5, dtype=self.dtype or torch.float32).item()
        return Factors(embedding=root, logit_cap=self.logit_cap)

    def build(self) -> nn.Module:
        return CausalLM(self, (GemmaLayer(self, layer) for layer in range(self.num_layers)))


class Gemma2Config(GemmaConfig):
    """Norms before and behind each block; scores and logits have caps; every other layer has a window."""

    architectures = ("Gemma2ForCausalLM",)
    model_type = "gemma2"
    gguf = GGUFNames("gemma2", read_gemma, TENSORS, POST_NORMS, norm_shift=1.0)
    defaults = DecoderDefaults(
        vocab_size=256000,
        hidden_size=2304,
        intermediate_size=9216,
        num_layers=26,
        num_heads=8,
        num_kv_heads=4,
        head_dim=256,
        max_positions=8192,
        bos=2,
        eos=1,
        hidden_act=("hidden_activation", "gelu_pytorch_tanh"),
        is_tied=True,
    )
    score_cap_default, logit_cap_default = 50.0, 30.0

    @classmethod
    def windows(cls, fields: Fields, num_layers: int) -> Windows:
        return parse_windows(fields, num_layers, 4096, lambda layer: layer % 2 == 0)


class GemmaLayer(nn.Module):
    """Residual block with a norm before and one behind each part."""

    def __init__(self, config: GemmaConfig, layer: int) -> None:
        super().__init__()
        self.input_layernorm = config.norm(config.hidden_size)
        self.self_attn = Attention(config, layer)
        self.post_attention_layernorm = config.norm(config.hidden_size)
        self.pre_feedforward_layernorm = config.norm(config.hidden_size)
        self.mlp = GatedMLP(config)
        self.post_feedforward_layernorm = config.norm(config.hidden_size)

    def forward(self, x: torch.Tensor, step: Step, table: torch.Tensor) -> torch.Tensor:
        attended = self.self_attn(self.input_layernorm(x), step, table)
        x = ops.add(self.post_attention_layernorm(attended), x)
        mixed = self.mlp(self.pre_feedforward_layernorm(x))
        return ops.add(self.post_feedforward_layernorm(mixed), x)  # type: ignore[no-any-return]


def _cap(fields: Fields, key: str, default: float | None) -> float | None:
    """An explicit null means none."""
    return fields.optional_number(key, above=0, maximum=LARGEST) if key in fields.raw else default


__all__ = ["Gemma2Config", "GemmaConfig", "GemmaLayer", "read_gemma"]
