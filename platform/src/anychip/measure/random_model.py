"""A model of any shape with random weights, planned and bound like a real one. Knows the plan; reads no checkpoint."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import fx

from anychip.engine.loader import LoadedModel, buffers_of, make_pool
from anychip.graph.codegen import generate, weight_key
from anychip.graph.ir import WeightSpec, resolution
from anychip.measure.kernel_clock import WholeClock
from anychip.models.config import ModelConfig
from anychip.plan.plan import Plan
from anychip.plan.resolve import CheckpointFacts, resolve
from anychip.recipe.schema import Recipe
from anychip_sdk.backend import Backend
from anychip_sdk.device import Device, DeviceInfo
from anychip_sdk.hooks import CompileContext
from anychip_sdk.ops import Op

VARIED = 1 << 16  #: random numbers of a weight, repeated


def plan_random(raw: Mapping[str, object], recipe: Mapping[str, object], backend: Backend, device: DeviceInfo) -> Plan:
    """The plan of a checkpoint that only its config stands for."""
    facts = CheckpointFacts(Path("random"), "random", ModelConfig.from_raw(raw), supports_thinking=False)
    sections = {"version": 1, "name": "random", **recipe}
    return resolve(Recipe.model_validate(sections), facts, backend, device, "given by the caller")


@dataclass(frozen=True)
class RandomModel:
    """A plan on a device, with random weights, ready to run.

    Attributes:
        generated: runs the generated Python.
        values: what generated code binds.
        whole: times the backend's compiled graph; None where the backend compiles nothing.
    """

    generated: LoadedModel
    values: Mapping[str, Any]
    whole: WholeClock | None


def load_random(plan: Plan, backend: Backend, device: Device) -> RandomModel:
    """The plan's model, as `load_model` would give it."""
    pool = make_pool(plan, backend, device)
    values = {**_weights(plan, backend, device), **buffers_of(plan, plan.graph, pool, device)}
    generated = generate(plan.graph, values)
    whole = WholeClock(generated.forward, device)
    rows = plan.scheduler.max_running_requests.value
    tokens = plan.scheduler.chunked_prefill_size.value + rows
    context = CompileContext(device, plan.model.dtype.value, values, tokens, rows, whole.generated)
    compiled = backend.compile(plan.graph.graph, context)
    if compiled is not None:
        whole.watch(compiled)
    model = LoadedModel(plan, device, pool, generated.forward, generated.source, {}, {}, plan.memory.weights)
    return RandomModel(model, values, None if compiled is None else whole)


def _weights(plan: Plan, backend: Backend, device: Device) -> dict[str, Any]:
    """A value for each weight key of the graph."""
    dtype = plan.model.dtype.value
    found: dict[str, Any] = {}
    for name, spec in plan.graph.used_weights().items():
        plain = _random(spec, dtype).to(device.torch_device)
        for user in _users(plan, name):
            key = weight_key(name, user)
            if key == name:
                found[key] = plain
            elif key not in found and isinstance(user.target, Op):
                own = None if spec.quantized is not None else resolution(user).compute_dtype
                found[key] = backend.prepare_weight(name, plain.to(own or plain.dtype), user.target.name, device).value
    return found


def _users(plan: Plan, weight: str) -> Iterator[fx.Node]:
    for node in plan.graph.graph.nodes:
        if node.op == "get_attr" and node.target == weight:
            yield from node.users


def _random(spec: WeightSpec, dtype: torch.dtype) -> torch.Tensor:
    held = dtype if spec.quantized is None else spec.quantized.part.dtype
    few = torch.randn(VARIED, generator=torch.Generator().manual_seed(0))
    few = (few * spec.shape[-1] ** -0.5).to(held) if held.is_floating_point else (16 * few).to(held)
    return few.repeat(-(-spec.elements // VARIED))[: spec.elements].view(spec.shape)


__all__ = ["RandomModel", "load_random", "plan_random"]
