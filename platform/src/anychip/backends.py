"""Find, load and choose the installed backends; the only file that touches entry points. Knows no chip by name.

The environment variable ANYCHIP_PLUGINS (comma-separated names of backends or of distributions) limits what is seen;
naming a distribution selects it where two offer a backend of the same name.
"""

from __future__ import annotations

import difflib
import itertools
import logging
import os
import re
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import Distribution, EntryPoint, distributions
from typing import TYPE_CHECKING, NamedTuple

from anychip_sdk.errors import AnychipError, BackendBroken, BackendNotFound, DeviceAbsent, PreconditionFailed
from anychip_sdk.guard import blaming, described

if TYPE_CHECKING:
    from anychip_sdk.backend import Backend
    from anychip_sdk.device import DeviceInfo

GROUP = "anychip.backends"
ALLOW_VARIABLE = "ANYCHIP_PLUGINS"
NATIVE = "native"  #: the name under which a recipe loads a shared object

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class InstalledBackend:
    """One backend as its distribution's metadata tells it; nothing of it is imported.

    Attributes:
        name: what recipes call it.
        distribution: the Python distribution that holds it.
        version: of the distribution.
        module: what loading it would import, `package.module` or `package.module:attribute`.
        duplicates: who else offers the same name: `distribution version`; of this distribution with the module.
    """

    name: str
    distribution: str
    version: str
    module: str
    duplicates: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.distribution} {self.version}"


class Choice(NamedTuple):
    """A loaded backend and why it is this one."""

    backend: Backend
    reason: str


class Probed(NamedTuple):
    """An installed backend: its devices, or the error that keeps it in quarantine."""

    installed: InstalledBackend
    backend: Backend | None
    devices: tuple[DeviceInfo, ...]
    error: AnychipError | None


def installed(environ: Mapping[str, str] | None = None) -> tuple[InstalledBackend, ...]:
    """The backends that may be used, by name, from metadata alone.

    Raises:
        BackendNotFound: ANYCHIP_PLUGINS names something that is not installed.
    """
    environ = os.environ if environ is None else environ
    found = list(_declared())
    allowed = _allow_list(environ, found)
    if allowed is not None:
        found = [one for one in found if one.name in allowed or _canonical(one.distribution) in allowed]
        # A name is settled by its distribution where that is on the list as well.
        picked = {one.name for one in found if _canonical(one.distribution) in allowed}
        found = [one for one in found if one.name not in picked or _canonical(one.distribution) in allowed]
    by_name: dict[str, list[InstalledBackend]] = {}
    for one in sorted(found, key=lambda one: (one.name, _canonical(one.distribution))):
        by_name.setdefault(one.name, []).append(one)
    return tuple(_settled(same) for same in by_name.values())


def _settled(same: Sequence[InstalledBackend]) -> InstalledBackend:
    """One of several entries with one name, which tells of the others."""
    first, others = same[0], same[1:]
    texts = (f"{one} ({one.module})" if one.distribution == first.distribution else str(one) for one in others)
    return replace(first, duplicates=tuple(texts))


def load(name: str, *, emulate: bool = False) -> Backend:
    """Import one backend's plugin, or with `emulate` its emulator, and check it against the contract.

    Raises:
        BackendNotFound: no installed distribution offers it.
        BackendBroken: two entry points offer it, importing it raises, or it breaks the contract.
        BackendIncompatible: its API or torch range does not fit.
        PreconditionFailed: an emulator is asked for and it has none.
    """
    return _load(_named(name), emulate=emulate)


def load_shared_object(path: str, *, emulate: bool = False) -> Backend:
    """A backend that is no Python package; its distribution is the file's name, its version the library's own.

    Raises:
        BackendNotFound: there is no such file.
        BackendBroken, BackendIncompatible: it can't be loaded, it crashes, or it breaks the contract.
    """
    from anychip_sdk.native.loader import load_native_backend

    return load_native_backend(path, emulate=emulate)


