"""From a plan to a model on the device: verify, load weights, make the pool, generate code. Knows no request.

Order of allocation: weights, then the pool, then whatever steps need, so that no backend's own pools can fragment the
device before the large pieces are in place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import structlog
import torch

from anychip.engine.laps import Laps
from anychip.engine.logs import default_logs
from anychip.engine.verification import refused_fusions
from anychip.graph.codegen import Forward, generate, weight_key
from anychip.graph.ir import ModelGraph, WeightSpec, resolution
from anychip.models.rope import rope_table
from anychip.plan.make import Prepared, facts_of
from anychip.plan.plan import Plan
from anychip.plan.resolve import resolve
from anychip.weights.checkpoint import Checkpoint
from anychip.weights.load import Parameter, check_complete, load, load_quantized, total_bytes
from anychip_sdk.backend import Backend
from anychip_sdk.device import Device, DeviceConfig
from anychip_sdk.errors import FusionRefused
from anychip_sdk.hooks import CompileContext, PreparedWeight
from anychip_sdk.kv import KVPool, KVSpec
from anychip_sdk.ops import Op

log = structlog.get_logger("anychip.loader")

#: pools up to this size are committed before the service is ready; larger ones as they fill
TOUCHED_BYTES = 4 << 30
MEMORY_PAGE_BYTES = 4096  #: the smallest that systems hand out

Report = Callable[[str, int, int, str], None]  #: stage, done, total, what


@dataclass(frozen=True)
class LoadedModel:
    """A model that is ready to run."""

    plan: Plan
    device: Device
    pool: KVPool
    forward: Forward
    source: str  #: the generated code
    timings_s: dict[str, float]
    weight_errors: Mapping[str, float]  #: of each quantized matrix, relative to its numbers
    weight_bytes: int  #: that weights take on the device, as their kernels hold them

    def close(self) -> None:
        self.pool.close()
        self.device.close()


def load_model(prepared: Prepared, report: Report) -> LoadedModel:
    """Everything between a plan and the first step; closes the checkpoint.

    Raises:
        FusionRefused: a fusion's outputs differ and the recipe says on_missing: error.
        CheckpointInvalid, MemoryInsufficient: what the names say.
    """
    default_logs()
    laps = Laps()
    backend, checkpoint = prepared.backend, prepared.checkpoint
    device = backend.open(prepared.plan.backend.device, _device_config(prepared.plan))
    try:
        report("verify", 0, 1, "fusions")
        plan = _verified_plan(prepared, device)
        laps.lap("verify")
        parameters = parameters_of(plan.weights.values())
        check_complete(parameters.values(), checkpoint)
        loading = _Loading(plan, backend, device, report)
        values = loading.run(checkpoint, parameters)
        _log_errors(loading.errors)
        laps.lap("load")
        pool = make_pool(plan, backend, device)
        laps.lap("pool")
        values.update(buffers_of(plan, plan.graph, pool, device))
        forward, source = _compile(plan, backend, device, values)
        laps.lap("compile")
    except BaseException:
        device.close()
        raise
    finally:
        checkpoint.close()
    return LoadedModel(plan, device, pool, forward, source, laps.totals_s, loading.errors, loading.held_bytes)


def parameters_of(specs: Iterable[WeightSpec]) -> dict[str, Parameter]:
    """What is to be read: the parts of a quantized matrix come of one reading."""
    found = {}
    for spec in specs:
        held = spec.quantized
        name = spec.name if held is None else held.matrix
        shape, scheme = (spec.shape, None) if held is None else (held.shape, held.scheme)
        found[name] = Parameter(name, shape, spec.sources, scheme)
    return found


def _log_errors(errors: Mapping[str, float]) -> None:
    for name, error in errors.items():
        if error:
            log.debug("quantized", matrix=name, relative_error=f"{error:.2e}")
    if errors:
        worst = max(errors, key=errors.__getitem__)
        mean = sum(errors.values()) / len(errors)
        log.info(
            "quantization error of the weights, relative",
            mean=f"{mean:.2e}",
            max=f"{errors[worst]:.2e}",
            worst=worst,
            matrices=len(errors),
        )


def _verified_plan(prepared: Prepared, device: Device) -> Plan:
    """The plan without the fusions whose outputs differ from the unfused graph's."""
    plan = prepared.plan
    if not plan.recipe.fusion.verify:
        return plan
    refused = refused_fusions(plan, prepared.backend, device)
    if not refused:
        return plan
    message = "; ".join(refused.values())
    if plan.recipe.fusion.on_missing == "error":
        raise FusionRefused(message, hint="remove it from fusion.policies, and tell the backend's maker")
    log.warning("fusions refused", reason=message)
    facts, backend = facts_of(prepared.checkpoint), prepared.backend
    held = plan.backend
    return resolve(plan.recipe, facts, backend, held.device, held.reason, frozenset(refused), held.certificate)


