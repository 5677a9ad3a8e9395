"""A model of any shape with random weights, planned and bound like a real one. Knows the plan; reads no checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from anychip.engine.loader import LoadedModel, buffers_of, make_pool
from anychip.graph.codegen import generate, weight_key
from anychip.graph.ir import WeightSpec, resolution
from anychip.models.config import ModelConfig
from anychip.plan.plan import Plan
from anychip.plan.resolve import CheckpointFacts, resolve
from anychip.recipe.schema import Recipe
from anychip_sdk.backend import Backend
from anychip_sdk.device import Device, DeviceInfo
from anychip_sdk.ops import Op

VARIED = 1 << 16  #: random numbers of a weight, repeated


def plan_random(raw: Mapping[str, object], recipe: Mapping[str, object], backend: Backend, device: DeviceInfo) -> Plan:
    """The plan of a checkpoint that only its config stands for."""
    facts = CheckpointFacts(Path("random"), "random", ModelConfig.from_raw(raw), supports_thinking=False)
    sections = {"version": 1, "name": "random", **recipe}
    return resolve(Recipe.model_validate(sections), facts, backend, device, "given by the caller")


def load_random(plan: Plan, backend: Backend, device: Device) -> LoadedModel:
    """The plan's model, as `load_model` would give it."""
    pool = make_pool(plan, backend, device)
    values = {**_weights(plan, backend, device), **buffers_of(plan, plan.graph, pool, device)}
    generated = generate(plan.graph, values)
    return LoadedModel(plan, device, pool, generated.forward, generated.source, {}, {})


def _weights(plan: Plan, backend: Backend, device: Device) -> dict[str, Any]:
    found: dict[str, Any] = {}
    dtype = plan.model.dtype.value
    for node in plan.graph.graph.nodes:
        if node.op != "get_attr" or node.target not in plan.graph.weights:
            continue
        spec = plan.graph.weights[str(node.target)]
        plain = None
        for user in node.users:
            key = weight_key(spec.name, user)
            if key in found:
                continue
            plain = _random(spec, dtype).to(device.torch_device) if plain is None else plain
            found[key] = plain
            if key != spec.name and isinstance(user.target, Op):
                own = resolution(user).compute_dtype
                cast = plain if spec.quantized is not None or own is None else plain.to(own)
                found[key] = backend.prepare_weight(spec.name, cast, user.target.name, device).value
    return found


def _random(spec: WeightSpec, dtype: torch.dtype) -> torch.Tensor:
    held = dtype if spec.quantized is None else spec.quantized.part.dtype
    few = torch.randn(VARIED, generator=torch.Generator().manual_seed(0))
    few = (few * spec.shape[-1] ** -0.5).to(held) if held.is_floating_point else (16 * few).to(held)
    return few.repeat(-(-spec.elements // VARIED))[: spec.elements].view(spec.shape)


__all__ = ["load_random", "plan_random"]
