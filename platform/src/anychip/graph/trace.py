"""Step 0: a model's modules as a graph of module calls. Knows torch.fx; knows no op's meaning."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import fx, nn

from anychip.graph.ir import ModelGraph, StatePlace, WeightSpec
from anychip.models.attention import Attention
from anychip.models.config import ModelConfig
from anychip.models.experts import MixtureOfExperts
from anychip.models.gated_delta import GatedDelta
from anychip.models.latent import LatentAttention
from anychip.models.layers import Embedding, Linear, LMHead, Norm
from anychip.models.mlp import GatedMLP
from anychip.models.registry import build_model
from anychip.models.source import SourcesOf, same_name
from anychip.models.state import State, Table
from anychip_sdk.ops import Op
from anychip_sdk.state import grouped

BLOCKS = (Attention, Embedding, GatedDelta, GatedMLP, LatentAttention, Linear, LMHead, MixtureOfExperts, Norm)


class OpTracer(fx.Tracer):
    """Records catalogue ops with all their arguments in place; modules of the given types stay calls."""

    def __init__(self, leaves: tuple[type[nn.Module], ...]) -> None:
        super().__init__()
        self.proxy_buffer_attributes = True
        self._leaves = leaves

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, self._leaves)

    def create_node(self, kind: str, target: Any, args: Any, kwargs: Any, *rest: Any, **more: Any) -> fx.Node:
        if kind == "call_function" and isinstance(target, Op):
            bound = target.signature.bind(*args, **kwargs)
            bound.apply_defaults()
            args, kwargs = bound.args, {}
        return super().create_node(kind, target, args, kwargs, *rest, **more)


def trace_config(config: ModelConfig) -> ModelGraph:
    """The config's model as calls of its building blocks."""
    return trace(build_model(config), config.sources)


def trace(model: nn.Module, sources: SourcesOf = same_name) -> ModelGraph:
    """The model as calls of its building blocks.

    Args:
        model: its parameters have shapes and no memory.
        sources: of a parameter.
    """
    graph = OpTracer(BLOCKS).trace(model)
    shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    weights = {name: WeightSpec(name, shape, sources(name, shape)) for name, shape in shapes.items()}
    kept = [(name, module) for name, module in model.named_modules() if isinstance(module, State)]
    groups, places = grouped([module.spec for _, module in kept])
    states = {
        f"{name}.{tensor.name}": StatePlace(*place, index)
        for (name, module), place in zip(kept, places, strict=True)
        for index, tensor in enumerate(module.spec.tensors)
    }
    tables = {f"{name}.table": module for name, module in model.named_modules() if isinstance(module, Table)}
    return ModelGraph(graph, model, weights, groups, states, tables)


def canonical_names(model: nn.Module) -> Mapping[int, str]:
    """id of a parameter or buffer -> the first name that it goes by: a tied weight has one."""
    found: dict[int, str] = {}
    values: list[tuple[str, torch.Tensor]] = [*model.named_parameters(), *model.named_buffers()]
    for name, value in values:
        found.setdefault(id(value), name)
    return found


__all__ = ["BLOCKS", "OpTracer", "canonical_names", "trace", "trace_config"]
