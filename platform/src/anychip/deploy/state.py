"""What this machine knows of its services: one folder each, with state, revisions, log and lock. Knows no process.

    $ANYCHIP_HOME/services/NAME/state.json         what runs now; replaced atomically, with a serial
                                lock               held by the command that changes the service
                                service.log        the service's output; service.log.1 is the one before
                                revisions/N.json   what was applied, with the resolved recipe

Folders are 0700, files 0600. Nothing secret is in them: recipes hold references to secrets only.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from anychip.deploy import lock, storage
from anychip.deploy.lock import Holder
from anychip.deploy.process_id import ProcessId
from anychip.deploy.storage import SCHEMA_VERSION
from anychip_sdk.errors import IntegrityFailed, PreconditionFailed

Status = Literal["loading", "running", "stopped", "failed"]
Number = Annotated[int, msgspec.Meta(ge=0)]


class ServiceState(msgspec.Struct, frozen=True, kw_only=True):
    """What one service is, as far as the last command knew."""

    name: str
    revision: Number
    status: Status
    process: ProcessId | None  #: None: nothing was started, or it was stopped
    host: str
    port: Annotated[int, msgspec.Meta(ge=0, le=65535)]
    digest: str  #: of the recipe
    recipe_path: str
    model: str
    backend: str
    started_at: float
    emulated: bool = False  #: on the backend's emulator
    successor: Number = 0  #: the revision that is about to replace it; 0: none
    serial: int = 0
    schema_version: int = SCHEMA_VERSION


class Revision(msgspec.Struct, frozen=True, kw_only=True):
    """What was applied, enough to start it again."""

    name: str
    revision: Number
    digest: str
    recipe_path: str
    working_folder: str  #: where the command ran
    recipe: dict[str, object]  #: resolved, with the port that was chosen
    environment: dict[str, str] = {}  #: variables that the backend names for the worker, where the user set none
    schema_version: int = SCHEMA_VERSION


class ServiceFiles:
    """Where the files of one service are."""

    def __init__(self, home: Path, name: str) -> None:
        self.folder = home / "services" / name
        self.state = self.folder / "state.json"
        self.lock = self.folder / "lock"
        self.log = self.folder / "service.log"
        self.revisions = self.folder / "revisions"

    def revision(self, number: int) -> Path:
        return self.revisions / f"{number}.json"


class Store:
    """The services of one home."""

    def __init__(self, home: Path) -> None:
        self.home = home

    def files(self, name: str) -> ServiceFiles:
        return ServiceFiles(self.home, name)

    def names(self) -> tuple[str, ...]:
        """Every service that was ever applied and not purged.

        Raises:
            PreconditionFailed: the folder can't be read, or a file is in its place.
        """
        return tuple(name for name in self._folders() if os.path.lexists(self.files(name).state))

    def names_held(self) -> tuple[str, ...]:
        """Every service that a living command of this machine changes.

        Raises:
            PreconditionFailed: the folder can't be read, or a file is in its place.
        """
        return tuple(name for name in self._folders() if self.holder(name) is not None)

    def read(self, name: str) -> ServiceState | None:
        """The service's state; None where it was never applied.

        Raises:
            IntegrityFailed: the file is damaged, or a newer anychip wrote it.
        """
        path = self.files(name).state
        if not os.path.lexists(path):
            return None
        state = storage.read(path, ServiceState)
        if state.name != name:
            raise IntegrityFailed(f"{path} is damaged: it is of service '{state.name}'")
        return state

    def _folders(self) -> Sequence[str]:
        folder = self.home / "services"
        try:
            return sorted(os.listdir(folder))
        except FileNotFoundError:
            return ()
        except OSError as error:
            raise storage.unusable(folder, "can't be read", error) from error

    def write(self, state: ServiceState) -> ServiceState:
        """Replace the service's state; returns it with the next serial."""
        try:
            before = self.read(state.name)
        except IntegrityFailed:
            before = None
        state = msgspec.structs.replace(state, serial=1 + (before.serial if before else 0))
        storage.write(self.files(state.name).state, state)
        return state

    def set_aside(self, name: str) -> Path:
        """Move a damaged state out of the way; returns where it is now."""
        path = self.files(name).state
        numbers = (path.with_name(f"{path.name}.damaged{number or ''}") for number in range(1000))
        aside = next(one for one in numbers if not os.path.lexists(one))
        try:
            os.rename(path, aside)
        except OSError as error:
            raise storage.unusable(path, "can't be moved", error) from error
        return aside

    def add_revision(self, revision: Revision) -> Path:
        """Write what is applied, and the recipe as the worker reads it."""
        path = self.files(revision.name).revision(revision.revision)
        write_recipe(recipe_path(path), revision.recipe)
        storage.write(path, revision)
        return path

    def next_revision(self, name: str) -> int:
        numbers = [int(path.stem) for path in self.files(name).revisions.glob("*.json") if path.stem.isdigit()]
        return 1 + max(numbers, default=0)

    def purge(self, name: str) -> None:
        """Forget the service: its state, revisions and logs.

        Raises:
            PreconditionFailed: something of it stays.
        """
        folder = self.files(name).folder
        try:
            shutil.rmtree(folder)
        except FileNotFoundError:
            return
        except OSError as error:
            raise PreconditionFailed(f"{folder} can't be removed: {error.strerror or error}") from error

    def lock(self, name: str) -> AbstractContextManager[None]:
        """Hold the service for one command; the operating system gives the lock back if the holder dies.

        Raises:
            StateLocked: another command holds it, with its pid, host and command.
        """
        return lock.hold(self.files(name).lock, name)

    def holder(self, name: str) -> Holder | None:
        """The living command of this machine that changes the service; None where none does, or it isn't known."""
        found = lock.holder(self.files(name).lock)
        return found if found is not None and found.is_here else None


def read_revision(path: Path) -> Revision:
    """Raises IntegrityFailed where the file is damaged or of a newer anychip."""
    return storage.read(path, Revision)


def recipe_path(revision_path: Path) -> Path:
    """Where the resolved recipe of a revision is, as the worker reads it."""
    return revision_path.with_suffix(".recipe.json")


def write_recipe(path: Path, resolved: Mapping[str, object]) -> Path:
    """Write a resolved recipe so that loading it gives just that: what looks like a variable in it is text."""
    storage.write(path, _escaped(resolved))
    return path


def _escaped(value: object) -> object:
    if isinstance(value, str):
        return value.replace("$", "$$")
    if isinstance(value, Mapping):
        return {key: _escaped(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_escaped(item) for item in value]
    return value


__all__ = [
    "SCHEMA_VERSION",
    "Holder",
    "ProcessId",
    "Revision",
    "ServiceFiles",
    "ServiceState",
    "Status",
    "Store",
    "read_revision",
    "recipe_path",
    "write_recipe",
]
