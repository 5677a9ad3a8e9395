"""`platform apply`: make a recipe a running service. Knows how progress and the outcome are shown."""

from __future__ import annotations

import contextlib
import json
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from anychip.cli.output import (
    EmulateOption,
    Output,
    OutputOption,
    SetOption,
    assignments,
    emit,
    emit_raw,
    fail,
    progress_console,
)

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from anychip.deploy.apply import Applied
    from anychip.deploy.client import Health
    from anychip.deploy.state import Store


INTERRUPTED = 130


def apply(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help="The recipe's file.")],
    sets: SetOption = None,
    plugin_path: Annotated[
        Path | None,
        typer.Option("--plugin-path", metavar="FILE", help="Run on this shared object: backend {name: native}."),
    ] = None,
    emulate: EmulateOption = False,
    foreground: Annotated[
        bool, typer.Option("--foreground", help="Stay attached: show the log, and end the service with Ctrl-C.")
    ] = False,
    timeout_s: Annotated[
        float, typer.Option("--timeout", metavar="SECONDS", min=1, help="How long the service may take to be ready.")
    ] = 600.0,
    output: OutputOption = Output.text,
) -> None:
    """Plan the recipe, start its service, wait until it is ready and try it with one request.

    An unchanged recipe whose service is well changes nothing. A changed one replaces the service of its name; if the
    new one does not come up, the old one is brought back.
    """
    from anychip.deploy.apply import ApplyOptions
    from anychip.deploy.apply import apply as run
    from anychip.deploy.interrupts import Interrupted, interruptible
    from anychip.deploy.state import Store
    from anychip_sdk.home import home

    store = Store(home())
    reporter = Bar()
    if plugin_path is not None:
        sets = ["backend.name=native", f"backend.plugin_path={json.dumps(str(plugin_path.absolute()))}", *(sets or ())]
    options = ApplyOptions(assignments(sets, emulate=emulate), timeout_s, foreground)
    try:
        with interruptible():
            applied = run(recipe, options, store=store, reporter=reporter)
            if applied.started is not None:
                raise typer.Exit(_attend(store, applied, output))
    except Interrupted as interrupt:
        fail(str(interrupt))
        raise typer.Exit(0 if foreground and interrupt.number == signal.SIGTERM else INTERRUPTED) from None
    finally:
        reporter.done()
    _tell(applied, output)


class Bar:
    """Shows what an apply tells: lines, and one bar for what is loading. Nothing moves where there is no terminal.

    Where nothing can be shown any more, an apply goes on all the same: a terminal that is gone sends a signal.
    """

    def __init__(self) -> None:
        self._console = progress_console()
        self._progress: Progress | None = None
        self._task: TaskID | None = None
        self._stage = ""

    def say(self, text: str) -> None:
        self.done()
        with contextlib.suppress(OSError):
            self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def progress(self, health: Health) -> None:
        with contextlib.suppress(OSError):
            self._show(health)

    def done(self) -> None:
        progress, self._progress, self._task = self._progress, None, None
        self._stage = ""
        if progress is not None:
            with contextlib.suppress(OSError):
                progress.stop()

    def _show(self, health: Health) -> None:
        stage = health.stage or "starting"
        if not self._console.is_terminal:
            if stage != self._stage:
                self._console.print(f"  {stage}", markup=False, highlight=False)
                self._stage = stage
            return
        if self._progress is None:
            self._progress = self._open()
        if self._task is None or stage != self._stage:
            if self._task is not None:
                self._progress.remove_task(self._task)
            self._stage = stage
            self._task = self._progress.add_task(stage, total=None, amount="", detail="")
        amount = f"{health.done / health.total:4.0%}" if health.total else ""
        total = health.total or None  # None: a bar that only shows that something happens
        self._progress.update(self._task, completed=health.done, total=total, amount=amount, detail=health.detail)

    def _open(self) -> Progress:
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (
            TextColumn("  {task.description}"),
            BarColumn(),
            TextColumn("{task.fields[amount]}"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[detail]}", style="dim"),
        )
        progress = Progress(*columns, console=self._console, transient=True)
        progress.start()
        return progress


def as_json(applied: Applied) -> dict[str, object]:
    state = applied.state
    return {
        "name": state.name,
        "action": applied.action,
        "revision": state.revision,
        "url": applied.url,
        "model": state.model,
        "backend": state.backend,
        "emulated": state.emulated,
        "pid": state.process.pid if state.process else None,
        "log_path": str(applied.log_path),
    }


def as_text(applied: Applied) -> str:
    state, name = applied.state, applied.state.name
    emulated = f", {state.backend} EMULATED" if state.emulated else ""
    if applied.action == "unchanged":
        return f"no changes: '{name}' serves {state.model} on {applied.url}{emulated}"
    end = "Ctrl-C" if applied.started is not None else f"platform down {name}"
    lines = (
        f"'{name}' serves {state.model} on {applied.url} (revision {state.revision}{emulated})",
        f"  try    {applied.curl}",
        f"  chat   platform chat {name}",
        f"  log    {applied.log_path}",
        f"  end    {end}",
    )
    return "\n".join(lines)


def _tell(applied: Applied, output: Output) -> None:
    if output is Output.json:
        emit(as_json(applied), output)
    else:
        emit_raw(as_text(applied))  # unwrapped: the command lines are there to be pasted
    sys.stdout.flush()


def _attend(store: Store, applied: Applied, output: Output) -> int:
    """Show the log until the service ends; a signal ends it, a second one at once. Returns the exit code."""
    from anychip.deploy.interrupts import Interrupted
    from anychip.deploy.logs import follow
    from anychip.deploy.services import finish

    started, name = applied.started, applied.state.name
    assert started is not None
    code = 0
    try:
        _tell(applied, output)
        for text in follow(applied.log_path, applied.log_path.stat().st_size, lambda: started.exit_code() is None):
            with contextlib.suppress(OSError):  # a terminal that is gone sends SIGHUP; a closed pipe ends no service
                sys.stderr.write(text)
        code = started.end()
        fail(f"'{name}' ended with exit code {code}")
        return 0 if code == 0 else 1
    except Interrupted as interrupt:
        try:
            fail(f"stopping '{name}'")
            started.end()
        except Interrupted:
            started.end(0)
        if interrupt.number == signal.SIGTERM:  # how a machine's own supervisor ends a service in order
            return 0
        raise
    finally:
        if code == 0:  # one that ended otherwise is dead, which its process tells
            finish(store, applied.state)


def register(app: typer.Typer) -> None:
    app.command()(apply)


__all__ = ["Bar", "apply", "as_json", "as_text", "register"]
