"""The served model once more, plainly: whole sequences, dense attention, no cache and no op of the catalogue.

In float64 it says what is true; in the model's dtype, what rounding alone makes of it. Knows no engine and no backend.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch.nn.functional import silu

from anychip.models.decoder_config import DecoderConfig


class Truth:
    """A Qwen3-shaped decoder over the checkpoint's tensors."""

    def __init__(self, config: DecoderConfig, weights: Mapping[str, torch.Tensor], dtype: torch.dtype) -> None:
        self._config = config
        self._weights = {name: tensor.to(dtype) for name, tensor in weights.items()}
        self._dtype = dtype

    def logits(self, token_ids: Sequence[int]) -> torch.Tensor:
        """float64 [tokens, vocab]: what follows each token."""
        with torch.inference_mode():
            x = self._weights["model.embed_tokens.weight"][torch.tensor(token_ids)]
            for layer in range(self._config.num_layers):
                prefix = f"model.layers.{layer}."
                x = x + self._attention(prefix, self._norm(prefix + "input_layernorm", x))
                x = x + self._mlp(prefix, self._norm(prefix + "post_attention_layernorm", x))
            return (self._norm("model.norm", x) @ self._weights["lm_head.weight"].T).double()

    def _attention(self, prefix: str, x: torch.Tensor) -> torch.Tensor:
        config = self._config
        q, k, v = (self._heads(prefix, name, x) for name in "qkv")
        q = self._turned(self._norm(prefix + "self_attn.q_norm", q))
        k = self._turned(self._norm(prefix + "self_attn.k_norm", k))
        group = config.num_heads // config.num_kv_heads
        k, v = (one.repeat_interleave(group, dim=1) for one in (k, v))  # head h reads KV head h // group
        scores = torch.einsum("qhd,khd->hqk", q, k).to(self._wide) * config.head_dim**-0.5
        later = torch.ones(len(x), len(x), dtype=torch.bool).triu(1)
        shares = scores.masked_fill(later, float("-inf")).softmax(dim=-1).to(self._dtype)
        mixed = torch.einsum("hqk,khd->qhd", shares, v).flatten(1)
        return mixed @ self._weights[prefix + "self_attn.o_proj.weight"].T

    def _heads(self, prefix: str, name: str, x: torch.Tensor) -> torch.Tensor:
        projected = x @ self._weights[f"{prefix}self_attn.{name}_proj.weight"].T
        return projected.view(len(x), -1, self._config.head_dim)

    def _turned(self, x: torch.Tensor) -> torch.Tensor:
        """Rotary positions: dimension i and i + half of a head are a pair, turned by position / theta^(i / half)."""
        half = self._config.head_dim // 2
        rates = self._config.rope.theta ** (-torch.arange(half, dtype=torch.float64) / half)
        angles = torch.outer(torch.arange(len(x), dtype=torch.float64), rates).unsqueeze(1)
        turns = torch.polar(torch.ones_like(angles), angles)
        pairs = torch.complex(x[..., :half].double(), x[..., half:].double()) * turns
        return torch.cat((pairs.real, pairs.imag), dim=-1).to(self._dtype)

    def _norm(self, name: str, x: torch.Tensor) -> torch.Tensor:
        wide = x.to(self._wide)
        scaled = wide * torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + self._config.rms_norm_eps)
        return (scaled * self._weights[name + ".weight"].to(self._wide)).to(self._dtype)

    def _mlp(self, prefix: str, x: torch.Tensor) -> torch.Tensor:
        gate, up, down = (self._weights[f"{prefix}mlp.{name}_proj.weight"] for name in ("gate", "up", "down"))
        return (silu(x @ gate.T) * (x @ up.T)) @ down.T

    @property
    def _wide(self) -> torch.dtype:
        return torch.promote_types(self._dtype, torch.float32)


__all__ = ["Truth"]
