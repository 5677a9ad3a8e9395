"""Gated DeltaNet (Yang et al., 2024): attention over a state of fixed size. Knows heads; knows no slot."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from anychip.models.decoder_config import MAX_HEADS, DecoderConfig
from anychip.models.layers import Linear, RMSNorm, empty
from anychip.models.raw import Fields
from anychip.models.state import State
from anychip_sdk import ops
from anychip_sdk.state import StateSpec, StateTensor
from anychip_sdk.step import Step

LENGTH_EPS = 1e-6  #: of queries and keys, whatever the norms' is
KERNEL_MAX = 64


@dataclass(frozen=True)
class DeltaShape:
    """Value heads share key heads, as many consecutive ones each. `kernel` is the convolution's, in tokens."""

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    kernel: int

    @property
    def key_size(self) -> int:
        return self.key_heads * self.key_dim

    @property
    def value_size(self) -> int:
        return self.value_heads * self.value_dim

    @property
    def channels(self) -> int:
        """Queries, keys and values side by side: what the convolution goes over."""
        return 2 * self.key_size + self.value_size

    @property
    def repeats(self) -> int:
        """Value heads of a key head."""
        return self.value_heads // self.key_heads

    def facts(self) -> dict[str, int]:
        return {
            "key_heads": self.key_heads,
            "value_heads": self.value_heads,
            "key_dim": self.key_dim,
            "value_dim": self.value_dim,
            "channels": self.channels,
            "taps": self.kernel - 1,
        }


def parse_delta(fields: Fields, key_heads: int = 16, value_heads: int = 32) -> DeltaShape:
    """The keys `linear_*`; the numbers of heads are those of absent keys."""
    keys = fields.integer("linear_num_key_heads", key_heads, maximum=MAX_HEADS)
    values = fields.integer("linear_num_value_heads", value_heads, maximum=MAX_HEADS)
    if values % keys:
        fields.complain("linear_num_value_heads", f"a multiple of linear_num_key_heads, which is {keys}")
        values = keys
    return DeltaShape(
        keys,
        values,
        fields.integer("linear_key_head_dim", 128, maximum=MAX_HEADS),
        fields.integer("linear_value_head_dim", 128, maximum=MAX_HEADS),
        fields.integer("linear_conv_kernel_dim", 4, minimum=2, maximum=KERNEL_MAX),
    )


class Convolution(nn.Module):
    """The taps of a causal convolution, each channel's own."""

    def __init__(self, channels: int, kernel: int) -> None:
        super().__init__()
        self.weight = empty(channels, kernel)


class GatedDelta(nn.Module):
    """The state and the last tokens before the convolution are float32, whatever the model's dtype.

    Rows of `in_proj_qkvz` are those of all queries, all keys, all values, then the output's gates; of `in_proj_ba`
    those of what is written, then of the decay.
    """

    def __init__(self, config: DecoderConfig, shape: DeltaShape) -> None:
        super().__init__()
        self.shape = shape
        self.in_proj_qkvz = Linear(config.hidden_size, shape.channels + shape.value_size)
        self.in_proj_ba = Linear(config.hidden_size, 2 * shape.value_heads)
        self.conv1d = Convolution(shape.channels, shape.kernel)
        self.A_log = empty(shape.value_heads)
        self.dt_bias = empty(shape.value_heads)
        self.norm = RMSNorm(shape.value_dim, config.rms_norm_eps)
        self.out_proj = Linear(shape.value_size, config.hidden_size)
        kept = (
            StateTensor("history", (shape.kernel - 1, shape.channels), torch.float32),
            StateTensor("sums", (shape.value_heads, shape.key_dim, shape.value_dim), torch.float32),
        )
        self.state = State(StateSpec("gated_delta", "slot", kept))

    def forward(self, x: torch.Tensor, step: Step) -> torch.Tensor:
        """x: [tokens, hidden]."""
        shape, state = self.shape, self.state
        qkv, z = self.in_proj_qkvz(x).split((shape.channels, shape.value_size), -1)
        b, a = self.in_proj_ba(x).split((shape.value_heads, shape.value_heads), -1)
        qkv, _ = ops.causal_conv_silu(qkv, self.conv1d.weight, None, state.history, step, state.group)
        q, k, v = qkv.split((shape.key_size, shape.key_size, shape.value_size), -1)
        q = q.view(-1, shape.key_heads, shape.key_dim)
        k = k.view(-1, shape.key_heads, shape.key_dim)
        v = v.view(-1, shape.value_heads, shape.value_dim)
        out, _ = ops.gated_delta_rule(
            q, k, v, a, b, self.A_log, self.dt_bias, state.sums, step, LENGTH_EPS, state.group
        )
        return self.out_proj(ops.mul(ops.silu(z), self.norm(out).flatten(1)))  # type: ignore[no-any-return]


__all__ = ["DeltaShape", "GatedDelta", "parse_delta"]
