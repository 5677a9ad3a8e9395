"""Bring one revision up: start its process, wait until it is ready, let it generate a token. Knows no state file."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

import msgspec

from anychip.deploy import supervisor
from anychip.deploy.client import Health, ServiceClient, ServiceError
from anychip.deploy.leash import Relaunch
from anychip.deploy.logs import readable, tail
from anychip.deploy.process_id import ProcessId
from anychip.deploy.running import FLAG
from anychip.deploy.state import Revision
from anychip.deploy.supervisor import Started
from anychip.recipe import LoadedRecipe, Recipe
from anychip_sdk.errors import NotReady

TAIL_LINES = 20
STAND_BY = "--stand-by"
HANDOVER_S = supervisor.GRACE_S + 15.0  #: what ending a predecessor, all of it, takes at most


class Planned(NamedTuple):
    """A plan, as far as a deployment tells it."""

    backend: str
    summary: str
    emulated: bool = False
    environment: Mapping[str, str] = {}  #: that the backend names for the worker


class Reporter(Protocol):
    """Whom the progress is told to."""

    def say(self, text: str) -> None: ...
    def progress(self, health: Health) -> None: ...
    def done(self) -> None: ...


class Failure(msgspec.Struct, frozen=True):
    """Why a service's process ended; the process leaves it beside its revision."""

    message: str
    hint: str | None = None
    exit_code: int = 1


def service_command(revision_path: Path) -> Sequence[str]:
    """The command line of a service's process."""
    return (sys.executable, "-m", "anychip.deploy.service", FLAG, str(revision_path))


def plan_recipe(loaded: LoadedRecipe) -> Planned:
    """The plan of a recipe, made in this process: what is missing is told before anything is started."""
    from anychip.deploy.summary import summarize
    from anychip.plan.make import make_plan

    plan = make_plan(loaded.recipe)
    return Planned(plan.backend.name, summarize(plan), plan.backend.emulated, plan.backend.environment)


@dataclass(frozen=True)
class Launch:
    """How a recipe is planned and how a revision becomes a process; tests put quick ones in their place."""

    command: Callable[[Path], Sequence[str]] = service_command
    plan: Callable[[LoadedRecipe], Planned] = plan_recipe
    poll_s: float = 0.1


@dataclass(frozen=True)
class Limits:
    """How long a revision may take."""

    deadline_s: float  #: on time.monotonic's clock
    timeout_s: float  #: what the deadline was made of, for messages

    @classmethod
    def within(cls, timeout_s: float) -> Limits:
        return cls(time.monotonic() + timeout_s, timeout_s)

    @property
    def left_s(self) -> float:
        return max(self.deadline_s - time.monotonic(), 0.0)


def failure_path(revision_path: Path) -> Path:
    return revision_path.with_suffix(".failure.json")


def how_to_start(
    revision: Revision,
    revision_path: Path,
    log_path: Path,
    launch: Launch,
    *,
    stand_by: bool = False,
    environ: Mapping[str, str] | None = None,
) -> Relaunch:
    """How the process of a revision is started.

    Args:
        stand_by: it waits to be told to take over from others.
        environ: None: this command's.
    """
    command = (*launch.command(revision_path), *((STAND_BY,) if stand_by else ()))
    # The folder in which the command ran is not a place to import modules from.
    said = {**(os.environ if environ is None else environ), "PYTHONSAFEPATH": "1", "PYTHONUNBUFFERED": "1"}
    folder = revision.working_folder if Path(revision.working_folder).is_dir() else None
    return Relaunch(command, str(log_path), folder, said)


def recipe_of(revision: Revision) -> Recipe:
    return Recipe.model_validate_json(msgspec.json.encode(revision.recipe))


class Awaited:
    """A started revision on its way to readiness."""

    def __init__(self, started: Started, revision_path: Path, log_path: Path, launch: Launch) -> None:
        self._started = started
        self._revision_path = revision_path
        self._log_path = log_path
        self._log_start = log_path.stat().st_size if log_path.exists() else 0
        self._poll_s = launch.poll_s

    def standing_by(self, limits: Limits) -> None:
        """Wait until the process could take over.

        Raises:
            NotReady: it ended itself, or takes too long.
        """
        while not self._started.has_answered(self._poll_s):
            self._require_alive()
            if limits.left_s <= 0:
                raise NotReady(f"its process did not come up in {limits.timeout_s:g} s{self._tail()}")

    def taken_over(self, predecessors: Sequence[ProcessId]) -> None:
        """Wait until the predecessors have ended; before that it isn't this one that answers on the port.

        Raises:
            NotReady: it ended itself, or they don't end.
        """
        deadline_s = time.monotonic() + HANDOVER_S
        while any(supervisor.is_alive(one) for one in predecessors):
            self._require_alive()
            if time.monotonic() >= deadline_s:
                raise NotReady(f"what it replaces did not end in {HANDOVER_S:g} s{self._tail()}")
            time.sleep(self._poll_s)
        self._require_alive()

    def ready(self, client: ServiceClient, limits: Limits, reporter: Reporter) -> str:
        """Wait for readiness and a smoke request; returns the model's name in the API.

        Raises:
            NotReady: it ended, it is not ready in time, or it generates nothing.
        """
        while True:
            self._require_alive()
            health = client.health()
            if health.is_ready:
                break
            reporter.progress(health)
            if limits.left_s <= 0:
                stage = f" (last seen: {health.stage})" if health.stage else ""
                raise NotReady(
                    f"not ready after {limits.timeout_s:g} s{stage}{self._tail()}",
                    hint="raise --timeout, or read the log",
                )
            time.sleep(min(self._poll_s, limits.left_s))
        reporter.done()
        self._require_alive()  # whoever answered was this process
        try:
            model = client.model()
            client.smoke(model, max(limits.left_s, 1.0))
        except ServiceError as error:
            raise NotReady(f"{error.message}{self._tail()}") from error
        return model

    def _require_alive(self) -> None:
        code = self._started.exit_code()
        if code is None:
            return
        failure = read_failure(self._revision_path)
        if failure is not None:
            raise NotReady(f"the service ended while starting: {failure.message}", hint=failure.hint)
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        raise NotReady(f"the service ended while starting, with {how}{self._tail()}")

    def _tail(self) -> str:
        lines = tail(self._log_path, TAIL_LINES, since=self._log_start)
        return f"\n  {self._log_path}:\n" + "\n".join(f"  | {readable(line)}" for line in lines) if lines else ""


def read_failure(revision_path: Path) -> Failure | None:
    try:
        return msgspec.json.decode(failure_path(revision_path).read_bytes(), type=Failure)
    except (OSError, ValueError, msgspec.MsgspecError):
        return None


__all__ = [
    "STAND_BY",
    "Awaited",
    "Failure",
    "Launch",
    "Limits",
    "Planned",
    "Reporter",
    "failure_path",
    "how_to_start",
    "plan_recipe",
    "read_failure",
    "recipe_of",
    "service_command",
]
