"""Bring a revision up in the place of what runs, and bring that back if it fails. Knows the order of steps, no plan.

    before          the revision's files are written, the state names it as successor
    standing by     its process runs beside the predecessor, which serves on
    taking over     it was told to: it ends the predecessor, takes its port and loads
    accepted        it answered a request; the state names it

An exception or a signal before "taking over" leaves the predecessor as it runs. One after it starts a process that ends
the new one and serves the predecessor's revision again. If this command is killed, the new process does the same.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from anychip.deploy import launch as launching
from anychip.deploy import leash, supervisor
from anychip.deploy.interrupts import Interrupted, undisturbed
from anychip.deploy.launch import Awaited, Launch, Limits, Planned, Reporter
from anychip.deploy.leash import Relaunch, TakeOver
from anychip.deploy.lock import CANCEL
from anychip.deploy.network import client_of, url_of
from anychip.deploy.process_id import ProcessId
from anychip.deploy.state import Revision, ServiceState, Store
from anychip.deploy.supervisor import Started
from anychip.recipe import Recipe
from anychip_sdk.errors import AnychipError, NotReady, PreconditionFailed


class Predecessor(NamedTuple):
    """What runs before a transition.

    Attributes:
        state: of the service.
        processes: all of it, the serving one last.
        revision: what it was started from.
        environ: its variables; None: they are not known.
    """

    state: ServiceState
    processes: Sequence[ProcessId]
    revision: Revision
    environ: Mapping[str, str] | None


@dataclass(frozen=True)
class Settings:
    """What a transition is made with."""

    store: Store
    reporter: Reporter
    launch: Launch
    timeout_s: float
    foreground: bool


class Transition:
    """To one revision, with the service's lock held.

    Args:
        revision: what is to run; its files are written.
        planned: its plan.
        before: what runs now; None: nothing does.
    """

    def __init__(self, settings: Settings, revision: Revision, planned: Planned, before: Predecessor | None) -> None:
        self._settings = settings
        self._store = settings.store
        self._revision = revision
        self._before = before
        self._recipe = launching.recipe_of(revision)
        self._files = settings.store.files(revision.name)
        self._restore: Relaunch | None = None  # how the predecessor is started again, once its end has begun
        self._new = ServiceState(
            name=revision.name,
            revision=revision.revision,
            status="loading",
            process=None,
            host=self._recipe.server.host,
            port=self._recipe.server.port,
            digest=revision.digest,
            recipe_path=revision.recipe_path,
            model=self._recipe.server.served_name or self._recipe.model.source,
            backend=planned.backend,
            emulated=planned.emulated,
            started_at=time.time(),
        )

    def run(self) -> tuple[ServiceState, Started]:
        """The service's new state, and its process, which is on this command's leash in the foreground only.

        Raises:
            NotReady: the new revision did not come up.
        """
        number, name = self._revision.revision, self._revision.name
        if self._before is not None:
            self._store.write(msgspec.structs.replace(self._before.state, successor=number))
        else:
            self._say(f"starting revision {number} of '{name}'")
        path = self._files.revision(number)
        awaited = started = None
        try:
            started = self._start()
            awaited = Awaited(started, path, self._files.log, self._settings.launch)
            if self._before is not None:
                self._take_over(started, awaited, self._before)
            return self._accept(started, awaited), started
        except BaseException as error:
            outcome = self._undo(error, started)
            is_untouched = isinstance(error, PreconditionFailed) and self._restore is None
            if not isinstance(error, Exception) or is_untouched or not outcome:
                raise
            message = error.message if isinstance(error, AnychipError) else f"{type(error).__name__}: {error}"
            hint = error.hint if isinstance(error, AnychipError) else None
            raise NotReady(f"revision {number}: {message}\n{outcome}", hint=hint) from error

    def _start(self) -> Started:
        how = self._how_to_start(self._revision, stand_by=self._before is not None)
        try:
            launching.failure_path(self._files.revision(self._revision.revision)).unlink(missing_ok=True)
            return how.start()
        except OSError as error:
            message = f"the service's process can't be started: {error}"
            raise PreconditionFailed(message) from error

    def _how_to_start(
        self, revision: Revision, *, stand_by: bool, environ: Mapping[str, str] | None = None
    ) -> Relaunch:
        path, log = self._files.revision(revision.revision), self._files.log
        return launching.how_to_start(revision, path, log, self._settings.launch, stand_by=stand_by, environ=environ)

    def _take_over(self, started: Started, awaited: Awaited, before: Predecessor) -> None:
        """The point of no return: what can fail without stopping the predecessor has been done."""
        awaited.standing_by(Limits.within(self._settings.timeout_s))
        restore = self._how_to_start(before.revision, stand_by=True, environ=before.environ)
        self._say(f"stopping revision {before.state.revision} of '{self._revision.name}'")
        self._restore = restore  # from here on it is needed
        started.say(TakeOver(before.processes, restore).line())
        awaited.taken_over(before.processes)
        self._say(f"starting revision {self._revision.revision} of '{self._revision.name}'")

    def _accept(self, started: Started, awaited: Awaited) -> ServiceState:
        state = self._store.write(msgspec.structs.replace(self._new, process=started.id))
        model = self._ready(awaited, self._recipe, Limits.within(self._settings.timeout_s))
        state = self._store.write(msgspec.structs.replace(state, status="running", model=model))
        started.say(leash.KEEP if self._settings.foreground else leash.DETACH)
        if not self._settings.foreground:
            started.let_go()
        return state

    def _ready(self, awaited: Awaited, recipe: Recipe, limits: Limits) -> str:
        with client_of(recipe.server) as client:
            return awaited.ready(client, limits, self._settings.reporter)

    def _undo(self, error: BaseException, started: Started | None) -> str:
        """Leave things as they were, whatever else goes wrong; returns what to tell of the predecessor."""
        with undisturbed():
            with contextlib.suppress(OSError):  # the terminal is gone
                self._settings.reporter.done()
            is_cancelled = isinstance(error, Interrupted) and error.number == CANCEL
            before = self._before
            if before is None or self._restore is None or is_cancelled:
                if started is not None:
                    started.end()
                return self._leave(is_cancelled)
            new = [] if started is None else [started.id]
            revived = leash.bring_back(self._restore, [*new, *before.processes])
            state = msgspec.structs.replace(before.state, status="loading", process=revived.id, started_at=time.time())
            self._note(state)
            if started is not None:
                started.end()
            self._say(f"bringing revision {before.state.revision} of '{self._revision.name}' back")
        if isinstance(error, Exception):
            return self._await_revived(revived, state, before)
        revived.let_go()
        return ""

    def _leave(self, is_cancelled: bool) -> str:
        """Note what is left where nothing has to be brought back."""
        before = self._before
        if before is None:
            self._note(msgspec.structs.replace(self._new, status="stopped" if is_cancelled else "failed"))
            return ""
        if self._restore is not None and is_cancelled:  # the other command ends the service in any case
            for one in before.processes:
                supervisor.stop(one)
            self._note(msgspec.structs.replace(before.state, status="stopped", process=None))
            return ""
        self._note(before.state)
        return f"revision {before.state.revision} serves on {url_of(launching.recipe_of(before.revision).server)}"

    def _await_revived(self, revived: Started, state: ServiceState, before: Predecessor) -> str:
        """Wait until the predecessor serves again; it loads on if that takes too long."""
        number, path = state.revision, self._files.revision(state.revision)
        awaited = Awaited(revived, path, self._files.log, self._settings.launch)
        try:
            recipe = launching.recipe_of(before.revision)
            awaited.taken_over(before.processes)
            self._ready(awaited, recipe, Limits.within(self._settings.timeout_s))
        except AnychipError as error:
            if revived.exit_code() is None:
                return f"revision {number} was started again, but is not ready: {error.message}"
            self._note(msgspec.structs.replace(state, status="failed", process=None))
            return f"revision {number} could not be brought back either: {error.message}"
        finally:
            revived.let_go()
        self._note(msgspec.structs.replace(state, status="running", model=before.state.model))
        return f"revision {number} was brought back and serves {url_of(launching.recipe_of(before.revision).server)}"

    def _note(self, state: ServiceState) -> None:
        """Write the state if it can be; where it can't, the processes tell."""
        try:
            self._store.write(state)
        except AnychipError as error:
            self._say(f"warning: {error.message}")

    def _say(self, text: str) -> None:
        with contextlib.suppress(OSError):  # the terminal is gone
            self._settings.reporter.say(text)


__all__ = ["Predecessor", "Settings", "Transition"]
