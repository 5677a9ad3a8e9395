"""Make a recipe the running service of its name. Knows the order of steps and what to undo; knows no engine."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import msgspec

from anychip.deploy.known import Known, look
from anychip.deploy.launch import Launch, Reporter, recipe_of
from anychip.deploy.network import client_of, require, takes_keys, url_of
from anychip.deploy.ports import require_free
from anychip.deploy.secrets import shell_reference
from anychip.deploy.services import service_on
from anychip.deploy.state import Revision, ServiceState, Store, read_revision
from anychip.deploy.storage import TooNew
from anychip.deploy.supervisor import Started, environment_of
from anychip.deploy.transition import Predecessor, Settings, Transition
from anychip.recipe import LoadedRecipe, Recipe, load, recipe_digest
from anychip_sdk.errors import PortTaken

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

    Everything that can be wrong without starting anything is told first: the recipe, the port, the plan, the files of
    the new revision. A revision that fails is taken down again; what ran before it is brought back, see
    `anychip.deploy.transition`.

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
        known = self._look()
        if known.state is not None and known.is_running and self._is_unchanged(known.state):
            return self._applied(known.state, self._loaded.recipe, "unchanged")
        port = self._port(known)
        require(self._loaded.recipe.server)
        planned = self._launch.plan(self._loaded)
        self._reporter.say(planned.summary)
        revision = self._revision(port, planned.environment)
        self._store.add_revision(revision)
        before = self._predecessor(known)
        settings = Settings(
            self._store, self._reporter, self._launch, self._options.timeout_s, self._options.foreground
        )
        state, started = Transition(settings, revision, planned, before).run()
        action: Action = "started" if before is None else "replaced"
        return self._applied(state, recipe_of(revision), action, started if self._options.foreground else None)

    def _look(self) -> Known:
        """What there is; a state that is damaged is put aside, as the processes tell what runs."""
        known = look(self._store, self._name)
        if isinstance(known.damage, TooNew):
            raise known.damage
        if known.damage is not None:
            aside = self._store.set_aside(self._name)
            self._reporter.say(f"warning: {known.damage.message}; it was moved to {aside.name}")
        if known.note:
            self._reporter.say(f"'{self._name}': {known.note}")
        return known

    def _is_unchanged(self, running: ServiceState) -> bool:
        if running.digest != self._digest:
            return False
        server = self._loaded.recipe.server.model_copy(update={"port": running.port})
        with client_of(server, with_key=False) as client:
            health = client.health()
            is_well = health.is_ready and takes_keys(client, server)
        if not is_well:
            what = "goes by another API key" if health.is_ready else f"is {health.state}"
            self._reporter.say(f"'{self._name}' runs this recipe already, but {what}: starting it anew")
            return False
        if running.status != "running" or running.successor:
            self._store.write(msgspec.structs.replace(running, status="running", successor=0))
        return True

    def _port(self, known: Known) -> int:
        """The port of the new revision; the one that its predecessor holds is as good as free."""
        server = self._loaded.recipe.server
        try:
            return require_free(server.host, server.port, except_for=[one.id.pid for one in known.running])
        except PortTaken as error:
            owner = service_on(self._store, server.port)
            if owner is None or owner == self._name:
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

    def _predecessor(self, known: Known) -> Predecessor | None:
        """What is brought back if the new revision fails, as it was started: from its files, with its environment."""
        if known.state is None or known.state.process is None or not known.is_running:
            return None
        serving = known.state.process
        others = [one.id for one in known.running if one.id != serving]
        revision = read_revision(self._files.revision(known.state.revision))
        return Predecessor(known.state, [*others, serving], revision, environment_of(serving))

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
