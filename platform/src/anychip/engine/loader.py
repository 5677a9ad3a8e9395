"""From a plan to a model on the device: verify, load weights, make the pool, generate code. Knows no request.

Order of allocation: weights, then the pool, then whatever steps need, so that no backend's own pools can fragment the
device before the large pieces are in place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import structlog
import torch

from anychip.engine.laps import Laps
from anychip.engine.logs import default_logs
from anychip.engine.verification import refused_fusions
from anychip.graph.codegen import Compiled, Forward, Generated, generate
from anychip.graph.ir import WeightSpec
from anychip.graph.program import WeightUse, weight_uses
from anychip.plan.make import Prepared
from anychip.plan.plan import Plan
from anychip.weights.checkpoint import Checkpoint
from anychip.weights.load import Parameter, Progress, check_complete, load, load_quantized, slices_of, total_bytes
from anychip_sdk.backend import Backend
from anychip_sdk.device import Device, DeviceConfig
from anychip_sdk.errors import FusionRefused
from anychip_sdk.hooks import CompileContext, PreparedWeight
from anychip_sdk.kv import KVPool, PoolSpec
from anychip_sdk.step import StepLimits

log = structlog.get_logger("anychip.loader")

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
    values: Mapping[str, Any] = field(default_factory=dict)  #: the constants of the plan's program, by key

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
        values.update(buffers_of(plan, pool, device))
        generated = compile_plan(plan, backend, device, values)
        laps.lap("compile")
    except BaseException:
        device.close()
        raise
    finally:
        checkpoint.close()
    return LoadedModel(
        plan,
        device,
        pool,
        generated.logits,
        generated.source,
        laps.totals_s,
        loading.errors,
        loading.held_bytes,
        values,
    )


def parameters_of(specs: Iterable[WeightSpec]) -> dict[str, Parameter]:
    """What is to be read: the parts of a quantized matrix come of one reading."""
    found = {}
    for spec in specs:
        held = spec.quantized
        name = spec.name if held is None else held.matrix
        shape, scheme = (spec.shape, None) if held is None else (held.shape, held.scheme)
        found[name] = Parameter(name, shape, spec.sources, scheme, spec.dtype)
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
    if not plan.verification.enabled:
        return plan
    refused = refused_fusions(plan, prepared.backend, device)
    if not refused:
        return plan
    message = "; ".join(refused.values())
    if plan.verification.refusal_is_error:
        raise FusionRefused(message, hint="remove it from fusion.policies, and tell the backend's maker")
    log.warning("fusions refused", reason=message)
    return prepared.without(frozenset(refused))


def make_pool(plan: Plan, backend: Backend, device: Device) -> KVPool:
    """The pool of the plan's states, as the memory budget says."""
    spec = PoolSpec(
        groups=plan.graph.groups,
        dtype=plan.scheduler.kv_dtype,
        budget_bytes=plan.memory.kv_pool,
        page_size=plan.scheduler.page_size.value,
        pages_max=plan.memory.kv_pages,
        slots=plan.memory.slots,
    )
    return backend.create_kv_pool(spec, device)


def _device_config(plan: Plan) -> DeviceConfig:
    return DeviceConfig(emulate=plan.backend.emulated, threads=plan.backend.threads)


