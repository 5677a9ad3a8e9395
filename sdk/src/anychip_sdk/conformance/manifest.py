"""Read a vendor's `conformance.yaml`: strict, all problems at once, each with its line. Knows no backend.

api: 1
dtypes: [float32, bfloat16]
ops: {linear: [float32, bfloat16], rms_norm: all}     # all: of the dtypes above; ops: all: the whole catalogue
capabilities: {deterministic: true, async_streams: false}
accumulator: {linear: float32}
subnormals: preserve                                   # or flush
limits: {alignment_bytes: 256}
fusions: [silu_mul]
waivers:
  - {requirement: AC-OP-001[linear-bfloat16-wide], reason: ..., link: ..., expires: 2027-01-31, versions: "<0.3"}
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from packaging.specifiers import InvalidSpecifier, SpecifierSet

from anychip_sdk.conformance.claims import CAPABILITIES, Claims, Waiver
from anychip_sdk.errors import PreconditionFailed
from anychip_sdk.ops import CATALOGUE

FILE = "conformance.yaml"
API = 1
KEYS = ("api", "dtypes", "ops", "capabilities", "accumulator", "subnormals", "limits", "fusions", "waivers")
LIMITS = ("alignment_bytes", "allocation_granularity_bytes")
WAIVER_KEYS = ("requirement", "reason", "link", "expires", "versions")
_WAIVED = re.compile(r"AC-[A-Z0-9]+-\d{3}(\[[\w.-]+\])?")


class ManifestInvalid(PreconditionFailed):
    """Every problem of a manifest, each as `file:line  key: what is wrong, what was expected`."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems), hint="docs: the keys of conformance.yaml are in anychip_sdk.conformance")
        self.problems = tuple(problems)


def load_claims(package: str, name: str | None = None) -> Claims:
    """The claims of the package that holds a backend, without importing the package.

    Args:
        package: the entry point's module, e.g. "anychip_cpu.backend"; its folders are searched from the outside.
        name: the backend's; None: the package's.

    Raises:
        PreconditionFailed: there is no manifest.
        ManifestInvalid: all that is wrong in it.
    """
    path = find_manifest(package)
    if path is None:
        message = f"package '{package}' holds no {FILE}, so it claims nothing that could be tested"
        raise PreconditionFailed(message, hint=f"put {FILE} beside the package's __init__.py and ship it in the wheel")
    return read_claims(path, name or package)


def find_manifest(package: str) -> Path | None:
    """The manifest's path; None where the package has none."""
    top, *below = package.split(".")
    spec = find_spec(top)
    for location in (spec.submodule_search_locations or ()) if spec is not None else ():
        folder = Path(location)
        for part in ("", *below):
            folder = folder / part
            if (folder / FILE).is_file():
                return folder / FILE
    return None


def read_claims(path: Path, name: str) -> Claims:
    """The claims in a file.

    Raises:
        ManifestInvalid: all that is wrong in it.
    """
    from ruamel.yaml import YAML
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    try:
        tree = YAML(typ="rt").load(path.read_text(encoding="utf-8"))
    except MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark is not None else 1
        raise ManifestInvalid([f"{path}:{line}  {error.problem}"]) from error
    except (YAMLError, UnicodeDecodeError, OSError) as error:
        raise ManifestInvalid([f"{path}:1  {error}"]) from error
    reader = _Reader(path)
    claims = reader.claims(tree, name)
    if reader.problems:
        raise ManifestInvalid(reader.problems)
    return claims


