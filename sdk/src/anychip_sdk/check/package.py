"""What a wheel or an installed distribution says of itself, and whether that fits its files. Loads no plugin."""

from __future__ import annotations

import base64
import configparser
import hashlib
import platform
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from email.message import Message
from email.parser import Parser
from importlib.metadata import Distribution, distributions, version
from pathlib import Path, PurePosixPath

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.tags import sys_tags
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

from anychip_sdk.conformance.manifest import FILE as MANIFEST
from anychip_sdk.errors import BackendNotFound, UsageError
from anychip_sdk.hooks import ENTRY_POINT_GROUP

#: what a wheel may not put into site-packages: it would cover what others own
FOREIGN = ("anychip", "anychip_sdk", "docs", "src", "test", "tests", "torch")


@dataclass(frozen=True)
class Package:
    """A distribution with backends.

    Attributes:
        backends: entry point's name -> what it imports.
        files: of a wheel, or those that pip recorded.
        folder: to be put on the path; None: it is there.
    """

    subject: str
    title: str
    version: str
    backends: tuple[tuple[str, str], ...]
    files: tuple[str, ...]
    folder: Path | None
    problems: tuple[str, ...]
    notes: tuple[str, ...] = ()


def unpacked(wheel: Path, folder: Path) -> Package:
    """A wheel, laid out in an empty folder.

    Raises:
        UsageError: it is no wheel.
    """
    try:
        name, built, _, tags = parse_wheel_filename(wheel.name)
        with zipfile.ZipFile(wheel) as archive:
            files = tuple(one for one in archive.namelist() if not one.endswith("/"))
            archive.extractall(folder)
    except (InvalidWheelFilename, zipfile.BadZipFile, OSError) as error:
        message = f"{wheel} is no wheel: {error}"
        raise UsageError(message) from error
    infos = {PurePosixPath(file).parts[0] for file in files if ".dist-info/" in file}
    if len(infos) != 1:
        message = f"{wheel} is no wheel: it has {len(infos)} folders of metadata, not one"
        raise UsageError(message)
    info = folder / infos.pop()
    metadata = Parser().parsestr(_read(info / "METADATA"))
    title, stated = metadata.get("Name") or "", metadata.get("Version") or ""
    problems = [*_of_metadata(metadata), *_of_record(info, files), *_of_layout(files)]
    if canonicalize_name(title) != name or stated != str(built):
        problems.insert(0, f"the file's name says {name} {built}, its metadata say {title} {stated}")
    if not tags & set(sys_tags()):
        problems.append(f"it is built for {', '.join(map(str, sorted(tags, key=str)))}, which does not fit this Python")
    backends = _backends(_read(info / "entry_points.txt"))
    problems += _of_backends(backends, files)
    notes = (
        () if any(file.endswith("/py.typed") for file in files) else ("it ships no py.typed, so its types are lost",)
    )
    return Package(str(wheel), title, stated, backends, files, folder, tuple(problems), notes)


def installed(name: str | None = None) -> tuple[Package, ...]:
    """The installed distributions with a backend of that name, or with any.

    Raises:
        BackendNotFound: there is none.
    """
    found: dict[str, Package] = {}
    for one in distributions():
        backends = _backends(one.read_text("entry_points.txt") or "")
        title = one.metadata["Name"] or "unnamed distribution"
        wanted = tuple(entry for entry in backends if name is None or entry[0] == name)
        if wanted:
            found.setdefault(canonicalize_name(title), _installed(one, title, wanted))
    if not found:
        message = f"no backend '{name}' is installed" if name is not None else "no backend is installed"
        raise BackendNotFound(message, hint="name an installed backend, or the path of a wheel")
    offers = [package.title for package in found.values()]
    if name is not None and len(offers) > 1:
        message = f"backend '{name}' is offered by several installed distributions: {', '.join(sorted(offers))}"
        raise BackendNotFound(message, hint="uninstall all but one of them")
    return tuple(found[title] for title in sorted(found))