def probe_all() -> tuple[Probed, ...]:
    """Load and probe every installed backend; a broken one is reported, never raised."""
    return tuple(_probe(one) for one in installed())


def probe_emulator(name: str) -> Probed:
    """Load one backend's emulator and probe it.

    Raises:
        PreconditionFailed: the family that `load` raises, and no emulator.
    """
    one = _named(name)
    backend = _load(one, emulate=True)
    return Probed(one, backend, backend.probe(), None)


def choose(name: str, plugin_path: str | None = None, *, emulate: bool = False) -> Choice:
    """The backend that a recipe asks for; "auto" takes the one whose device is present, "native" a shared object.

    A backend that has a device on every machine is taken only where no other has one. Beyond that two backends with a
    device are an error, because no order between them would be right for everybody. "auto" never picks an emulator.

    Raises:
        PreconditionFailed: the family that `load` raises; no device at all, or several to choose from.
    """
    if name == NATIVE and plugin_path is not None:
        return Choice(load_shared_object(plugin_path, emulate=emulate), f"loaded from {plugin_path}")
    if name != "auto":
        return Choice(load(name, emulate=emulate), "named by the recipe")
    probed = probe_all()
    for one in probed:
        if one.error is not None:
            log.warning("backend '%s' (%s) is left out: %s", one.installed.name, one.installed, one.error)
    present = [one for one in probed if one.devices]
    found = [one for one in present if not _is_on_every_machine(one)] or present
    if len(found) > 1:
        names = ", ".join(f"'{one.installed.name}' ({one.installed}: {one.devices[0].product})" for one in found)
        message = f"backend.name is auto and several backends have a device: {names}"
        raise PreconditionFailed(message, hint="name one of them in backend.name")
    for one in found:
        if one.backend is not None:
            return Choice(one.backend, _why(one, probed))
    raise _none_present(probed)


def _declared() -> Iterator[InstalledBackend]:
    """Every entry point of the group. The first distribution of a name on the path counts, as for imports."""
    seen: dict[str, list[InstalledBackend]] = {}
    for found in map(_entries, distributions()):
        if found:
            seen.setdefault(_canonical(found[0].distribution), found)
    return itertools.chain.from_iterable(seen.values())


def _entries(distribution: Distribution) -> list[InstalledBackend]:
    """A distribution's backends; any package of the machine may have metadata that can't be read."""
    try:
        entries = [entry for entry in distribution.entry_points if entry.group == GROUP]
        title = str(distribution.metadata["Name"] or "unnamed distribution") if entries else ""
        version = str(distribution.metadata["Version"] or "of unknown version") if entries else ""
    except Exception as error:
        where = getattr(distribution, "_path", "an installed distribution")
        log.warning("the metadata of %s can't be read and is left out: %s", where, described(error))
        return []
    return [InstalledBackend(entry.name, title, version, entry.value) for entry in entries]


def _canonical(distribution: str) -> str:
    return re.sub(r"[-_.]+", "-", distribution).lower()


def _allow_list(environ: Mapping[str, str], found: Sequence[InstalledBackend]) -> frozenset[str] | None:
    """The names in ANYCHIP_PLUGINS; None when it isn't set."""
    text = environ.get(ALLOW_VARIABLE)
    if text is None or not text.strip():
        return None
    wanted = [word.strip() for word in text.split(",") if word.strip()]
    names = {one.name for one in found}
    packages = {_canonical(one.distribution) for one in found}
    missing = [word for word in wanted if word not in names and _canonical(word) not in packages]
    if missing:
        available = ", ".join(sorted(names | packages)) or "nothing"
        message = f"{ALLOW_VARIABLE} names {', '.join(missing)}; installed: {available}"
        raise BackendNotFound(message, hint=f"correct or unset {ALLOW_VARIABLE}")
    return frozenset(word if word in names else _canonical(word) for word in wanted)


def _named(name: str) -> InstalledBackend:
    known = {one.name: one for one in installed()}
    if name not in known:
        raise _not_found(name, tuple(known))
    return known[name]


