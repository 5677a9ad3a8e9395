"""A plan in a few lines, for somebody who waits for a service. Knows what matters at that moment; decides nothing."""

from __future__ import annotations

from anychip.plan.memory import gib
from anychip.plan.plan import EMULATED, Plan
from anychip_sdk.registry import dtype_name


def summarize(plan: Plan) -> str:
    """Six lines and the warnings; `platform plan` tells everything."""
    model, backend, memory, scheduler = plan.model, plan.backend, plan.memory, plan.scheduler
    emulated = f", {EMULATED}" if backend.emulated else ""
    applied = [f"{one.policy} x{one.applied}" for one in plan.fusions if one.applied]
    fallbacks = [row.op for row in plan.ops if row.is_fallback]
    running = scheduler.max_running_requests
    lines = [
        f"model    {model.path} ({model.format}), {dtype_name(model.dtype.value)}, "
        f"context {model.context_length.value} tokens, thinking {model.thinking.value}",
        f"backend  {backend.name} {backend.version} ({backend.reason}) on {backend.device.name}, "
        f"{backend.device.product}{emulated}",
        f"memory   weights {gib(memory.weights).strip()}, KV pool {gib(memory.kv_pool).strip()} for "
        f"{scheduler.kv_tokens} tokens, headroom {gib(memory.headroom).strip()}",
        f"requests {running.value} at once ({running.reason})",
        f"fusions  {', '.join(applied) or 'none'}",
        f"ops      {'fallback to the reference: ' + ', '.join(fallbacks) if fallbacks else 'no fallback'}",
    ]
    return "\n".join([*lines, *(f"warning: {text}" for text in plan.warnings)])


__all__ = ["summarize"]
