"""A model of any shape with random weights, planned and bound like a real one. Knows the plan; reads no checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from anychip.engine.loader import LoadedModel, buffers_of, make_pool, step_limits
from anychip.graph.codegen import Generated, generate
from anychip.graph.ir import WeightSpec
from anychip.graph.program import weight_uses
from anychip.measure.kernel_clock import WholeClock
from anychip.models.registry import config_of
from anychip.plan.plan import Plan
from anychip.plan.resolve import CheckpointFacts, resolve
from anychip.recipe.schema import Recipe
from anychip.text.thinking import NO_THINKING
from anychip_sdk.backend import Backend
from anychip_sdk.device import Device, DeviceInfo
from anychip_sdk.hooks import CompileContext

VARIED = 1 << 16  #: random numbers of a weight, repeated


def plan_random(raw: Mapping[str, object], recipe: Mapping[str, object], backend: Backend, device: DeviceInfo) -> Plan:
    """The plan of a checkpoint that only its config stands for."""
    facts = CheckpointFacts(Path("random"), "random", config_of(raw), NO_THINKING)
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
    values = {**_weights(plan, backend, device), **buffers_of(plan, pool, device)}
    limits = step_limits(plan, device)
    generated = generate(plan.program, values, limits)
    model = LoadedModel(plan, device, pool, generated.logits, generated.source, {}, {}, plan.memory.weights)
    return RandomModel(model, values, _whole(plan, backend, device, values, generated))


def _whole(
    plan: Plan, backend: Backend, device: Device, values: Mapping[str, Any], generated: Generated
) -> WholeClock | None:
    """The forward as one compiled piece."""
    if not plan.pieces.is_whole(plan.program):
        return None
    whole = WholeClock(generated.function, device)
    context = CompileContext(device, plan.model.dtype.value, values, step_limits(plan, device), whole.generated)
    compiled = backend.compile(plan.program, context)
    if compiled is None:
        return None
    whole.watch(compiled)
    return whole


def _weights(plan: Plan, backend: Backend, device: Device) -> dict[str, Any]:
    """A value for each weight key of the graph."""
    dtype = plan.model.dtype.value
    found: dict[str, Any] = {}
    plain: dict[str, torch.Tensor] = {}
    for use in weight_uses(plan.graph):
        name = use.spec.name
        if name not in plain:
            plain[name] = _random(use.spec, dtype).to(device.torch_device)
        if use.is_prepared:
            found[use.key] = backend.prepare_weight(name, plain[name].to(use.held_dtype(dtype)), use.op, device).value
        else:
            found[use.key] = plain[name]
    return found


def _random(spec: WeightSpec, dtype: torch.dtype) -> torch.Tensor:
    held = spec.held_dtype(dtype)
    few = torch.randn(VARIED, generator=torch.Generator().manual_seed(0))
    few = (few * spec.shape[-1] ** -0.5).to(held) if held.is_floating_point else (16 * few).to(held)
    return few.repeat(-(-spec.elements // VARIED))[: spec.elements].view(spec.shape)


__all__ = ["RandomModel", "load_random", "plan_random"]