def make_pool(plan: Plan, backend: Backend, device: Device) -> KVPool:
    config, scheduler = plan.model.config, plan.scheduler
    spec = KVSpec(
        layers=config.num_layers,
        kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        dtype=scheduler.kv_dtype,
        budget_bytes=plan.memory.kv_pool,
        page_size=scheduler.page_size.value,
        pages_max=plan.memory.kv_pages,
    )
    pool = backend.create_kv_pool(spec, device)
    is_host_memory = device.torch_device.type == "cpu"
    if is_host_memory and plan.memory.kv_pool <= TOUCHED_BYTES:
        _touch(pool, config.num_layers)
    return pool


def _touch(pool: KVPool, layers: int) -> None:
    """Write to every page of memory once: what the system hands out on first use shall cost no request a step.

    On several threads, as a virtual machine may have to fetch each page from its host: 1.5 s a GiB on one.
    """
    with ThreadPoolExecutor(torch.get_num_threads()) as threads:
        list(threads.map(_touch_cache, [cache for layer in range(layers) for cache in pool.layer(layer)]))


def _touch_cache(cache: torch.Tensor) -> None:
    if cache.is_contiguous():
        cache.view(-1)[:: MEMORY_PAGE_BYTES // cache.itemsize] = 0
    else:
        cache.zero_()


def _device_config(plan: Plan) -> DeviceConfig:
    return DeviceConfig(emulate=plan.recipe.backend.emulate, threads=plan.recipe.backend.threads)


def _compile(plan: Plan, backend: Backend, device: Device, values: dict[str, Any]) -> tuple[Forward, str]:
    """The backend's compiled graph if it has one, else the generated Python."""
    generated = generate(plan.graph, values)
    scheduler = plan.scheduler
    rows = scheduler.max_running_requests.value
    tokens = scheduler.chunked_prefill_size.value + rows
    context = CompileContext(device, plan.model.dtype.value, values, tokens, rows, generated.forward)
    compiled = backend.compile(plan.graph.graph, context)
    return compiled or generated.forward, generated.source


def buffers_of(plan: Plan, model: ModelGraph, pool: KVPool, device: Device) -> dict[str, Any]:
    """Caches and the rope table, by their names in the graph."""
    found: dict[str, Any] = {}
    for name in model.buffers:
        leaf = name.rpartition(".")[2]
        if leaf in ("k_cache", "v_cache"):
            layer = int(name.split(".layers.")[1].split(".")[0])
            found[name] = pool.layer(layer)[leaf == "v_cache"]
        else:
            found[name] = _rope(plan, device)
    return found


def _rope(plan: Plan, device: Device) -> torch.Tensor:
    config = plan.model.config
    return rope_table(config.rope, config.head_dim, plan.model.context_length.value).to(device.torch_device)


class _Loading:
    """Streams every parameter and hands it to the kernels that want a layout of their own."""

    def __init__(self, plan: Plan, backend: Backend, device: Device, report: Report) -> None:
        self._plan = plan
        self._backend = backend
        self._device = device
        self._report = report
        self._users = _users(plan.graph)
        self.errors: dict[str, float] = {}
        self.held_bytes = 0

    def run(self, checkpoint: Checkpoint, parameters: dict[str, Parameter]) -> dict[str, Any]:
        dtype = self._plan.model.dtype.value
        total = total_bytes(parameters, dtype)
        done = 0
        values: dict[str, Any] = {}
        for name, parameter in parameters.items():

            def progress(what: str, part: int, _whole: int, done: int = done) -> None:
                self._report("load", done + part, total, what)

            done += parameter.nbytes(dtype)
            if parameter.scheme is None:
                tensor = load(parameter, checkpoint, self._device, dtype, progress, self._plan.shard)
                values.update(self._prepared(name, tensor))
                continue
            held = load_quantized(parameter, checkpoint, self._device, progress, self._plan.shard)
            self.errors[name] = held.error
            for part, tensor in held.parts.items():
                values.update(self._prepared(f"{name}_{part}", tensor))
        return values

    def _prepared(self, name: str, tensor: torch.Tensor) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for user in self._users[name]:
            key = weight_key(name, user)
            if key in found:
                continue
            if key == name:
                found[key] = tensor
                self.held_bytes += tensor.nbytes
            elif isinstance(user.target, Op):
                is_plain = self._plan.weights[name].quantized is None
                cast = tensor.to((resolution(user).compute_dtype if is_plain else None) or tensor.dtype)
                prepared = self._prepare(name, cast, user.target.name)
                found[key] = prepared.value
                self.held_bytes += prepared.nbytes
        return found

    def _prepare(self, name: str, tensor: torch.Tensor, op: str) -> PreparedWeight:
        return self._backend.prepare_weight(name, tensor, op, self._device)


def _users(model: ModelGraph) -> dict[str, list[torch.fx.Node]]:
    users: dict[str, list[torch.fx.Node]] = {}
    for node in model.graph.nodes:
        if node.op == "get_attr" and node.target in model.weights:
            users.setdefault(str(node.target), []).extend(node.users)
    return users


__all__ = ["LoadedModel", "Report", "buffers_of", "load_model", "make_pool"]
