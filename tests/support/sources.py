"""The repository's own files, for tests about the code and the documents. Knows folders; judges nothing."""

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
NEUTRAL = (ROOT / "sdk/src", ROOT / "platform/src")
PLUGINS = ROOT / "plugins"


def modules(*folders: Path) -> list[Path]:
    """Every Python file under the folders, in order."""
    return sorted(path for folder in folders for path in folder.rglob("*.py") if ".venv" not in path.parts)


def source_modules() -> list[Path]:
    """Every Python file of the five distributions."""
    return modules(*NEUTRAL, *sorted(PLUGINS.glob("*/src")))


def own_modules() -> list[Path]:
    """Every Python file of the tests."""
    return modules(ROOT / "tests")


@cache
def tree(path: Path) -> ast.Module:
    """The file, parsed once."""
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def short(path: Path) -> str:
    """The path as it is told in a message."""
    return path.relative_to(ROOT).as_posix()


def documents() -> list[Path]:
    """Every Markdown file that people read."""
    return sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
