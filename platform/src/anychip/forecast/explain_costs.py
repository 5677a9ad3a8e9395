"""What a plan's steps cost, in words and as JSON. Knows how to say it; computes by the model of costs.py."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import chain

from anychip.forecast.costs import Costs, StepShape
from anychip.forecast.price import Price
from anychip.plan.memory import gib
from anychip.plan.plan import Plan
from anychip_sdk.speeds import Speeds

REQUESTS = (1, 8, 32)
CONTEXTS = (256, 1024, 4096, 16384)
FUSION_CONTEXT = 256  #: fusions save the same at any context
MODEL = (
    "seconds of a step = sum over kernels of calls x call_s + max(R, F) + exposed x min(R, F) + K + A + M, "
    "and step_s + samples x request_s; R = weight_bytes / weight_bytes_per_s, F = 2 x parameters x rows / flops_per_s, "
    "K = decodes' contexts x (kv_bytes_per_token / kv_bytes_per_s + scores_per_token / scores_per_s), "
    "A = attention_flops_per_pair x prompt's pairs of query and visible key / attention_flops_per_s, "
    "M = moved_bytes_per_row x rows / moved_bytes_per_s; a rate of null takes no time; rows are a step's tokens, or "
    "where sampled is true the rows whose logits are wanted; in a step of at most compiled_tokens all kernels but the "
    "last are one, with the rates of compiled, where that is not null, of matrices instead of calls and with "
    "matrix_bytes_per_row instead of moved_bytes_per_row"
)


def costs_json(plan: Plan, price: Price) -> dict[str, object]:
    """Everything that is needed to predict any step, and some predictions."""
    speeds = usable(price)
    return {
        "model": MODEL,
        "speeds": {
            "source": None if speeds is None else speeds.source,
            "memory_bytes_per_s": None if speeds is None else speeds.memory_bytes_per_s,
            "reason": reason(price),
        },
        "compiled": _compiled_json(price.costs, speeds),
        "compiled_tokens": 0 if speeds is None else speeds.compiled_tokens,
        "step_s": None if speeds is None else speeds.step_s,
        "request_s": None if speeds is None else speeds.request_s,
        "weight_bytes": price.costs.together.weight_bytes,
        "kv_bytes_per_token": price.costs.together.kv_bytes_per_token,
        "flops_per_token": price.costs.flops_per_token,
        "calls": price.costs.together.calls,
        "moved_bytes_per_token": price.costs.together.moved_bytes_per_row,
        "kernels": _kernels_json(price.costs, speeds),
        **_predictions_json(plan, price, speeds),
        "faster": [
            {"source": one.source, "memory_bytes_per_s": one.memory_bytes_per_s, **_predictions_json(plan, price, one)}
            for one in faster(price)
        ],
    }


def _predictions_json(plan: Plan, price: Price, speeds: Speeds | None) -> dict[str, object]:
    return {
        "decodes": [] if speeds is None else [_step_json(price.costs, speeds, step) for step in decodes(plan)],
        "prompts": [] if speeds is None else [_step_json(price.costs, speeds, step) for step in prompts(plan)],
        "fusions": [
            {"policy": name, **_saving_json(plan, price.costs, other, speeds)} for name, other in _others(price)
        ],
    }


def _compiled_json(costs: Costs, speeds: Speeds | None) -> dict[str, object] | None:
    """The rates of the forward as one kernel, where the backend compiles it."""
    return asdict(speeds.kernels[costs.compiled_name]) if speeds is not None and costs.is_compiled(speeds) else None


def _kernels_json(costs: Costs, speeds: Speeds | None) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for use, work in costs.uses.items():
        speed = None if speeds is None else speeds.of(use.kernel)
        row = {"kernel": use.kernel, "sampled": use.is_sampled, "window": use.window, **asdict(work)}
        rows.append({**row, "speed": None if speed is None else asdict(speed)})
    return rows


def _step_json(costs: Costs, speeds: Speeds, step: StepShape) -> dict[str, object]:
    seconds = costs.seconds(speeds, step)
    parts = {f"{part}_s": taken_s for part, taken_s in seconds._asdict().items()}
    tokens_per_s = step.tokens / seconds.total
    return {**asdict(step), "seconds": seconds.total, **parts, "tokens_per_s": tokens_per_s}


def _saving_json(plan: Plan, costs: Costs, other: Costs, speeds: Speeds | None) -> dict[str, object]:
    now, then = costs.together, other.together
    saved = (
        []
        if speeds is None
        else [{"requests": step.decodes, "seconds": _saved_s(costs, other, speeds, step)} for step in _few(plan)]
    )
    moved = then.moved_bytes_per_row - now.moved_bytes_per_row
    return {"saved_calls": then.calls - now.calls, "saved_moved_bytes_per_token": moved, "saved": saved}


def usable(price: Price) -> Speeds | None:
    """The speeds, where they say something of each kernel."""
    speeds = price.known.speeds
    return speeds if speeds is not None and _is_enough(price, speeds) else None


def faster(price: Price) -> list[Speeds]:
    """Those that say as much for times when memory is faster."""
    return [speeds for speeds in price.known.faster if _is_enough(price, speeds)]


def _is_enough(price: Price, speeds: Speeds) -> bool:
    return not any(costs.unknown(speeds) for costs in (price.costs, *dict(_others(price)).values()))


def reason(price: Price) -> str:
    """Why there are no times; empty where there are."""
    speeds = price.known.speeds
    if speeds is None:
        return price.known.reason
    unknown = {name: None for costs in (price.costs, *dict(_others(price)).values()) for name in costs.unknown(speeds)}
    return f"{speeds.source}, without {', '.join(unknown)}" if unknown else ""


def costs_text(plan: Plan, price: Price) -> list[str]:
    """The section of a plan for people."""
    together, speeds = price.costs.together, usable(price)
    lines = [
        f"weights      {gib(together.weight_bytes):>10}  read once a step",
        f"context      {together.kv_bytes_per_token / 1024:>6.1f} KiB  a token, read by each decode",
        f"products     {price.costs.flops_per_token / 1e9:>5.2f} GFLOP  a token",
        f"kernels      {together.calls:>10}  calls a step, "
        f"between which {together.moved_bytes_per_row / 1024:.0f} KiB a token are written and read",
    ]
    if speeds is None:
        return [*lines, f"times        none: {reason(price)}", *_fusions_text(plan, price, None)]
    lines.append(f"speeds       {speeds.told}")
    sections = _decodes_text(plan, price, speeds), _prompts_text(plan, price.costs, speeds)
    return [*lines, *chain(*sections), *_fusions_text(plan, price, speeds)]


def _decodes_text(plan: Plan, price: Price, speeds: Speeds) -> Iterator[str]:
    others = faster(price)
    yield "a decode step takes so many ms (products, attention, calls, engine), and makes so many tokens a second:"
    for step in decodes(plan):
        seconds = price.costs.seconds(speeds, step)
        parts = ", ".join(f"{1e3 * part:.1f}" for part in seconds)
        rates = [step.decodes / one.total for one in (seconds, *(price.costs.seconds(other, step) for other in others))]
        yield (
            f"  {step.decodes:>3} at context {step.context:<6} {1e3 * seconds.total:>8.1f}  {'(' + parts + ')':<28} "
            f"{', '.join(f'{rate:>8.1f}' for rate in rates)} tok/s"
        )
    for other in others:
        yield f"  (the faster: {other.told})"


def _prompts_text(plan: Plan, costs: Costs, speeds: Speeds) -> Iterator[str]:
    for step in prompts(plan):
        rate = step.prompt / costs.seconds(speeds, step).total
        yield f"prompts are read at {rate:.0f} tokens/s in chunks of {step.prompt} behind {step.start}"


def _fusions_text(plan: Plan, price: Price, speeds: Speeds | None) -> Iterator[str]:
    for name, other in _others(price):
        now, then = price.costs.together, other.together
        moved = (then.moved_bytes_per_row - now.moved_bytes_per_row) / 1024
        title = "no fusion" if name is None else f"without {name}"
        text = f"{title:<20} {then.calls - now.calls:+5} calls, {moved:+.0f} KiB a token"
        if speeds is not None:
            steps = _few(plan)
            slower = (_saved_s(price.costs, other, speeds, step) for step in steps)
            counts = "/".join(str(step.decodes) for step in steps)
            text += f", {' / '.join(f'{1e6 * one:+.0f}' for one in slower)} us at {counts} requests"
        yield text


def _others(price: Price) -> list[tuple[str | None, Costs]]:
    """What steps would cost without each fusion, and without all (None)."""
    return [*price.without.items(), *([] if price.unfused is None else [(None, price.unfused)])]


def _saved_s(costs: Costs, other: Costs, speeds: Speeds, step: StepShape) -> float:
    return other.seconds(speeds, step).total - costs.seconds(speeds, step).total


def decodes(plan: Plan) -> list[StepShape]:
    """The decode steps that are predicted: as many requests and as long contexts as the plan allows."""
    return [StepShape(count, context) for count in _counts(plan) for context in _contexts(plan, count)]


def prompts(plan: Plan) -> list[StepShape]:
    """The chunks of prompts that are predicted."""
    length = plan.model.context_length.value
    chunk = min(plan.scheduler.chunked_prefill_size.value, length)
    return [StepShape(0, prompt=chunk, start=start) for start in (0, *CONTEXTS[2:]) if start + chunk <= length]


def _counts(plan: Plan) -> Sequence[int]:
    return [count for count in REQUESTS if count <= plan.scheduler.max_running_requests.value]


def _contexts(plan: Plan, count: int) -> Sequence[int]:
    longest = min(plan.model.context_length.value, plan.scheduler.kv_tokens // count)
    return [context for context in CONTEXTS if context <= longest]


def _few(plan: Plan) -> list[StepShape]:
    return [StepShape(count, FUSION_CONTEXT) for count in _counts(plan)]


__all__ = ["costs_json", "costs_text", "decodes", "prompts", "reason", "usable"]
