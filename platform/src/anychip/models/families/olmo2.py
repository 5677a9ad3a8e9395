"""OLMo 2: rows are normalised behind attention and MLP, queries and keys over all their heads."""

from __future__ import annotations

import torch
from torch import nn

from anychip.models.attention import Attention, Heads
from anychip.models.decoder import CausalLM
from anychip.models.decoder_config import DecoderConfig, DecoderDefaults
from anychip.models.decoder_gguf import POST_NORMS, TENSORS, read_decoder_config
from anychip.models.gguf_names import GGUFNames
from anychip.models.mlp import GatedMLP
from anychip_sdk import ops
from anychip_sdk.step import Step


class Olmo2Config(DecoderConfig):
    """Norms behind attention and MLP, none before; queries and keys are normalised over all heads at once."""

    architectures = ("Olmo2ForCausalLM",)
    model_type = "olmo2"
    gguf = GGUFNames("olmo2", read_decoder_config, TENSORS, POST_NORMS)
    defaults = DecoderDefaults(
        vocab_size=50304, intermediate_size=11008, max_positions=2048, eos=50279, rms_norm_eps=1e-5
    )

    def build(self) -> nn.Module:
        return CausalLM(self, (Olmo2Layer(self, layer) for layer in range(self.num_layers)))


class Olmo2Attention(Attention):
    def __init__(self, config: DecoderConfig, layer: int) -> None:
        super().__init__(config, layer)
        self.q_norm, self.k_norm = config.norm(config.q_size), config.norm(config.kv_size)

    def project(self, x: torch.Tensor) -> Heads:
        assert self.q_norm is not None
        assert self.k_norm is not None
        q = self.q_norm(self.q_proj(x)).view(-1, self.heads, self.head_dim)
        k = self.k_norm(self.k_proj(x)).view(-1, self.kv_heads, self.head_dim)
        return q, k, self.v_proj(x).view(-1, self.kv_heads, self.head_dim)

    def turn(
        self, q: torch.Tensor, k: torch.Tensor, step: Step, table: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        turned: tuple[torch.Tensor, torch.Tensor] = ops.rope(q, k, step, table)
        return turned


class Olmo2Layer(nn.Module):
    """Residual block whose parts read the sum as it is."""

    def __init__(self, config: DecoderConfig, layer: int) -> None:
        super().__init__()
        self.self_attn = Olmo2Attention(config, layer)
        self.post_attention_layernorm = config.norm(config.hidden_size)
        self.mlp = GatedMLP(config)
        self.post_feedforward_layernorm = config.norm(config.hidden_size)

    def forward(self, x: torch.Tensor, step: Step, table: torch.Tensor) -> torch.Tensor:
        x = ops.add(self.post_attention_layernorm(self.self_attn(x, step, table)), x)
        return ops.add(self.post_feedforward_layernorm(self.mlp(x)), x)  # type: ignore[no-any-return]


__all__ = ["Olmo2Attention", "Olmo2Config", "Olmo2Layer"]
