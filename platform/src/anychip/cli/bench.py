"""`platform bench`: measure a service. Knows its options and how results are shown; measures nothing itself."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Group

from anychip.cli.apply import Bar
from anychip.cli.output import Output, OutputOption, SetOption, emit, fail, progress_console, table
from anychip_sdk.errors import UsageError

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from anychip.bench.bench import Benched
    from anychip.bench.record import Slo
    from anychip.bench.result import BenchResult, Level


def bench(
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="[TARGET]",
            help="A URL, a service's name, or a recipe's file, which is served on a free port for as long as it takes. "
            "Not given: the only service that there is.",
        ),
    ] = None,
    workload: Annotated[
        str, typer.Option("--workload", "-w", metavar="NAME|FILE", help="What is sent; --list shows what there is.")
    ] = "chat",
    concurrency: Annotated[
        str | None,
        typer.Option(metavar="N,...", help="Requests at once, one load each. Not given: the workload's."),
    ] = None,
    rate: Annotated[
        str | None,
        typer.Option(metavar="R,...", help="Instead: requests per second, arriving by a Poisson process."),
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, help="How often each load runs; figures are medians.")] = 3,
    requests: Annotated[int | None, typer.Option(min=1, help="Requests in a run. Not given: the workload's.")] = None,
    seed: Annotated[int, typer.Option(help="Of prompts and arrivals.")] = 0,
    vocab_size: Annotated[
        int | None,
        typer.Option(min=1, help="Random token ids are below. Not given: the service tells, or 32000."),
    ] = None,
    warm_up: Annotated[bool, typer.Option("--warm-up/--no-warm-up", help="Warm up until speed is stable.")] = True,
    slo_ttft: Annotated[
        str | None, typer.Option(metavar="DURATION", help="Goodput's limit, e.g. 500ms. Not given: the recipe's slo.")
    ] = None,
    slo_tpot: Annotated[str | None, typer.Option(metavar="DURATION", help="The same per output token.")] = None,
    generate: Annotated[bool, typer.Option("--generate", help="Send to /generate instead of /v1/completions.")] = False,
    api_key_env: Annotated[str | None, typer.Option(metavar="NAME", help="The variable with a URL's API key.")] = None,
    sets: SetOption = None,
    timeout_s: Annotated[
        float, typer.Option("--timeout", metavar="SECONDS", min=1, help="How long a recipe may take to be ready.")
    ] = 600.0,
    save: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the result as JSON, too.")] = None,
    raw: Annotated[Path | None, typer.Option(metavar="FILE", help="Write every request as a line of JSON.")] = None,
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="Draw the figures: a .png or .svg.")] = None,
    list_: Annotated[bool, typer.Option("--list", help="List the workloads and leave.")] = False,
    output: OutputOption = Output.text,
) -> None:
    """Measure latency, throughput, goodput, cache hits and memory of a service under load.

    What each figure means is in docs/bench.md. Exit 1 where requests failed: such a result is shown and doesn't count.
    """
    from anychip.bench import workload as workloads
    from anychip.bench.bench import bench as run
    from anychip.bench.plot import plot as draw
    from anychip.bench.plot import require_plotting
    from anychip.bench.sweep import Sweep
    from anychip.bench.target import Wanted, open_target
    from anychip.bench.wire import Api
    from anychip.deploy.state import Store
    from anychip_sdk.home import home

    if list_:
        _list(output)
        return
    if plot is not None:
        require_plotting(plot)
    sent = workloads.load(workload)
    levels, slo = _levels(concurrency, rate, sent.concurrency), _slo(slo_ttft, slo_tpot)
    sweep = Sweep(sent, levels, repeats, requests, seed, slo, warm_up, vocab_size)
    wanted = Wanted(target, tuple(sets or ()), timeout_s, api_key_env)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # SIGTERM undoes what Ctrl-C undoes
    reporter = Bar()
    try:
        with open_target(wanted, Store(home()), reporter) as found, LoadBar.shown() as bar:
            benched = run(found, sweep, bar, Api.generate if generate else Api.completions)
    finally:
        reporter.done()
    if plot is not None:
        draw(benched.result, plot)
    _write(benched, save, raw)
    emit(benched.result.to_json(), output, text=_text(benched.result))
    if not benched.result.is_valid:
        fail(f"requests failed, so the result doesn't count: {'; '.join(benched.result.failures)}")
        raise typer.Exit(1)


class LoadBar:
    """Shows how many requests are done. Nothing moves where there is no terminal."""

    def __init__(self, progress: Progress, task: TaskID) -> None:
        self._progress = progress
        self._task = task

    @classmethod
    @contextmanager
    def shown(cls) -> Iterator[LoadBar]:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
        from rich.progress import TimeRemainingColumn as Remaining

        console = progress_console()
        columns = (
            TextColumn("  {task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            Remaining(),
        )
        # Few redraws: the machine is being measured.
        shown = Progress(
            *columns, console=console, transient=True, disable=not console.is_terminal, refresh_per_second=2
        )
        with shown as progress:
            yield cls(progress, progress.add_task("connecting", total=None))

    def begin(self, requests: int) -> None:
        self._progress.update(self._task, total=requests)

    def enter(self, stage: str) -> None:
        self._progress.update(self._task, description=stage)
        if self._progress.disable:
            self._progress.console.print(f"  {stage}", markup=False, highlight=False)

    def done(self) -> None:
        self._progress.advance(self._task)


def _levels(concurrency: str | None, rate: str | None, default: tuple[int, ...]) -> tuple[Level, ...]:
    from anychip.bench.result import Level

    if concurrency is not None and rate is not None:
        raise UsageError("give --concurrency or --rate, not both")
    if rate is not None:
        return tuple(Level("poisson", value) for value in _numbers("--rate", rate, float))
    values = default if concurrency is None else _numbers("--concurrency", concurrency, int)
    return tuple(Level("closed", value) for value in values)


def _numbers(option: str, text: str, kind: type[int] | type[float]) -> list[float]:
    try:
        values = [float(kind(part)) for part in text.split(",")]
    except ValueError:
        values = []
    if not values or not all(0 < value <= 1e6 for value in values) or len(set(values)) < len(values):
        raise UsageError(f"{option} {text}: expected different numbers above 0 with commas between them, such as 1,4")
    return values


def _slo(ttft: str | None, tpot: str | None) -> Slo:
    from anychip.bench.record import Slo
    from anychip.recipe.quantities import parse_duration

    limits = []
    for option, text in (("--slo-ttft", ttft), ("--slo-tpot", tpot)):
        try:
            limits.append(None if text is None else float(parse_duration(text)))
        except ValueError as error:
            raise UsageError(f"{option}: {error}") from error
    return Slo(*limits)


def _text(result: BenchResult) -> Group:
    from anychip.bench.report import HEADERS, lines, rows

    return Group(*lines(result), "", table(HEADERS, rows(result)))


def _write(benched: Benched, save: Path | None, raw: Path | None) -> None:
    import msgspec

    if save is not None:
        save.write_text(json.dumps(benched.result.to_json(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    if raw is not None:
        records = (
            {"load": run.level, "run": number, "record": record}
            for number, run in enumerate(benched.runs)
            for record in run.records
        )
        raw.write_bytes(b"".join(msgspec.json.encode(record) + b"\n" for record in records))


def _list(output: Output) -> None:
    from anychip.bench import workload as workloads

    found = [workloads.load(name) for name in workloads.shipped()]
    shown = {"workloads": [{"name": one.name, "description": one.description} for one in found]}
    emit(shown, output, text=table(("WORKLOAD", "SENDS"), [(one.name, one.description) for one in found]))


def register(app: typer.Typer) -> None:
    app.command()(bench)


__all__ = ["LoadBar", "bench", "register"]
