"""The `platform` command's entry: collects the verbs, turns errors into exit codes. Knows no verb's work."""

from __future__ import annotations

import io
import os
import sys
import traceback
from importlib import import_module
from typing import IO, Annotated

import typer

import anychip
from anychip.cli.output import emit_raw, fail
from anychip_sdk.errors import AnychipError, PreconditionFailed

# In the order of `platform --help`. Each has `register(app)` and imports what is heavy inside its functions.
VERBS = (
    "apply",
    "plan",
    "status",
    "logs",
    "down",
    "chat",
    "bench",
    "validate",
    "recipe",
    "schema",
    "graph",
    "ops",
    "models",
    "devices",
    "doctor",
    "backends",
    "conformance",
    "plugin",
)

_EPILOG = (
    "Exit codes: 0 ok, 1 failure, 2 usage, 3 recipe invalid, 4 something that the recipe needs is missing, "
    "5 not ready in time, 6 regression, 7 conformance failed, 8 integrity, 9 state locked, 10 inconclusive, "
    "130 interrupted."
)

app = typer.Typer(
    name="platform",
    help="Serve large language models on any chip from one declarative recipe.",
    epilog=_EPILOG,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        emit_raw(f"anychip {anychip.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Show the traceback of an error. Also: ANYCHIP_DEBUG=1.")
    ] = False,
) -> None:
    del version
    context.obj = {"verbose": verbose}
    if verbose:
        os.environ["ANYCHIP_DEBUG"] = "1"


for _verb in VERBS:
    import_module(f"anychip.cli.{_verb}").register(app)


def run() -> None:
    """Run the command line and exit with its code."""
    code = main()
    # What can't be written now couldn't at exit either, where Python would say so in its own way and exit with 120.
    problem = _flush(sys.stdout)
    if problem is not None and code == 0:
        code = problem.exit_code
        _show(problem, f"standard output: {problem}")
    _flush(sys.stderr)
    sys.exit(code)


def main(arguments: list[str] | None = None) -> int:
    """Run a command line and return its exit code.

    Args:
        arguments: what follows `platform`; None: the process's own.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a file's name may hold bytes that are no text
    try:
        app(args=arguments, prog_name="platform")
    except SystemExit as done:
        return done.code if isinstance(done.code, int) else int(done.code is not None)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        return 1  # the reader went away; nothing is left to say
    except (AnychipError, OSError) as error:
        known = error if isinstance(error, AnychipError) else _refused_by_the_system(error)
        _show(error, str(known))
        return known.exit_code
    except Exception as error:
        _show(error, f"internal error: {type(error).__name__}: {error} (--verbose shows where)")
        return 1
    return 0


def _flush(stream: IO[str]) -> AnychipError | None:
    """Write what waits; where that fails, drop it and return why."""
    try:
        stream.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        return _refused_by_the_system(error)
    return None


def _refused_by_the_system(error: OSError) -> PreconditionFailed:
    """What the system refused, and of which file."""
    paths = [os.fsdecode(path) for path in (error.filename, error.filename2) if isinstance(path, (str, bytes))]
    reason = error.strerror or str(error) or type(error).__name__
    return PreconditionFailed(f"{' -> '.join(paths)}: {reason}" if paths else reason)


def _show(error: BaseException, message: str) -> None:
    if os.environ.get("ANYCHIP_DEBUG") == "1":
        fail("".join(traceback.format_exception(error)))
    fail(message)


__all__ = ["VERBS", "app", "main", "run"]