def _installed(one: Distribution, title: str, backends: tuple[tuple[str, str], ...]) -> Package:
    files = tuple(file.as_posix() for file in one.files or ())
    notes: tuple[str, ...] = ()
    if '"editable": true' in (one.read_text("direct_url.json") or "").lower():
        notes = ("installed from its sources: build the wheel and check that too",)
    metadata = Parser().parsestr(one.read_text("METADATA") or one.read_text("PKG-INFO") or "")
    problems = _of_metadata(metadata)
    return Package(title, title, one.version, backends, files, None, tuple(problems), notes)


def _of_metadata(metadata: Message) -> Iterator[str]:
    """Does it ask for the SDK, and does this machine fit what it asks for?"""
    python = metadata.get("Requires-Python")
    if python is None:
        yield "Requires-Python is missing; write requires-python in pyproject.toml"
    elif not _contains(python, platform.python_version()):
        yield f"it needs Python {python}; this is {platform.python_version()}"
    requirements = [one for text in metadata.get_all("Requires-Dist") or () if (one := _requirement(text)) is not None]
    names = {str(canonicalize_name(one.name)): one for one in requirements if one.marker is None}
    sdk = names.get("anychip-sdk")
    if sdk is None:
        yield "it does not require anychip-sdk; write it among the dependencies in pyproject.toml"
    elif not sdk.specifier.contains(version("anychip-sdk"), prereleases=True):
        yield f"it needs anychip-sdk {sdk.specifier}; this is {version('anychip-sdk')}"
    if "anychip" in names:
        yield "it requires anychip; a plugin needs anychip-sdk only"


def _of_record(info: Path, files: tuple[str, ...]) -> Iterator[str]:
    """RECORD names every file with its digest."""
    recorded = {}
    for line in _read(info / "RECORD").splitlines():
        path, _, rest = line.rpartition(",")[0].rpartition(",")
        recorded[path.strip('"')] = rest
    own = f"{info.name}/RECORD"
    for file in files:
        if file == own or file.startswith((f"{own}.",)):
            continue
        digest = recorded.get(file)
        if digest is None:
            yield f"RECORD does not list {file}"
        elif digest != _digest(info.parent / file):
            yield f"{file} is not what RECORD says: it was changed after the wheel was built"
    for file in sorted(set(recorded) - set(files) - {own}):
        yield f"RECORD lists {file}, which is not in the wheel"


def _of_layout(files: tuple[str, ...]) -> Iterator[str]:
    top = {PurePosixPath(file).parts[0].removesuffix(".py") for file in files}
    for name in sorted(top.intersection(FOREIGN)):
        yield f"it puts '{name}' beside other packages' modules; ship your own package only"


def _of_backends(backends: tuple[tuple[str, str], ...], files: tuple[str, ...]) -> Iterator[str]:
    if not backends:
        yield f"it has no entry point in the group {ENTRY_POINT_GROUP}, so no recipe can name it"
    for name, value in backends:
        module = value.partition(":")[0].strip().replace(".", "/")
        if not any(file.startswith((f"{module}/__init__.", f"{module}.")) for file in files):
            yield f"the entry point '{name}' imports {value}, which is not in the wheel"
        parents = [str(folder) for folder in (PurePosixPath(module), *PurePosixPath(module).parents)]
        if not any(f"{folder}/{MANIFEST}" in files for folder in parents):
            yield f"{MANIFEST} is not in the wheel, beside {module}: package data that the build left out?"


def _backends(text: str) -> tuple[tuple[str, str], ...]:
    parser = configparser.ConfigParser(delimiters=("=",), interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]  # names keep their case
    try:
        parser.read_string(text)
    except configparser.Error:
        return ()
    return tuple(parser.items(ENTRY_POINT_GROUP)) if parser.has_section(ENTRY_POINT_GROUP) else ()


def _digest(path: Path) -> str:
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(path.read_bytes()).digest()).rstrip(b"=").decode()


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def _requirement(text: str) -> Requirement | None:
    try:
        return Requirement(text)
    except InvalidRequirement:
        return None


def _contains(specifier: str, wanted: str) -> bool:
    try:
        return SpecifierSet(specifier).contains(wanted, prereleases=True)
    except InvalidSpecifier:
        return False


__all__ = ["FOREIGN", "Package", "installed", "unpacked"]