def _not_found(name: str, names: Sequence[str]) -> BackendNotFound:
    if any(one.name == name for one in _declared()):
        message = f"backend '{name}' is installed, but {ALLOW_VARIABLE}={os.environ.get(ALLOW_VARIABLE)} leaves it out"
        return BackendNotFound(message, hint=f"add it to {ALLOW_VARIABLE} or unset that")
    near = difflib.get_close_matches(name, names, n=1)
    guess = f" Did you mean '{near[0]}'?" if near else ""
    message = f"no backend '{name}' is installed; installed: {', '.join(names) or 'none'}.{guess}"
    return BackendNotFound(message, hint=f"pip install anychip-{name}, or the package that the chip's vendor names")


def _none_present(probed: Sequence[Probed]) -> DeviceAbsent:
    """Why `auto` found nothing, backend by backend."""
    reasons = []
    for one in probed:
        absence = "" if one.backend is None else one.backend.info.absence
        reasons.append(f"{one.installed.name}: {'broken' if one.error else absence or 'no device present'}")
    message = f"backend.name is auto and no backend has a device ({'; '.join(reasons) or 'none is installed'})"
    hint = f"install the backend of a device that is here; one that {ALLOW_VARIABLE} leaves out is not seen"
    return DeviceAbsent(message, hint=hint)


def _is_on_every_machine(one: Probed) -> bool:
    return one.backend is not None and one.backend.info.on_every_machine


def _why(chosen: Probed, probed: Sequence[Probed]) -> str:
    if not _is_on_every_machine(chosen):
        return f"auto: its device {chosen.devices[0].name} is present"
    absent = ", ".join(one.installed.name for one in probed if one is not chosen)
    return "auto: no other backend is installed" if not absent else f"auto: no device of {absent} is present"


def _probe(one: InstalledBackend) -> Probed:
    backend = None
    try:
        backend = _load(one)
        return Probed(one, backend, backend.probe(), None)
    except AnychipError as error:
        return Probed(one, backend, (), error)


def _load(one: InstalledBackend, *, emulate: bool = False) -> Backend:
    _check_alone(one)
    with blaming(lambda what: _broken(one, f"importing {one.module}", what), passes=()):
        plugin = EntryPoint(one.name, one.module, GROUP).load()
    from anychip_sdk.backend import load_backend

    with blaming(lambda what: _broken(one, "loading it", what)):
        return load_backend(one.name, plugin, distribution=one.distribution, version=one.version, emulate=emulate)


def _check_alone(one: InstalledBackend) -> None:
    """Refuse a name that several entry points offer, since no order between them would be right for everybody."""
    if not one.duplicates:
        return
    everyone = ", ".join((str(one), *one.duplicates))
    others = [text.rpartition(" ")[0] for text in one.duplicates if not text.startswith(f"{one} (")]
    hint = f"each entry point needs a name of its own: have {one.distribution} repaired, or pip uninstall it"
    if others:
        hint = f"pip uninstall {' '.join(others)} (or the other way round), or set {ALLOW_VARIABLE}={one.distribution}"
    source = "several installed distributions" if others else "several entry points of one distribution"
    raise BackendBroken(f"backend '{one.name}' is offered by {source}: {everyone}", hint=hint)


def _broken(one: InstalledBackend, what: str, raised: str) -> BackendBroken:
    """Made where the error is handled, so that its traceback is there."""
    message = f"backend '{one.name}' ({one}): {what} raised {raised}\n{traceback.format_exc().rstrip()}"
    return BackendBroken(message, hint=f"repair or pip uninstall {one.distribution}")


__all__ = [
    "ALLOW_VARIABLE",
    "GROUP",
    "NATIVE",
    "Choice",
    "InstalledBackend",
    "Probed",
    "choose",
    "installed",
    "load",
    "load_shared_object",
    "probe_all",
    "probe_emulator",
]
