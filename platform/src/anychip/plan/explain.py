"""A plan in words and as JSON. Knows how to say it; decides nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict

import torch

from anychip.plan.memory import as_mapping, gib
from anychip.plan.plan import EMULATED, Decision, HeldCertificate, MemoryPlan, OpRow, Plan
from anychip_sdk.registry import dtype_name
from anychip_sdk.state import StateGroup

SCHEMA_VERSION = 1
#: what the text tells of the scheduler in words of its own
_WORDED = (
    "chunked_prefill_size",
    "max_running_requests",
    "max_queued_requests",
    "policy",
    "page_size",
    "kv_dtype",
    "kv_tokens",
    "tpot_p95_s",
)
SYNCHRONOUS = "synchronous: the host waits for every copy and kernel"


def as_json(plan: Plan, costs: Mapping[str, object] | None = None) -> dict[str, object]:
    """The plan as plain JSON values: a stable contract with a schema version. Sizes in bytes. No secret is in it.

    Args:
        costs: the section `costs`, as `anychip.forecast` makes it; None leaves it out.
    """
    device, config = plan.backend.device, plan.model.config
    facts = config.facts()
    heads: dict[str, object] = {name: facts[name] for name in ("heads", "kv_heads", "head_dim") if name in facts}
    return {
        "schema_version": SCHEMA_VERSION,
        "name": plan.name,
        "model": {
            "source": plan.model.source,
            "path": str(plan.model.path),
            "format": plan.model.format,
            "architecture": config.architecture,
            "layers": config.num_layers,
            "hidden_size": config.hidden_size,
            **heads,
            "vocab_size": config.vocab_size,
            "dtype": {"value": dtype_name(plan.model.dtype.value), "reason": plan.model.dtype.reason},
            "quantization": {
                "value": plan.model.quantization.value,
                "reason": plan.model.quantization.reason,
            },
            "context_length": {
                "value": plan.model.context_length.value,
                "reason": plan.model.context_length.reason,
            },
            "served_name": plan.model.served_name,
            "thinking": {"value": plan.model.thinking.value, "reason": plan.model.thinking.reason},
            "notes": list(plan.model.notes),
        },
        "backend": {
            "name": plan.backend.name,
            "distribution": plan.backend.distribution,
            "version": plan.backend.version,
            "reason": plan.backend.reason,
            "emulated": plan.backend.emulated,
            "environment": dict(plan.backend.environment),
            "certificate": None if plan.backend.certificate is None else asdict(plan.backend.certificate),
            "device": {
                "name": device.name,
                "product": device.product,
                "memory_bytes_total": device.memory_bytes_total,
                "versions": dict(device.versions),
                "attributes": dict(device.attributes),
                "async_streams": device.capabilities.async_streams,
            },
        },
        "memory": dict(as_mapping(plan.memory)),
        "scheduler": {name: _plain(value) for name, value in vars(plan.scheduler).items()},
        "limits": plan.limits.model_dump(),
        "watchdog": asdict(plan.watchdog),
        "fusions": [
            {"policy": one.policy, "applied": one.applied, "refused": one.refused, "reason": one.reason}
            for one in plan.fusions
        ],
        "ops": [op_json(row) for row in plan.ops],
        "program": program_json(plan),
        "states": [_state_json(group) for group in plan.graph.groups],
        "weights": {"parameters": len(plan.weights), "elements": sum(one.elements for one in plan.weights.values())},
        "parallel": {"rank": plan.shard.rank, "size": plan.shard.size},
        **({} if costs is None else {"costs": costs}),
        "warnings": list(plan.warnings),
    }


def _plain(value: object) -> object:
    """A decision with its reason, a dtype by its name, anything else as it is."""
    if isinstance(value, Decision):
        return {"value": _plain(value.value), "reason": value.reason}
    return dtype_name(value) if isinstance(value, torch.dtype) else value


def op_json(row: OpRow) -> dict[str, object]:
    return {
        "op": row.op,
        "dtype": dtype_name(row.dtype),
        "count": row.count,
        "provider": row.provider,
        "kernel": row.kernel,
        "reason": row.reason,
        "fallback": row.is_fallback,
        "rejected": [{"provider": one.provider, "kernel": one.kernel, "reason": one.reason} for one in row.rejected],
    }


def as_text(plan: Plan, costs: Sequence[str] = ()) -> str:
    """The plan for a person: sections of aligned lines, a reason behind every decision.

    Args:
        costs: the lines of the section `costs`, as `anychip.forecast` makes them.
    """
    sections = (
        ("plan", _head(plan)),
        ("memory", _memory(plan)),
        ("scheduler", _scheduler(plan)),
        ("limits", plan.limits.lines()),
        ("fusions", _fusions(plan)),
        ("ops", [op_line(row) for row in plan.ops]),
        ("program", program_lines(plan)),
        ("costs", list(costs)),
        ("warnings", list(plan.warnings)),
    )
    parts = []
    for title, lines in sections:
        if lines:
            parts.append("\n".join((title, *(f"  {line}" for line in lines))))
    return "\n\n".join(parts)


def program_json(plan: Plan) -> dict[str, object]:
    """How much of the forward the backend's compiler takes, and where it is cut."""
    return {
        "calls": len(plan.program.calls),
        "pieces": [{"start": start, "stop": stop} for start, stop in plan.pieces.spans],
        "cuts": [{"op": op, "count": count, "reason": reason} for (op, reason), count in _cuts(plan).items()],
    }


