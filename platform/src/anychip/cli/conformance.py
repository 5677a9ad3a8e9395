"""`platform conformance`: the suite's verbs with a progress bar. Knows how it is shown; the SDK knows the suite."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from anychip.cli.output import Output, OutputOption, emit, progress_console

if TYPE_CHECKING:
    from anychip_sdk.conformance.command import Answer
    from anychip_sdk.conformance.results import CaseResult
    from anychip_sdk.conformance.run.runner import Listener


class ProfileName(str, Enum):
    bringup = "bringup"
    kernel = "kernel"
    serving_core = "serving-core"
    serving_full = "serving-full"


class LevelName(str, Enum):
    smoke = "smoke"
    std = "std"
    deep = "deep"
    soak = "soak"


conformance_app = typer.Typer(help="Test a backend against numbered requirements and certify it.", no_args_is_help=True)
FolderArgument = Annotated[Path, typer.Argument(metavar="DIR", help="What a run wrote.")]


@conformance_app.command("list")
def list_(
    profile: Annotated[ProfileName | None, typer.Option("--profile", help="Only those of a profile.")] = None,
    output: OutputOption = Output.text,
) -> None:
    """List the requirements: what each backend must do."""
    from anychip_sdk.conformance import command

    _show(command.list_requirements(profile.value if profile else None), output)


@conformance_app.command()
def run(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="An installed backend, module:attribute, or a shared object's path.")
    ],
    profile: Annotated[ProfileName, typer.Option("--profile", help="What is certified.")] = ProfileName.bringup,
    level: Annotated[LevelName, typer.Option("--level", help="How many inputs; bounds stay.")] = LevelName.std,
    only: Annotated[
        list[str] | None,
        typer.Option("--only", metavar="GLOB", help="Cases, requirements or tracks; repeatable. No verdict then."),
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", help="The folder for reports and evidence.")] = None,
    resume: Annotated[Path | None, typer.Option("--resume", help="Take over what an earlier run finished.")] = None,
    timeout: Annotated[float | None, typer.Option("--timeout", help="Seconds that one case may take.")] = None,
    repeat: Annotated[int, typer.Option("--repeat", min=1, help="Run each case so often; all must pass.")] = 1,
    device: Annotated[str | None, typer.Option("--device", help="The device's name; not given: the first.")] = None,
    emulate: Annotated[bool, typer.Option("--emulate", help="On the backend's emulator; the reports say so.")] = False,
    claims: Annotated[Path | None, typer.Option("--claims", help="Another manifest than the package's.")] = None,
    sign_key: Annotated[Path | None, typer.Option("--sign-key", help="An ed25519 private key in PEM.")] = None,
    output: OutputOption = Output.text,
) -> None:
    """Test a backend: exit 0 conformant, 7 not, 10 without a verdict."""
    from anychip_sdk.conformance import command
    from anychip_sdk.conformance.run.runner import Options
    from anychip_sdk.device import DeviceConfig

    options = Options(
        profile=profile.value,
        level=level.value,
        only=tuple(only or ()),
        resume=resume,
        timeout_s=timeout,
        repeat=repeat,
        device=device,
        config=DeviceConfig(emulate=emulate, threads=1),
    )
    with _progress(f"{name} {profile.value} {level.value}") as listen:
        answer = command.conduct(name, options, out=out, claims=claims, key=sign_key, listen=listen)
    _show(answer, output)


@conformance_app.command()
def report(folder: FolderArgument, output: OutputOption = Output.text) -> None:
    """Write the reports of a run again, from its results.json."""
    from anychip_sdk.conformance import command

    _show(command.report(folder), output)


@conformance_app.command()
def verify(
    folder: FolderArgument,
    public_key: Annotated[
        Path | None, typer.Option("--public-key", help="The ed25519 key that must have signed it, in PEM.")
    ] = None,
    output: OutputOption = Output.text,
) -> None:
    """Recompute the verdict and every digest of a run: exit 8 where anything was changed."""
    from anychip_sdk.conformance import command

    _show(command.check(folder, public_key), output)


@conformance_app.command()
def diff(
    old: Annotated[Path, typer.Argument(metavar="OLD", help="A run's folder.")],
    new: Annotated[Path, typer.Argument(metavar="NEW", help="A later run's folder.")],
    output: OutputOption = Output.text,
) -> None:
    """Compare two runs: exit 6 where something got worse."""
    from anychip_sdk.conformance import command

    _show(command.compare(old, new), output)


@conformance_app.command()
def selftest(
    only: Annotated[
        list[str] | None, typer.Option("--only", metavar="GLOB", help="Some of the broken devices.")
    ] = None,
    output: OutputOption = Output.text,
) -> None:
    """Let the suite judge devices that are broken on purpose: exit 7 where it misses one."""
    from anychip_sdk.conformance import command

    console = progress_console()
    _show(command.self_test(only or (), lambda line: console.print(line, markup=False, highlight=False)), output)


def _show(answer: Answer, output: Output) -> None:
    emit(answer.value, output, text=answer.text)
    if answer.code:
        raise typer.Exit(answer.code)


@contextmanager
def _progress(title: str) -> Iterator[Listener]:
    """A bar with an estimate on stderr; failures are shown as they come."""
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    console = progress_console()
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[case]}"),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(title, total=None, case="")

        def listen(case: CaseResult, done: int, of: int) -> None:
            progress.update(task, completed=done, total=of, case=case.id)
            if case.status == "failed":
                first = case.message.partition("\n")[0]
                progress.console.print(f"failed {case.id}: {first}", markup=False, highlight=False)

        yield listen


def register(app: typer.Typer) -> None:
    app.add_typer(conformance_app, name="conformance")


__all__ = ["conformance_app", "diff", "list_", "register", "report", "run", "selftest", "verify"]
