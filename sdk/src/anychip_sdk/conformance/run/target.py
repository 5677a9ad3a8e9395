"""Find what is tested: an installed backend, a module's object, a shared object. Runs nothing."""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from anychip_sdk.backend import Backend, load_backend
from anychip_sdk.conformance.claims import Claims
from anychip_sdk.conformance.manifest import FILE, load_claims, read_claims
from anychip_sdk.errors import BackendBroken, BackendNotFound, PreconditionFailed, UsageError
from anychip_sdk.installed import declared, import_plugin, package_digest


@dataclass(frozen=True)
class Loader:
    """Loads an installed backend; can be pickled."""

    name: str
    module: str  #: package.module or package.module:attribute
    distribution: str
    version: str
    emulate: bool = False

    def __call__(self) -> Backend:
        try:
            plugin = import_plugin(self.name, self.module)
        except (Exception, SystemExit) as error:
            message = f"backend '{self.name}' ({self.distribution} {self.version}): importing {self.module}: {error!r}"
            raise BackendBroken(message) from error
        return load_backend(
            self.name, plugin, distribution=self.distribution, version=self.version, emulate=self.emulate
        )


@dataclass(frozen=True)
class LibraryLoader:
    """Loads a shared object; can be pickled."""

    path: str
    emulate: bool = False

    def __call__(self) -> Backend:
        from anychip_sdk.native.loader import load_native_backend

        return load_native_backend(self.path, emulate=self.emulate)


def without_emulator(load: Callable[[], Backend]) -> Callable[[], Backend]:
    """The loader of the backend itself, where one loads its emulator."""
    return replace(load, emulate=False) if isinstance(load, (Loader, LibraryLoader)) else load


@dataclass(frozen=True)
class Target:
    """A backend under test.

    Attributes:
        name: as the command line said it: what a replay is given.
        load: loads it from scratch; picklable, since each group of checks has a process of its own.
        claims: from its manifest.
        digest: of every file that the backend consists of.
    """

    name: str
    load: Callable[[], Backend]
    claims: Claims
    distribution: str
    version: str
    digest: str


def find_target(name: str, claims: Path | None = None, *, emulate: bool = False) -> Target:
    """The backend of that name.

    Args:
        name: an installed backend's, `package.module:attribute` of a plugin object, or the path of a shared object.
        claims: its manifest; None: the one in its package, or beside the shared object.
        emulate: load its emulator.

    Raises:
        PreconditionFailed: the families of not found, broken, without a manifest.
    """
    if name.endswith((".so", ".dylib", ".dll")):
        return _library(Path(name), claims, emulate=emulate)
    entry = _installed(name) or (_object(name) if ":" in name else None)
    if entry is None:
        names = sorted({one.name for one, _ in declared()})
        near = difflib.get_close_matches(name, names, n=1)
        message = f"no backend '{name}' is installed; installed: {', '.join(names) or 'none'}."
        message += f" Did you mean '{near[0]}'?" if near else ""
        raise BackendNotFound(message, hint="install its package, or name module:attribute or the path of a .so")
    module = entry.module.partition(":")[0]
    found = read_claims(claims, entry.name) if claims is not None else load_claims(module, entry.name)
    load = replace(entry, emulate=emulate)
    return Target(name, load, found, entry.distribution, entry.version, package_digest(module, entry.distribution))


def _installed(name: str) -> Loader | None:
    found = [(entry, one) for entry, one in declared() if entry.name == name]
    if not found:
        return None
    titles = sorted({str(one.metadata["Name"]) for _, one in found})
    if len(titles) > 1:
        message = f"backend '{name}' is offered by several installed distributions: {', '.join(titles)}"
        raise BackendBroken(message, hint="uninstall all but one of them")
    entry, one = found[0]
    return Loader(name, entry.value, titles[0], one.version)


def _object(name: str) -> Loader:
    """A plugin object that no distribution declares; it says its own name."""
    module, _, attribute = name.partition(":")
    try:
        plugin = getattr(import_module(module), attribute)
        info = plugin.anychip_backend()
    except Exception as error:
        message = f"{name}: {type(error).__name__}: {error}"
        raise UsageError(message, hint="expected package.module:attribute of an object with the hooks") from error
    top = module.partition(".")[0]
    try:
        version = distribution(top.replace("_", "-")).version
    except PackageNotFoundError:
        version = "0"
    return Loader(info.name, name, top, version)


def _library(path: Path, claims: Path | None, *, emulate: bool) -> Target:
    if not path.is_file():
        message = f"there is no file {path}"
        raise BackendNotFound(message)
    manifest = claims or path.parent / FILE
    if not manifest.is_file():
        message = f"no {FILE} lies beside {path}, so it claims nothing that could be tested"
        raise PreconditionFailed(message, hint="write one, or name it with --claims")
    load = LibraryLoader(str(path.absolute()), emulate)
    backend = load()
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    found = read_claims(manifest, backend.name)
    return Target(str(path), load, found, backend.distribution, backend.version, digest)


__all__ = [
    "LibraryLoader",
    "Loader",
    "Target",
    "find_target",
    "without_emulator",
]