class _Reader:
    """Collects problems while it reads."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.problems: list[str] = []

    def claims(self, tree: Any, name: str) -> Claims:
        if not isinstance(tree, Mapping):
            self.problems.append(f"{self.path}:1  expected a map with the keys {', '.join(KEYS)}")
            return Claims(name, ())
        self.known(tree, KEYS, "")
        if tree.get("api") != API:
            self.wrong(tree, "api", f"is {tree.get('api')!r}, must be {API}")
        dtypes = self.dtypes(tree, "dtypes", tree.get("dtypes"))
        if not dtypes and "dtypes" not in tree:
            self.wrong(tree, "dtypes", "is missing: the dtypes that the device computes in")
        subnormals = tree.get("subnormals", "preserve")
        if subnormals not in ("preserve", "flush"):
            self.wrong(tree, "subnormals", f"is {subnormals!r}, must be preserve or flush")
        return Claims(
            name=name,
            dtypes=dtypes,
            ops=self.ops(tree, dtypes),
            capabilities=self.flags(tree),
            accumulator=self.accumulators(tree),
            subnormals=subnormals,
            limits=self.limits(tree),
            waivers=self.waivers(tree),
            fusions=self.names(tree, "fusions"),
        )

    def ops(self, tree: Any, dtypes: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
        if tree.get("ops") == "all":
            return dict.fromkeys(CATALOGUE, dtypes)
        found = {}
        ops = self.mapping(tree, "ops")
        self.known(ops, tuple(CATALOGUE), "ops.")
        for op, value in ops.items():
            found[str(op)] = dtypes if value == "all" else self.dtypes(ops, op, value, "ops.")
            for dtype in found[str(op)]:
                if dtype not in dtypes:
                    self.wrong(ops, op, f"claims {dtype}, which is not among the dtypes of the device", "ops.")
        return found

    def flags(self, tree: Any) -> dict[str, bool]:
        flags = self.mapping(tree, "capabilities")
        self.known(flags, tuple(CAPABILITIES), "capabilities.")
        for key, value in flags.items():
            if not isinstance(value, bool):
                self.wrong(flags, key, f"is {value!r}, must be true or false", "capabilities.")
        return {str(key): value is True for key, value in flags.items()}

    def accumulators(self, tree: Any) -> dict[str, str]:
        found = self.mapping(tree, "accumulator")
        self.known(found, tuple(CATALOGUE), "accumulator.")
        return {str(op): dtype for op in found for dtype in self.dtypes(found, op, [found[op]], "accumulator.")}

    def limits(self, tree: Any) -> dict[str, int]:
        limits = self.mapping(tree, "limits")
        self.known(limits, LIMITS, "limits.")
        for key, value in limits.items():
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                self.wrong(limits, key, f"is {value!r}, must be a whole number above 0", "limits.")
        return {str(key): int(value) for key, value in limits.items() if isinstance(value, int)}

    def waivers(self, tree: Any) -> tuple[Waiver, ...]:
        value = tree.get("waivers") or []
        if not isinstance(value, list) or not all(isinstance(one, Mapping) for one in value):
            self.wrong(tree, "waivers", "must be a list of maps")
            return ()
        return tuple(waiver for index, one in enumerate(value) if (waiver := self.waiver(one, f"waivers[{index}].")))

    def waiver(self, tree: Any, where: str) -> Waiver | None:
        before = len(self.problems)
        self.known(tree, WAIVER_KEYS, where)
        for key in ("requirement", "reason", "link"):
            if not isinstance(tree.get(key), str) or not tree[key].strip():
                self.wrong(tree, key, "is missing or empty", where)
        if isinstance(tree.get("requirement"), str) and not _WAIVED.fullmatch(tree["requirement"]):
            self.wrong(tree, "requirement", "must be AC-OP-001 or one case of it, AC-OP-001[case]", where)
        if type(tree.get("expires")) is not date:
            self.wrong(tree, "expires", f"is {tree.get('expires')!r}, must be a date such as 2027-01-31", where)
        versions = tree.get("versions", "")
        if not isinstance(versions, str) or not _is_specifier(versions):
            self.wrong(tree, "versions", f"is {versions!r}, must be a version specifier such as '<0.3'", where)
        if len(self.problems) > before:
            return None
        return Waiver(tree["requirement"], tree["reason"], tree["link"], tree["expires"], versions)

    def names(self, tree: Any, key: str) -> tuple[str, ...]:
        value = tree.get(key) or []
        if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
            self.wrong(tree, key, "must be a list of names")
            return ()
        return tuple(map(str, value))

    def dtypes(self, tree: Any, key: Any, value: Any, where: str = "") -> tuple[str, ...]:
        if value is None:
            return ()
        if not isinstance(value, list):
            self.wrong(tree, key, f"is {value!r}, must be a list of dtypes", where)
            return ()
        for one in value:
            if not isinstance(getattr(torch, str(one), None), torch.dtype):
                self.wrong(tree, key, f"{one!r} is no dtype of torch", where)
        return tuple(map(str, value))

    def mapping(self, tree: Any, key: str) -> Any:
        value = tree.get(key)
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            self.wrong(tree, key, "must be a map" + (", or all" if key == "ops" else ""))
            return {}
        return value

    def known(self, tree: Any, keys: Iterable[str], where: str) -> None:
        names = tuple(keys)
        for key in tree:
            if key not in names:
                near = difflib.get_close_matches(str(key), names, n=1)
                hint = f" Did you mean {near[0]}?" if near else f" Allowed: {', '.join(names)}."
                self.wrong(tree, key, f"is unknown.{hint}", where)

    def wrong(self, tree: Any, key: Any, problem: str, where: str = "") -> None:
        position = getattr(tree, "lc", None)
        line = position.line if position is not None else 0
        if position is not None and position.data and key in position.data:
            line = position.data[key][0]
        self.problems.append(f"{self.path}:{line + 1}  {where}{key}: {problem}")


def _is_specifier(text: str) -> bool:
    try:
        SpecifierSet(text)
    except InvalidSpecifier:
        return False
    return True


__all__ = ["FILE", "LIMITS", "ManifestInvalid", "find_manifest", "load_claims", "read_claims"]
