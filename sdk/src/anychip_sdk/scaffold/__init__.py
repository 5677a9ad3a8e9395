"""Write the package of a new backend that passes `bringup` on its first day. Knows templates; knows no chip."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from pathlib import Path
from string import Template

from packaging.version import Version

from anychip_sdk.errors import UsageError

#: template -> where it goes in the new package
TEMPLATES: Mapping[str, str] = {
    "pyproject.toml": "pyproject.toml",
    "readme.md": "README.md",
    "gitignore": ".gitignore",
    "workflow.yml": ".github/workflows/ci.yml",
    "init.py": "src/%{module}/__init__.py",
    "backend.py": "src/%{module}/backend.py",
    "device.py": "src/%{module}/device.py",
    "kernels.py": "src/%{module}/kernels.py",
    "conformance.yaml": "src/%{module}/conformance.yaml",
    "py.typed": "src/%{module}/py.typed",
    "test_conformance.py": "tests/test_conformance.py",
    "test_kernels.py": "tests/test_kernels.py",
}
RESERVED: Mapping[str, str] = {
    "auto": "a recipe's word for the backend whose device is present",
    "native": "a recipe's word for a shared object",
    "reference": "the SDK's own kernels",
    "sdk": "the SDK's distribution",
}
_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")


class _Template(Template):
    """With % instead of $, which workflows use for themselves."""

    delimiter = "%"


@dataclass(frozen=True)
class Names:
    """What the things of one backend are called."""

    name: str  #: in recipes and as the entry point
    distribution: str  #: for pip
    module: str  #: for import
    label: str  #: the beginning of its classes, and its vendor until somebody writes a better one


@dataclass(frozen=True)
class Scaffold:
    """What was written: the package's folder and its files, relative to that."""

    names: Names
    folder: Path
    files: tuple[str, ...]


def names_for(name: str) -> Names:
    """The names that follow from a backend's.

    Raises:
        UsageError: it can't be a backend's name.
    """
    if not _NAME.fullmatch(name):
        message = (
            f"'{name}' can't be a backend's name: small letters, digits and single dashes between them, first a letter"
        )
        near = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-0123456789")
        raise UsageError(message, hint=f"for example {near}" if _NAME.fullmatch(near) else "for example acme")
    if name in RESERVED:
        message = f"'{name}' can't be a backend's name: it is {RESERVED[name]}"
        raise UsageError(message)
    return Names(name, f"anychip-{name}", f"anychip_{name.replace('-', '_')}", name.title().replace("-", ""))


def scaffold(name: str, directory: Path | None = None) -> Scaffold:
    """Write the package `anychip-<name>` into a folder of that name.

    Args:
        name: the backend's.
        directory: where the folder goes; None: here.

    Raises:
        UsageError: the name is none, is taken by an installed package, or the folder holds something already.
    """
    names = names_for(name)
    _refuse_taken(names)
    folder = (directory or Path()) / names.distribution
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        message = f"{folder} exists already; nothing was written"
        raise UsageError(message, hint="choose another name or --directory, or move that folder away")
    values = {**vars(names), **_versions()}
    written = []
    for template, target in TEMPLATES.items():
        path = folder / _Template(target).substitute(values)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(_Template(_text(template)).substitute(values), encoding="utf-8")
        except OSError as error:
            message = f"{path}: can't be written: {error.strerror}"
            raise UsageError(message) from error
        written.append(path.relative_to(folder).as_posix())
    return Scaffold(names, folder, tuple(written))


def _text(template: str) -> str:
    return (files(__name__) / "templates" / f"{template}.tmpl").read_text(encoding="utf-8")


def _versions() -> Mapping[str, str]:
    from anychip_sdk.hooks import API_VERSION

    sdk, api = Version(version("anychip-sdk")), Version(API_VERSION)
    return {
        "sdk_range": f">={sdk.base_version},<{sdk.major + 1}",
        "api_range": f">={api.base_version},<{api.major + 1}",
    }


def _refuse_taken(names: Names) -> None:
    try:
        found = version(names.distribution)
    except PackageNotFoundError:
        return
    message = f"the package {names.distribution} {found} is installed already; two of that name can't be"
    raise UsageError(message, hint=f"choose another name, or pip uninstall {names.distribution}")


__all__ = ["RESERVED", "TEMPLATES", "Names", "Scaffold", "names_for", "scaffold"]
