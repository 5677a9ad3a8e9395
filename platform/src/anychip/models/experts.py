"""A mixture of gated MLPs with a router, and a shared one beside them. Knows ops; knows no checkpoint's names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

import torch
from torch import nn

from anychip.models.decoder import DecoderLayer
from anychip.models.layers import Linear, empty
from anychip.models.mixture import Mixture
from anychip.models.mixture_config import MixtureConfig
from anychip.models.mlp import GatedMLP
from anychip_sdk import ops

Config = TypeVar("Config", bound=MixtureConfig)


class Router(nn.Module):
    """A row of the weight for each expert."""

    def __init__(self, hidden: int, mixture: Mixture) -> None:
        super().__init__()
        self.weight = empty(mixture.experts, hidden)
        self.bias = empty(mixture.experts) if mixture.has_logit_bias else None
        self.selection_bias = empty(mixture.experts) if mixture.has_selection_bias else None


class ExpertWeights(nn.Module):
    """All experts' matrices; gate rows, then up rows."""

    def __init__(self, hidden: int, mixture: Mixture) -> None:
        super().__init__()
        experts, inner = mixture.experts, mixture.inner
        self.gate_up_weight = empty(experts, 2 * inner, hidden)
        self.down_weight = empty(experts, hidden, inner)
        self.gate_up_bias = empty(experts, 2 * inner) if mixture.has_biases else None
        self.down_bias = empty(experts, hidden) if mixture.has_biases else None


class MixtureOfExperts(nn.Module):
    """The chosen experts' weighted sum, and the shared expert's result where there is one (Shazeer et al., 2017)."""

    def __init__(self, config: MixtureConfig) -> None:
        super().__init__()
        mixture = self.mixture = config.mixture
        self.gate = Router(config.hidden_size, mixture)
        self.experts = ExpertWeights(config.hidden_size, mixture)
        self.shared_expert = GatedMLP(config, mixture.shared_inner) if mixture.shared_inner else None
        self.shared_expert_gate = Linear(config.hidden_size, 1) if mixture.is_shared_gated else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mixture, routing, experts = self.mixture, self.mixture.routing, self.experts
        ids, weights = ops.router_topk(
            x,
            self.gate.weight,
            self.gate.bias,
            self.gate.selection_bias,
            mixture.per_token,
            routing.score,
            routing.groups,
            routing.top_groups,
            routing.group_score,
            routing.renormalise,
            routing.floor,
            routing.factor,
        )
        out: torch.Tensor = ops.moe_experts(
            x,
            ids,
            weights,
            experts.gate_up_weight,
            experts.gate_up_bias,
            experts.down_weight,
            experts.down_bias,
            mixture.activation,
            False,
            0,
        )
        if self.shared_expert is None:
            return out
        shared = self.shared_expert(x)
        if self.shared_expert_gate is not None:
            shared = ops.gate_rows(shared, self.shared_expert_gate(x))
        return ops.add(out, shared)  # type: ignore[no-any-return]


def mixed_layers(config: Config, make: Callable[[Config, int], DecoderLayer] = DecoderLayer) -> Iterator[DecoderLayer]:
    """The family's layers, those that the config says with a mixture in place of the MLP."""
    for number in range(config.num_layers):
        layer = make(config, number)
        if config.is_sparse[number]:
            layer.mlp = MixtureOfExperts(config)
        yield layer


__all__ = ["ExpertWeights", "MixtureOfExperts", "Router", "mixed_layers"]
