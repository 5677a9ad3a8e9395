"""Draw a benchmark's figures into a file. Knows matplotlib, which is an extra; knows no measurement."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from anychip.bench.result import BenchResult
from anychip.bench.summary import Spread
from anychip_sdk.errors import PreconditionFailed, UsageError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SUFFIXES = (".png", ".svg")


def require_plotting(path: Path) -> None:
    """Say before anything is measured that the plot can't be drawn.

    Raises:
        UsageError: the file's name doesn't say a known kind, or its folder isn't there.
        PreconditionFailed: matplotlib is not installed.
    """
    if path.suffix not in SUFFIXES:
        raise UsageError(f"--plot {path}: expected a name that ends in {' or '.join(SUFFIXES)}")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"--plot {path}: there is no folder {path.absolute().parent}")
    try:
        import matplotlib as _  # noqa: F401
    except ImportError as error:
        raise PreconditionFailed("--plot needs matplotlib", hint="pip install 'anychip[plot]'") from error


def plot(result: BenchResult, path: Path) -> None:
    """Throughput, TTFT and TPOT over the load: medians as a line, least and most as bars."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 4), layout="constrained")
    throughput, ttft, tpot = figure.subplots(1, 3)
    figures = [one.figures for one in result.levels]
    loads = [one.level.value for one in result.levels]
    _draw(throughput, loads, [one.output_tok_s for one in figures], "output tokens per second", 1.0)
    _draw(ttft, loads, [one.ttft_p50_s for one in figures], "time to the first token, p50, ms", 1000.0)
    _draw(tpot, loads, [one.tpot_p50_s for one in figures], "time per output token, p50, ms", 1000.0)
    is_closed = result.levels[0].level.kind == "closed"
    for axes in (throughput, ttft, tpot):
        axes.set_xlabel("requests at once" if is_closed else "requests per second")
    figure.suptitle(f"{result.target.model}, workload {result.workload.name}, {result.environment['cpu']}")
    figure.savefig(path, format=path.suffix[1:])


def _draw(axes: Axes, loads: list[float], spreads: list[Spread | None], title: str, scale: float) -> None:
    known = [(load, spread) for load, spread in zip(loads, spreads, strict=True) if spread is not None]
    medians = [spread.median * scale for _, spread in known]
    below = [(spread.median - spread.min) * scale for _, spread in known]
    above = [(spread.max - spread.median) * scale for _, spread in known]
    axes.errorbar([load for load, _ in known], medians, yerr=[below, above], marker="o", capsize=4)
    axes.set_title(title)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)


__all__ = ["SUFFIXES", "plot", "require_plotting"]
