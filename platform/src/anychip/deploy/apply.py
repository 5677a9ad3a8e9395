"""Make a recipe the running service of its name. Knows the order of steps and what to undo; knows no engine."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import msgspec

from anychip.deploy import launch as launching
from anychip.deploy import supervisor
from anychip.deploy.launch import Awaited, Launch, Limits, Planned, Reporter
from anychip.deploy.network import client_of, require, takes_keys, url_of
from anychip.deploy.ports import require_free
from anychip.deploy.secrets import shell_reference
from anychip.deploy.services import service_on
from anychip.deploy.state import Revision, ServiceState, Store, read_revision
from anychip.deploy.supervisor import Started
from anychip.recipe import LoadedRecipe, Recipe, load, recipe_digest
from anychip_sdk.errors import AnychipError, NotReady, PortTaken

Action = Literal["unchanged", "started", "replaced"]
QUESTION = "What is the capital of France? Answer in one sentence."


@dataclass(frozen=True)
class ApplyOptions:
    sets: Sequence[str] = ()
    timeout_s: float = 600.0
    foreground: bool = False  #: keep the process on this command's leash


@dataclass(frozen=True)
class Applied:
    """The outcome of an apply.

    Attributes:
        state: of the service now.
        action: what was done.
        url: where it answers.
        curl: a command line to try it.
        log_path: where its output goes.
        started: the process on its leash, in the foreground only.
    """

    state: ServiceState
    action: Action
    url: str
    curl: str
    log_path: Path
    started: Started | None = field(default=None, compare=False)


def apply(
    path: str | os.PathLike[str],
    options: ApplyOptions,
    *,
    store: Store,
    reporter: Reporter,
    launch: Launch | None = None,
) -> Applied:
    """Bring the recipe's service up, or leave it where it runs unchanged.

    Everything that can be wrong without starting anything is told first: the recipe, the port, then the plan. A
    revision that fails is taken down again; what ran before it is brought back.

    Raises:
        RecipeInvalid, PortTaken, PreconditionFailed: nothing was touched.
        NotReady: the new revision did not come up.
        StateLocked: another command changes the same service.
    """
    loaded = load(path, sets=options.sets)
    with store.lock(loaded.recipe.name):
        return _Apply(loaded, options, store, reporter, launch or Launch()).run()


class _Apply:
    """One run of `apply`, with the lock held."""

    def __init__(
        self, loaded: LoadedRecipe, options: ApplyOptions, store: Store, reporter: Reporter, launch: Launch
    ) -> None:
        self._loaded = loaded
        self._options = options
        self._store = store
        self._reporter = reporter
        self._launch = launch
        self._name = loaded.recipe.name
        self._digest = recipe_digest(loaded)
        self._files = store.files(self._name)

    def run(self) -> Applied:
        before = self._store.read(self._name)
        runs = before is not None and supervisor.is_alive(before.process)
        if before is not None and runs and self._is_unchanged(before):
            return self._applied(before, self._loaded.recipe, "unchanged")
        port = self._port(before if runs else None)
        require(self._loaded.recipe.server)
        planned = self._launch.plan(self._loaded)
        self._reporter.say(planned.summary)
        revision = self._revision(port, planned.environment)
        if before is None or not runs:
            return self._bring_up(revision, planned, "started")
        self._reporter.say(f"stopping revision {before.revision} of '{self._name}'")
        supervisor.stop(before.process)
        try:
            return self._bring_up(revision, planned, "replaced")
        except KeyboardInterrupt:
            self._bring_back(before, Limits.within(0))
            raise
        except AnychipError as error:
            outcome = self._bring_back(before, Limits.within(self._options.timeout_s))
            raise NotReady(f"revision {revision.revision}: {error.message}\n{outcome}", hint=error.hint) from error

    def _is_unchanged(self, before: ServiceState) -> bool:
        if before.digest != self._digest:
            return False
        server = self._loaded.recipe.server.model_copy(update={"port": before.port})
        with client_of(server, with_key=False) as client:
            health = client.health()
            if health.is_ready and takes_keys(client, server):
                return True
        what = "is " + health.state if not health.is_ready else "goes by another API key"
        self._reporter.say(f"'{self._name}' runs this recipe already, but {what}: starting it anew")
        return False

    def _port(self, running: ServiceState | None) -> int:
        """The port of the new revision; the one that its predecessor holds is as good as free."""
        server = self._loaded.recipe.server
        if running is not None and (server.host, server.port) == (running.host, running.port):
            return server.port
        try:
            return require_free(server.host, server.port)
        except PortTaken as error:
            owner = service_on(self._store, server.port)
            if owner is None:
                raise
            message = f"port {server.port} on {server.host} is taken by service '{owner}'"
            raise PortTaken(message, hint=f"platform down {owner}, or choose another: --set server.port=...") from error

    def _revision(self, port: int, environment: Mapping[str, str]) -> Revision:
        resolved = dict(self._loaded.resolved)
        server = resolved["server"]
        assert isinstance(server, dict)
        resolved["server"] = {**server, "port": port}
        return Revision(
            name=self._name,
            revision=self._store.next_revision(self._name),
            digest=self._digest,
            recipe_path=str(Path(self._loaded.path).absolute()),
            working_folder=os.getcwd(),
            recipe=resolved,
            environment=dict(environment),
        )

    def _bring_up(self, revision: Revision, planned: Planned, action: Action) -> Applied:
        self._store.add_revision(revision)
        self._reporter.say(f"starting revision {revision.revision} of '{self._name}'")
        started, awaited = self._start(revision)
        recipe = launching.recipe_of(revision)
        state = self._record(revision, recipe, started, planned)
        try:
            model = self._await(awaited, recipe, Limits.within(self._options.timeout_s))
        except BaseException:  # Ctrl-C as well: nothing that isn't ready stays
            self._reporter.done()
            started.end()
            self._store.write(msgspec.structs.replace(state, status="failed", process=None))
            raise
        state = self._store.write(msgspec.structs.replace(state, status="running", model=model))
        if not self._options.foreground:
            started.detach()
        return self._applied(state, recipe, action, started if self._options.foreground else None)

    def _start(self, revision: Revision) -> tuple[Started, Awaited]:
        path = self._files.revision(revision.revision)
        started = launching.start(revision, path, self._files.log, self._launch)
        return started, Awaited(started, path, self._files.log, self._launch)

    def _await(self, awaited: Awaited, recipe: Recipe, limits: Limits) -> str:
        with client_of(recipe.server) as client:
            return awaited.ready(client, limits, self._reporter)

    def _record(
        self, revision: Revision, recipe: Recipe, started: Started, runs_on: Planned | ServiceState
    ) -> ServiceState:
        return self._store.write(
            ServiceState(
                name=self._name,
                revision=revision.revision,
                status="loading",
                process=started.id,
                host=recipe.server.host,
                port=recipe.server.port,
                digest=revision.digest,
                recipe_path=revision.recipe_path,
                model=recipe.server.served_name or recipe.model.source,
                backend=runs_on.backend,
                emulated=runs_on.emulated,
                started_at=time.time(),
            )
        )

    def _bring_back(self, before: ServiceState, limits: Limits) -> str:
        """Start what ran before; with no time left it is left to load on its own. Returns what to tell."""
        self._reporter.say(f"bringing revision {before.revision} of '{self._name}' back")
        revision = read_revision(self._files.revision(before.revision))
        started, awaited = self._start(revision)
        recipe = launching.recipe_of(revision)
        state = self._record(revision, recipe, started, before)
        if limits.timeout_s > 0:
            try:
                self._await(awaited, recipe, limits)
            except AnychipError as error:
                started.end()
                self._store.write(msgspec.structs.replace(state, status="failed", process=None))
                return f"revision {before.revision} could not be brought back either: {error.message}"
            state = msgspec.structs.replace(state, status="running", model=before.model)
        started.detach()
        self._store.write(state)
        return f"revision {before.revision} was brought back and serves {url_of(recipe.server)}"

    def _applied(self, state: ServiceState, recipe: Recipe, action: Action, started: Started | None = None) -> Applied:
        url = url_of(recipe.server.model_copy(update={"port": state.port}))
        return Applied(state, action, url, curl_line(url, state.model, recipe), self._files.log, started)


def curl_line(url: str, model: str, recipe: Recipe) -> str:
    """A command line to paste."""
    body = {"model": model, "messages": [{"role": "user", "content": QUESTION}], "temperature": 0}
    key = recipe.server.api_key
    authorization = "" if key is None else f' -H "Authorization: Bearer {shell_reference(key)}"'
    text = msgspec.json.encode(body).decode().replace("'", "'\\''")
    trust = "" if recipe.server.tls is None else f" --cacert {shlex.quote(recipe.server.tls.certificate)}"
    return f"curl{trust} {url}/v1/chat/completions -H 'Content-Type: application/json'{authorization} -d '{text}'"


__all__ = ["Applied", "ApplyOptions", "apply", "curl_line"]
