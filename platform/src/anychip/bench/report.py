"""A benchmark's result in a table and a few lines. Knows what people look for; computes no figure."""

from __future__ import annotations

from collections.abc import Sequence

from anychip.bench.result import BenchResult, LevelResult, WorkloadFacts
from anychip.bench.summary import Spread

HEADERS = (
    "LOAD",
    "REQUESTS",
    "OUT TOK/S",
    "TTFT P50",
    "TTFT RANGE",
    "TPOT P50",
    "ITL P99",
    "REQ/S",
    "HITS",
    "GOODPUT",
)


def rows(result: BenchResult) -> list[Sequence[str]]:
    """One for each load, below HEADERS: medians over its runs, with the least and the most in brackets."""
    return [_row(one) for one in result.levels]


def lines(result: BenchResult) -> list[str]:
    """What stands around the table."""
    runs, workload, where = len(result.levels[0].runs), result.workload, result.environment
    found = [
        f"workload     {workload.name}{_described(workload)}, medians of {_times(runs)}",
        f"target       {result.target.model} on {result.target.url}{_emulated(result)}",
        f"machine      {where['cpu']}, {where['cores_allowed']} cores, load {_load(where['load_average'])}",
        f"warm-up      {_warm_up(result)}",
    ]
    if result.peak_rss_bytes is not None:
        found.append(f"peak memory  {result.peak_rss_bytes / 2**30:.2f} GiB (resident, all processes of the service)")
    if result.levels[0].runs[0].goodput is not None:
        found.append(f"objective    {_objective(result)}")
    if any(one.figures.ttft_later_s for one in result.levels) and _shared_tokens(result):
        found += [f"prefix       {_prefix(one)}" for one in result.levels]
    return found


def _described(workload: WorkloadFacts) -> str:
    description = workload.content["description"]
    return f" ({description})" if description else ""


def _emulated(result: BenchResult) -> str:
    backend = result.service.get("backend")
    is_emulated = isinstance(backend, dict) and backend.get("emulated") is True
    return ", EMULATED: no figure here is the chip's" if is_emulated else ""


def _row(one: LevelResult) -> Sequence[str]:
    figures = one.figures
    return (
        str(one.level),
        str(sum(run.requests for run in one.runs)),
        _spread(figures.output_tok_s),
        _ms(figures.ttft_p50_s),
        _range(figures.ttft_min_s, figures.ttft_max_s),
        _ms(figures.tpot_p50_s),
        _ms(figures.itl_p99_s),
        "-" if figures.requests_per_s is None else f"{figures.requests_per_s.median:.2f}",
        _percent(figures.cache_hit_rate),
        _percent(figures.goodput_fraction),
    )


def milliseconds(seconds: float) -> str:
    """45.2 ms, 1.31 s."""
    return f"{seconds * 1000:.3g} ms" if seconds < 0.9995 else f"{seconds:.2f} s"


def _ms(spread: Spread | None) -> str:
    return "-" if spread is None else milliseconds(spread.median)


def _range(low: Spread | None, high: Spread | None) -> str:
    return "-" if low is None or high is None else f"{milliseconds(low.min)} to {milliseconds(high.max)}"


def _spread(spread: Spread | None) -> str:
    if spread is None:
        return "-"
    is_one = spread.min == spread.max
    return f"{spread.median:.1f}" + ("" if is_one else f" ({spread.min:.1f} to {spread.max:.1f})")


def _percent(spread: Spread | None) -> str:
    return "-" if spread is None else f"{spread.median:.0%}"


def _times(count: int) -> str:
    return "1 run" if count == 1 else f"{count} runs"


def _load(average: object) -> str:
    return f"{average[0]:.1f}" if isinstance(average, (list, tuple)) and average else "unknown"


def _warm_up(result: BenchResult) -> str:
    windows = len(result.warm_up.windows_tok_s)
    if not windows:
        return "none"
    return f"{windows} windows, " + ("then stable" if result.warm_up.is_stable else "NOT STABLE: something else runs")


def _objective(result: BenchResult) -> str:
    limits = (("TTFT", result.slo.ttft_s), ("TPOT", result.slo.tpot_s))
    return ", ".join(f"{name} at most {milliseconds(limit)}" for name, limit in limits if limit is not None)


def _shared_tokens(result: BenchResult) -> bool:
    prompt = result.workload.content["prompt"]
    return isinstance(prompt, dict) and bool(prompt.get("shared_tokens"))


def _prefix(one: LevelResult) -> str:
    first, later = one.figures.ttft_first_wave_s, one.figures.ttft_later_s
    return f"{one.level}: TTFT p50 of the first wave {_ms(first)}, of all later requests {_ms(later)}"


__all__ = ["HEADERS", "lines", "milliseconds", "rows"]