def step_limits(plan: Plan, device: Device) -> StepLimits:
    """The most that one step of the plan holds."""
    scheduler = plan.scheduler
    rows = scheduler.max_running_requests.value
    pages = -(-plan.model.context_length.value // scheduler.page_size.value)
    return StepLimits(scheduler.chunked_prefill_size.value + rows, rows, pages, device.torch_device)


def compile_plan(plan: Plan, backend: Backend, device: Device, values: Mapping[str, Any]) -> Generated:
    """The forward: pieces that the backend compiles, generated Python around them."""
    limits = step_limits(plan, device)
    compiled: dict[tuple[int, int], Compiled] = {}
    for start, stop in plan.pieces.spans:
        piece = plan.program.piece(start, stop)
        generated = generate(piece, values, limits)
        context = CompileContext(device, plan.model.dtype.value, values, limits, generated.function)
        made = backend.compile(piece, context)
        if made is None:
            log.warning("a piece is not compiled", calls=f"{start} to {stop}", backend=backend.name)
        compiled[start, stop] = made or generated.function
    return generate(plan.program, values, limits, compiled)


def buffers_of(plan: Plan, pool: KVPool, device: Device) -> dict[str, Any]:
    """States and tables, by their names in the graph."""
    graph, positions = plan.graph, plan.model.context_length.value
    states = {name: pool.tensors(group, layer)[index] for name, (group, layer, index) in graph.states.items()}
    tables = {name: table.compute(positions).to(device.torch_device) for name, table in graph.tables.items()}
    return {**states, **tables}


class _Loading:
    """Streams every parameter and hands it to the kernels that want a layout of their own."""

    def __init__(self, plan: Plan, backend: Backend, device: Device, report: Report) -> None:
        self._plan = plan
        self._backend = backend
        self._device = device
        self._report = report
        self._uses = _by_parameter(weight_uses(plan.graph))
        self.errors: dict[str, float] = {}
        self.held_bytes = 0

    def run(self, checkpoint: Checkpoint, parameters: dict[str, Parameter]) -> dict[str, Any]:
        dtype = self._plan.model.dtype.value
        total = total_bytes(parameters, dtype)
        done = 0
        values: dict[str, Any] = {}
        for parameter in parameters.values():

            def progress(what: str, part: int, _whole: int, done: int = done) -> None:
                self._report("load", done + part, total, what)

            done += parameter.nbytes(dtype)
            stacks = self._stacks(parameter, checkpoint, progress)
            if stacks is not None:
                values.update(stacks)
                continue
            for part, tensor in self._read(parameter, checkpoint, progress).items():
                values.update(self._prepared(part, tensor))
        return values

    def _read(self, parameter: Parameter, checkpoint: Checkpoint, progress: Progress) -> dict[str, torch.Tensor]:
        """The parameter, or the parts of a quantized one, by name."""
        if parameter.scheme is None:
            dtype = self._plan.model.dtype.value
            return {parameter.name: load(parameter, checkpoint, self._device, dtype, progress, self._plan.shard)}
        held = load_quantized(parameter, checkpoint, self._device, progress, self._plan.shard)
        self.errors[parameter.name] = max(held.error, self.errors.get(parameter.name, 0.0))
        return {f"{parameter.name}_{part}": tensor for part, tensor in held.parts.items()}

    def _stacks(self, parameter: Parameter, checkpoint: Checkpoint, progress: Progress) -> dict[str, Any] | None:
        """A stack of experts in every form in which it is read, expert by expert; None: not all kernels take it so."""
        if len(parameter.shape) != 3 or not all(use.is_prepared for use in self._parts(parameter)):
            return None
        made: dict[str, list[PreparedWeight]] = {}
        for index, one in enumerate(slices_of(parameter)):

            def behind(what: str, part: int, whole: int, before: int = index) -> None:
                progress(what, before * whole + part, parameter.shape[0] * whole)

            for name, tensor in self._read(one, checkpoint, behind).items():
                for use in self._uses[name]:
                    prepared = self._prepare(name, tensor.to(use.held_dtype(tensor.dtype)), use.op)
                    if prepared.join is None:
                        return None
                    made.setdefault(use.key, []).append(prepared)
        joined = {key: parts[0].join(parts) for key, parts in made.items() if parts[0].join is not None}
        self.held_bytes += sum(one.nbytes for one in joined.values())
        return {key: one.value for key, one in joined.items()}

    def _parts(self, parameter: Parameter) -> list[WeightUse]:
        """Of the parameter, or of all parts of a quantized one."""
        if parameter.scheme is None:
            return self._uses[parameter.name]
        parts = parameter.scheme.parts(*parameter.shape)
        return [use for part in parts for use in self._uses.get(f"{parameter.name}_{part.name}", ())]

    def _prepared(self, name: str, tensor: torch.Tensor) -> dict[str, Any]:
        """The parameter in every form in which it is read."""
        found: dict[str, Any] = {}
        for use in self._uses[name]:
            if not use.is_prepared:
                found[use.key] = tensor
                self.held_bytes += tensor.nbytes
                continue
            cast = tensor.to(use.held_dtype(tensor.dtype))
            prepared = self._prepare(name, cast, use.op)
            found[use.key] = prepared.value
            self.held_bytes += prepared.nbytes
        return found

    def _prepare(self, name: str, tensor: torch.Tensor, op: str) -> PreparedWeight:
        return self._backend.prepare_weight(name, tensor, op, self._device)


def _by_parameter(uses: Iterable[WeightUse]) -> dict[str, list[WeightUse]]:
    found: dict[str, list[WeightUse]] = {}
    for use in uses:
        found.setdefault(use.spec.name, []).append(use)
    return found


__all__ = ["LoadedModel", "Report", "buffers_of", "compile_plan", "load_model", "make_pool", "step_limits"]
