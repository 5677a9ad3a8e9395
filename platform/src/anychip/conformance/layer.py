"""One layer of a model, exact on the host, by the references in a dtype, by the backend. Knows no requirement."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import fx

from anychip.conformance.shapes import raw_config
from anychip.graph.expand import expand
from anychip.graph.fold import FusionDecision, fold
from anychip.graph.ir import ModelGraph, resolution
from anychip.graph.replace import Binding
from anychip.graph.replace import replace as bind_kernels
from anychip.graph.trace import trace_config
from anychip.graph.verify import MARGIN, ROUNDINGS, STEP_ROWS, LayerRun, random_weights, small_pool
from anychip.models.config import ModelConfig
from anychip.models.registry import config_of
from anychip.plan.resolve import DEFAULT_PAGE_SIZE, make_binding
from anychip.recipe.schema import ModelSection, Recipe
from anychip_sdk.conformance.context import Context
from anychip_sdk.hooks import PreparedWeight
from anychip_sdk.kv import KVPool, PoolSpec, SlabKVPool
from anychip_sdk.ops import CATALOGUE
from anychip_sdk.registry import REFERENCE, Override
from anychip_sdk.state import StateGroup
from anychip_sdk.testing import ReferenceDevice

HEAD_DIM = 128
VOCAB = 32
POSITIONS = 16
HOST_BYTES = 1 << 26

Edit = Callable[[ModelGraph], None]


class Outcome(NamedTuple):
    """How far the backend's outputs are from the exact ones, as a share of each output's largest value."""

    error: float
    bound: float
    places: int  #: how many were rewritten
    got: tuple[torch.Tensor, ...]
    expected: tuple[torch.Tensor, ...]

    @property
    def passed(self) -> bool:
        return self.error <= self.bound


def unchanged(model: ModelGraph) -> None:
    """The edit that edits nothing."""


class Layer:
    """A shape in a dtype on the context's device. Every graph gets the same weights and tokens."""

    def __init__(self, context: Context, shape: str, dtype: torch.dtype) -> None:
        self.context, self.shape, self.dtype = context, shape, dtype
        self.config = layer_config(context, shape, dtype)
        recipe = Recipe(version=1, name="conformance", model=ModelSection(source="/conformance"))
        self.binding = make_binding(recipe, self.config, context.backend, dtype, dtype, DEFAULT_PAGE_SIZE)
        host = ReferenceDevice("host", HOST_BYTES)
        self._host = LayerRun(host, _plain, lambda groups: SlabKVPool(self._spec(groups), host), POSITIONS)
        self.run = LayerRun(context.device, self._prepare, self.make_pool, POSITIONS)
        self.sources = random_weights(self.graph(), dtype)

    def graph(self) -> ModelGraph:
        """The unfused graph, bound to the backend's kernels."""
        return bind_kernels(_copy(_traced(self.config)), self.binding)

    def fused(self, policies: Sequence[str], edit: Edit = unchanged) -> tuple[ModelGraph, tuple[FusionDecision, ...]]:
        """The graph after an edit and with the policies applied."""
        graph = self.graph()
        edit(graph)
        decisions = fold(graph, self.binding, policies, self.context.backend.fusions)
        return graph, decisions

    def compare(self, policies: Sequence[str], edit: Edit = unchanged) -> Outcome:
        """The edited graph with the policies applied, on the backend, against the edited graph itself, exact.

        What rounding explains is what the references lose in the dtype, with a margin, plus some roundings.
        """
        expected = self._referenced(torch.float64, edit)
        rounded = self._referenced(self.dtype, edit)
        graph, decisions = self.fused(policies, edit)
        self.context.fallbacks |= fallbacks(graph)
        got = self.run(graph, self.dtype, self.sources)
        bound = MARGIN * distance(rounded, expected) + ROUNDINGS * torch.finfo(self.dtype).eps
        return Outcome(distance(got, expected), bound, sum(one.applied for one in decisions), got, expected)

    def make_pool(self, groups: Sequence[StateGroup], rows: int = len(STEP_ROWS)) -> KVPool:
        """A pool on the device for the graph's states, with room for steps of so many rows."""
        return self.context.backend.create_kv_pool(self._spec(groups, rows), self.context.device)

    def _referenced(self, dtype: torch.dtype, edit: Edit) -> tuple[torch.Tensor, ...]:
        graph = bind_kernels(_copy(_traced(self.config)), referenced(self.binding, dtype))
        edit(graph)
        return self._host(graph, dtype, self.sources)

    def _prepare(self, name: str, tensor: torch.Tensor, op: str) -> PreparedWeight:
        return self.context.backend.prepare_weight(name, tensor, op, self.context.device)

    def _spec(self, groups: Sequence[StateGroup], rows: int = len(STEP_ROWS)) -> PoolSpec:
        return small_pool(groups, self.dtype, DEFAULT_PAGE_SIZE, rows)


def layer_config(context: Context, shape: str, dtype: torch.dtype) -> ModelConfig:
    """One layer, a few words."""
    raw = raw_config(shape, HEAD_DIM, dtype)
    return config_of(raw).with_layers(1, VOCAB)


def referenced(binding: Binding, dtype: torch.dtype) -> Binding:
    """A binding under which every op is the reference's."""
    overrides = tuple(Override(name, provider=REFERENCE) for name in CATALOGUE)
    return replace(binding, dtype=dtype, overrides=overrides, fallback_allowed=True)


def fallbacks(graph: ModelGraph) -> set[str]:
    """The ops that the backend leaves to the reference."""
    return {op.name for node, op in graph.op_nodes() if resolution(node).is_fallback}


def distance(got: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> float:
    """The worst element over all outputs, as a share of its output's largest; inf for what is no number."""
    worst = 0.0
    for one, want in zip(got, expected, strict=True):
        wide = one.double()
        if wide.shape != want.shape or not bool(torch.isfinite(wide).all()):
            return float("inf")
        if wide.numel():
            worst = max(worst, float((wide - want).abs().max() / want.abs().max().clamp(min=1e-30)))
    return worst


@lru_cache(maxsize=32)
def _traced(config: ModelConfig) -> ModelGraph:
    """The unfused graph with nothing bound; most of a comparison's time would go into making it anew."""
    return expand(trace_config(config))


def _copy(model: ModelGraph) -> ModelGraph:
    graph = fx.Graph()
    graph.output(graph.graph_copy(model.graph, {}))
    return model.with_graph(graph)


def _plain(name: str, tensor: torch.Tensor, op: str) -> PreparedWeight:
    return PreparedWeight(tensor, tensor.nbytes)


__all__ = [
    "HEAD_DIM",
    "VOCAB",
    "Edit",
    "Layer",
    "Outcome",
    "distance",
    "fallbacks",
    "layer_config",
    "referenced",
    "unchanged",
]