def program_lines(plan: Plan) -> list[str]:
    """The same for a person."""
    calls, spans = len(plan.program.calls), plan.pieces.spans
    if not spans and not plan.pieces.cuts:
        return [f"{calls} calls, generated Python (the backend compiles nothing)"]
    if plan.pieces.is_whole(plan.program):
        return [f"{calls} calls, compiled by the backend as one piece"]
    inside = sum(stop - start for start, stop in spans)
    cuts = [f"cut at {op}, {count} x: {reason}" for (op, reason), count in _cuts(plan).items()]
    return [f"{calls} calls, {inside} of them compiled by the backend in {len(spans)} pieces", *cuts]


def _cuts(plan: Plan) -> Counter[tuple[str, str]]:
    return Counter((cut.op, cut.reason) for cut in plan.pieces.cuts)


def _state_json(group: StateGroup) -> dict[str, object]:
    spec = group.spec
    return {
        "name": spec.name,
        "kind": spec.kind,
        "layers": group.layers,
        "window": spec.window,
        "tensors": {tensor.name: list(tensor.shape) for tensor in spec.tensors},
    }


def _states(groups: Sequence[StateGroup]) -> list[str]:
    """What is kept, where that is more than keys and values of all layers alike."""
    if [group.spec.name for group in groups] == ["kv"]:
        return []
    return [f"state        {state_line(group)}" for group in groups]


def state_line(group: StateGroup) -> str:
    """What one group of states keeps, in words."""
    spec = group.spec
    shapes = ", ".join(f"{tensor.name} {'x'.join(map(str, tensor.shape))}" for tensor in spec.tensors)
    per = "token" if spec.kind == "paged" else "sequence"
    window = "" if spec.window is None else f", read for {spec.window} tokens"
    return f"{spec.name} of {group.layers} layers, a {per}: {shapes}{window}"


def _head(plan: Plan) -> list[str]:
    device, model, config = plan.backend.device, plan.model, plan.model.config
    emulated = f"  {EMULATED}" if plan.backend.emulated else ""
    return [
        f"service    {plan.name}, served as {model.served_name}",
        f"model      {model.path} ({model.format}), {config.architecture}, {config.num_layers} layers",
        f"dtype      {dtype_name(model.dtype.value)} ({model.dtype.reason})",
        *_quantization(model.quantization),
        f"context    {model.context_length.value} tokens ({model.context_length.reason})",
        f"thinking   {model.thinking.value} ({model.thinking.reason})",
        f"backend    {plan.backend.name} {plan.backend.version} ({plan.backend.reason}){emulated}",
        *_certificate(plan.backend.certificate),
        f"device     {device.name}, {device.product}" + _pairs(device.versions),
        f"streams    {'asynchronous' if device.capabilities.async_streams else SYNCHRONOUS}",
        f"watchdog   {plan.watchdog.words}",
        *(f"note       {note}" for note in model.notes),
    ]


