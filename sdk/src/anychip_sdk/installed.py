"""The installed backends' entry points and files. The SDK's only file that touches entry points; loads no backend."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from importlib.metadata import Distribution, EntryPoint, PackageNotFoundError, distribution, distributions, entry_points
from importlib.util import find_spec
from pathlib import Path

from anychip_sdk.hooks import ENTRY_POINT_GROUP

CHECKS_GROUP = "anychip.conformance"
_UNHASHED = ("__pycache__", ".dist-info", ".egg-info")
_OWN = "certificate.json"  #: lies in the package itself and can't hold its own digest


def import_plugin(name: str, module: str) -> object:
    """The plugin object at `package.module` or `package.module:attribute`; raises what importing it raises."""
    return EntryPoint(name, module, ENTRY_POINT_GROUP).load()


def declared() -> Iterator[tuple[EntryPoint, Distribution]]:
    """Every installed backend's entry point, with the distribution that declares it."""
    for one in distributions():
        for entry in one.entry_points:
            if entry.group == ENTRY_POINT_GROUP:
                yield entry, one


def installed_modules(title: str) -> tuple[str, ...]:
    """The modules that a distribution's backends are in."""
    try:
        entries = distribution(title).entry_points
    except PackageNotFoundError:
        return ()
    return tuple(entry.value.partition(":")[0] for entry in entries if entry.group == ENTRY_POINT_GROUP)


def check_modules() -> tuple[str, ...]:
    """The modules with further checks that installed packages offer, in the order of their names."""
    found = entry_points(group=CHECKS_GROUP)
    return tuple(entry.value.partition(":")[0] for entry in sorted(found, key=lambda entry: entry.name))


def installed_digest(title: str, backend: str) -> str | None:
    """The digest of an installed backend's files; None where that distribution doesn't offer it."""
    try:
        entries = distribution(title).entry_points
    except PackageNotFoundError:
        return None
    for entry in entries:
        if entry.group == ENTRY_POINT_GROUP and entry.name == backend:
            return package_digest(entry.value.partition(":")[0], title)
    return None


def package_digest(module: str, title: str) -> str:
    """SHA-256 over the names and contents of a backend's files, as they lie on this disk.

    Those that the wheel's RECORD lists and those in the package's folder: equal for a wheel and for the folder that
    it was built from, and different as soon as one installed file is touched.
    """
    files = dict(_package_files(module.partition(".")[0]))
    try:
        recorded = distribution(title).files or []
    except PackageNotFoundError:
        recorded = []
    for file in recorded:
        if not file.as_posix().startswith("..") and "/" in file.as_posix():
            files.setdefault(file.as_posix(), Path(str(file.locate())))
    total = hashlib.sha256()
    for name in sorted(files):
        if any(part in name for part in _UNHASHED) or name.endswith(_OWN) or not files[name].is_file():
            continue
        total.update(f"{name}\0{hashlib.sha256(files[name].read_bytes()).hexdigest()}\n".encode())
    return total.hexdigest()


def _package_files(top: str) -> Iterator[tuple[str, Path]]:
    spec = find_spec(top)
    if spec is None:
        return
    if not spec.submodule_search_locations:
        if spec.origin is not None:
            yield Path(spec.origin).name, Path(spec.origin)
        return
    for location in spec.submodule_search_locations:
        root = Path(location)
        for path in root.rglob("*"):
            if path.is_file():
                yield f"{top}/{path.relative_to(root).as_posix()}", path


__all__ = [
    "CHECKS_GROUP",
    "check_modules",
    "declared",
    "import_plugin",
    "installed_digest",
    "installed_modules",
    "package_digest",
]
