"""What this machine knows of its services: one folder each, with state, revisions, log and lock. Knows no process.

    $ANYCHIP_HOME/services/NAME/state.json         what runs now; replaced atomically, with a serial
                                lock               held by the command that changes the service
                                service.log        the service's output; service.log.1 is the one before
                                revisions/N.json   what was applied, with the resolved recipe

Folders are 0700, files 0600. Nothing secret is in them: recipes hold references to secrets only.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal, TypeVar

import msgspec

from anychip_sdk.errors import IntegrityFailed, StateLocked

SCHEMA_VERSION = 1
Status = Literal["loading", "running", "stopped", "failed"]
T = TypeVar("T")


class ProcessId(msgspec.Struct, frozen=True):
    """A process for good: the start time tells a reused pid from the process that was meant."""

    pid: int
    started_at: float  #: seconds since the epoch, as the operating system tells it


class ServiceState(msgspec.Struct, frozen=True, kw_only=True):
    """What one service is, as far as the last command knew."""

    name: str
    revision: int
    status: Status
    process: ProcessId | None  #: None: nothing was started, or it was stopped
    host: str
    port: int
    digest: str  #: of the recipe
    recipe_path: str
    model: str
    backend: str
    started_at: float
    emulated: bool = False  #: on the backend's emulator
    serial: int = 0
    schema_version: int = SCHEMA_VERSION


class Revision(msgspec.Struct, frozen=True, kw_only=True):
    """What was applied, enough to start it again."""

    name: str
    revision: int
    digest: str
    recipe_path: str
    working_folder: str  #: where the command ran
    recipe: dict[str, object]  #: resolved, with the port that was chosen
    environment: dict[str, str] = {}  #: variables that the backend names for the worker, where the user set none
    schema_version: int = SCHEMA_VERSION


class Holder(msgspec.Struct, frozen=True):
    """Who holds a lock."""

    pid: int
    host: str
    command: str


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
        """Every service that was ever applied and not purged."""
        return tuple(sorted(path.parent.name for path in self.home.glob("services/*/state.json")))

    def read(self, name: str) -> ServiceState | None:
        """The service's state; None where it was never applied.

        Raises:
            IntegrityFailed: the file is damaged, or a newer anychip wrote it.
        """
        path = self.files(name).state
        return _decode(path, ServiceState) if path.exists() else None

    def write(self, state: ServiceState) -> ServiceState:
        """Replace the service's state; returns it with the next serial."""
        before = self.read(state.name)
        state = msgspec.structs.replace(state, serial=1 + (before.serial if before else 0))
        _write(self.files(state.name).state, state)
        return state

    def add_revision(self, revision: Revision) -> Path:
        path = self.files(revision.name).revision(revision.revision)
        _write(path, revision)
        return path

    def next_revision(self, name: str) -> int:
        numbers = [int(path.stem) for path in self.files(name).revisions.glob("*.json") if path.stem.isdigit()]
        return 1 + max(numbers, default=0)

    def purge(self, name: str) -> None:
        """Forget the service: its state, revisions and logs."""
        shutil.rmtree(self.files(name).folder, ignore_errors=True)

    @contextlib.contextmanager
    def lock(self, name: str) -> Iterator[None]:
        """Hold the service for one command; the operating system gives the lock back if the holder dies.

        Raises:
            StateLocked: another command holds it, with its pid, host and command.
        """
        path = self.files(name).lock
        _make_folder(path.parent)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise _locked(name, path) from None
            holder = Holder(os.getpid(), os.uname().nodename, " ".join(sys.argv))
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, msgspec.json.encode(holder), 0)
            yield
            os.ftruncate(descriptor, 0)
        finally:
            os.close(descriptor)


def read_revision(path: Path) -> Revision:
    """Raises IntegrityFailed where the file is damaged or of a newer anychip."""
    return _decode(path, Revision)


def write_recipe(path: Path, resolved: Mapping[str, object]) -> Path:
    """Write a resolved recipe so that loading it gives just that: what looks like a variable in it is text."""
    _write(path, _escaped(resolved))
    return path


def _escaped(value: object) -> object:
    if isinstance(value, str):
        return value.replace("$", "$$")
    if isinstance(value, Mapping):
        return {key: _escaped(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_escaped(item) for item in value]
    return value


def _decode(path: Path, kind: type[T]) -> T:
    try:
        content = path.read_bytes()
        version = json.loads(content)["schema_version"]
        if version != SCHEMA_VERSION:
            message = f"{path} has schema version {version}, this anychip knows {SCHEMA_VERSION}"
            raise IntegrityFailed(message, hint="use the anychip that wrote it, or remove the file")
        return msgspec.json.decode(content, type=kind)
    except (ValueError, KeyError, TypeError, msgspec.ValidationError) as error:
        message = f"{path} is damaged: {error}"
        raise IntegrityFailed(
            message, hint="remove the file; a service that still runs must then be ended by hand"
        ) from error


def _write(path: Path, value: object) -> None:
    """Write all or nothing: a crash leaves the old file."""
    _make_folder(path.parent)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(value), indent=2))
        file.flush()
        os.fsync(file.fileno())
    os.replace(draft, path)


def _make_folder(folder: Path) -> None:
    """The folder and what is missing above it, for the user alone; makedirs gives `mode` to the last one only."""
    if not folder.exists():
        if not folder.parent.exists():
            _make_folder(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)


def _locked(name: str, path: Path) -> StateLocked:
    try:
        holder = msgspec.json.decode(path.read_bytes(), type=Holder)
        who = f"process {holder.pid} on {holder.host} ({holder.command})"
    except msgspec.DecodeError:  # the other command is just writing it
        who = "another command"
    return StateLocked(f"service '{name}' is being changed by {who}", hint="wait for it, or end it")


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
    "write_recipe",
]