def _quantization(decision: Decision[str]) -> list[str]:
    return [] if decision.value == "none" else [f"quantized  {decision.value} ({decision.reason})"]


def _certificate(held: HeldCertificate | None) -> list[str]:
    if held is None:
        return []
    signed = "signed" if held.signed else "UNSIGNED"
    emulated = ", EMULATED" if held.emulated else ""
    problem = f"; does not count: {held.problem}" if held.problem else ""
    words = f"{held.word}, profile {held.profile}, level {held.level}, {held.date}, {signed}{emulated}{problem}"
    return [f"certified  {words}"]


def _pairs(values: Mapping[str, str]) -> str:
    return "".join(f", {name} {value}" for name, value in values.items())


def _memory(plan: Plan) -> list[str]:
    memory, scheduler = plan.memory, plan.scheduler
    return [
        f"weights      {gib(memory.weights):>10}",
        f"KV pool      {gib(memory.kv_pool):>10}  {scheduler.kv_tokens} tokens in {memory.kv_pages} pages "
        f"of {scheduler.page_size.value}, {dtype_name(scheduler.kv_dtype)} ({memory.kv_reason})",
        *_slots(memory),
        *_states(plan.graph.groups),
        f"activations  {gib(memory.activations):>10}",
        f"workspace    {gib(memory.workspace):>10}",
        f"headroom     {gib(memory.headroom):>10}  of {gib(memory.capacity)}",
    ]


def _slots(memory: MemoryPlan) -> list[str]:
    if not memory.slots:
        return []
    taken = gib(memory.slots * memory.bytes_per_slot)
    return [f"slots        {taken:>10}  of the pool: {memory.slots}, half for running sequences, half for snapshots"]


def _scheduler(plan: Plan) -> list[str]:
    scheduler = plan.scheduler
    running, page, chunk = scheduler.max_running_requests, scheduler.page_size, scheduler.chunked_prefill_size
    tpot_s = scheduler.tpot_p95_s
    pace = "" if tpot_s is None else f"; beside decodes as many as slo.tpot_p95 of {1e3 * tpot_s:g} ms leaves time for"
    return [
        f"max running requests  {running.value} ({running.reason})",
        f"chunked prefill size  {chunk.value} tokens ({chunk.reason}){pace}",
        f"page size             {page.value} tokens ({page.reason})",
        f"policy                {', '.join((scheduler.policy, *_settings(plan)))}",
    ]


def _settings(plan: Plan) -> list[str]:
    """The scheduler's keys that have no words of their own: `prefix cache on`."""
    others = {name: value for name, value in vars(plan.scheduler).items() if name not in _WORDED}
    return [f"{name.replace('_', ' ')} {_word(value)}" for name, value in others.items()]


def _word(value: object) -> str:
    if isinstance(value, Decision):
        return f"{_word(value.value)} ({value.reason})"
    if isinstance(value, bool):
        return "on" if value else "off"
    return "none" if value is None else str(value)


def _fusions(plan: Plan) -> list[str]:
    width = max((len(one.policy) for one in plan.fusions), default=0)
    return [f"{one.policy:<{width}}  {one.applied:>4} places  {one.reason}" for one in plan.fusions]


def op_line(row: OpRow) -> str:
    """One op of the table."""
    return (
        f"{row.op:<16} {dtype_name(row.dtype):<9} {row.count:>4} x  {row.provider}/{row.kernel}"
        f"{'  FALLBACK' if row.is_fallback else ''}  ({row.reason})"
    )


__all__ = ["SCHEMA_VERSION", "as_json", "as_text", "op_json", "op_line", "program_json", "program_lines", "state_line"]
