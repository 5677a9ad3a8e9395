"""The oldest Python that has to work is 3.10: some chips' own wheels exist for no newer one."""

import ast
import re

import pytest

from support.sources import NEUTRAL, PLUGINS, ROOT, modules, own_modules, short, tree

OLDEST = (3, 10)

# What later versions added to modules that are in use here, or might be.
NEWER = {
    "asyncio": {"Runner", "TaskGroup", "Timeout", "timeout", "timeout_at"},
    "contextlib": {"chdir"},
    "datetime": {"UTC"},
    "enum": {"EnumCheck", "ReprEnum", "StrEnum", "global_enum", "member", "nonmember", "property", "verify"},
    "hashlib": {"file_digest"},
    "itertools": {"batched"},
    "logging": {"getLevelNamesMapping"},
    "math": {"cbrt", "exp2", "sumprod"},
    "operator": {"call"},
    "re": {"NOFLAG"},
    "typing": {
        *("LiteralString", "Never", "NotRequired", "Required", "Self", "TypeAliasType", "TypeVarTuple", "Unpack"),
        *("assert_never", "assert_type", "clear_overloads", "dataclass_transform", "get_overloads", "override"),
        *("reveal_type", "ReadOnly", "TypeIs"),
    },
}
NEWER_MODULES = {"tomllib", "wsgiref.types"}
NEWER_NAMES = {"BaseExceptionGroup", "ExceptionGroup"}

EVERYTHING = [*modules(*NEUTRAL, PLUGINS), *own_modules(), *modules(ROOT / "benchmarks", ROOT / "examples")]


@pytest.mark.parametrize("module", ["anychip", "anychip_sdk", "anychip_cpu", "anychip_cuda", "anychip_kunlun"])
def test_every_distribution_asks_for_that_python(module):
    folder = {"anychip": "platform", "anychip_sdk": "sdk"}.get(module, f"plugins/{module.removeprefix('anychip_')}")
    text = (ROOT / folder / "pyproject.toml").read_text(encoding="utf-8")
    assert re.search(r'^requires-python = ">=3\.10"$', text, re.MULTILINE)


def test_no_file_uses_newer_syntax():
    too_new = []
    for path in EVERYTHING:
        try:
            ast.parse(path.read_text(encoding="utf-8"), feature_version=OLDEST)
        except SyntaxError as error:
            too_new.append(f"{short(path)}:{error.lineno} {error.msg}")
    assert too_new == []


def test_no_file_uses_a_newer_name():
    assert [found for path in EVERYTHING for found in newer_names(short(path), tree(path))] == []


def test_newer_names_are_found():
    code = "import tomllib, enum\nfrom typing import Self\nclass A(enum.StrEnum): ...\nraise ExceptionGroup('', [])"
    assert [found.split()[1] for found in newer_names("x", ast.parse(code))] == [
        "tomllib",
        "typing.Self",
        "enum.StrEnum",
        "ExceptionGroup",
    ]


def newer_names(where: str, module: ast.Module) -> list[str]:
    """`place name` of everything that 3.10 doesn't have, in the order of the lines."""
    found: list[tuple[int, str]] = []
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            found += [(node.lineno, one.name) for one in node.names if one.name in NEWER_MODULES]
        elif isinstance(node, ast.ImportFrom) and node.module in NEWER_MODULES:
            found.append((node.lineno, str(node.module)))
        elif isinstance(node, ast.ImportFrom):
            new = NEWER.get(str(node.module), set())
            found += [(node.lineno, f"{node.module}.{one.name}") for one in node.names if one.name in new]
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.attr in NEWER.get(node.value.id, set()):
                found.append((node.lineno, f"{node.value.id}.{node.attr}"))
        elif isinstance(node, ast.Name) and node.id in NEWER_NAMES:
            found.append((node.lineno, node.id))
    return [f"{where}:{line} {name}" for line, name in sorted(found)]
