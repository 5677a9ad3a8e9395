"""CONTRIBUTING's lists of steps: which files they name. Knows Markdown; knows no file's content."""

from __future__ import annotations

import re

from support.sources import ROOT

SECTION = re.compile(r"^## (Add .+)$", re.MULTILINE)
CODE = re.compile(r"`([^`]+)`")
LINK = re.compile(r"\]\(([^)\s#]+)")
FOLDERS = ("sdk", "platform", "plugins", "tests", "docs", "recipes", "benchmarks")
SOURCES = ("sdk", "platform", "plugins")


def sections(text: str) -> dict[str, str]:
    """Each list of steps by its title."""
    parts = SECTION.split(text)
    return {title: body.split("\n## ")[0] for title, body in zip(parts[1::2], parts[2::2], strict=True)}


def paths_in(steps: str) -> list[str]:
    """Every file or folder of the repository that the steps name, in code or as a link."""
    words = [word for code in CODE.findall(steps) for word in code.split()]
    found = [word for word in words if word.startswith(tuple(f"{folder}/" for folder in FOLDERS))]
    found += [link for link in LINK.findall(steps) if "://" not in link]
    return list(dict.fromkeys(found))


def source_files(steps: str) -> list[str]:
    """The paths that are written by hand to add the thing, without tests and documents."""
    return [path for path in paths_in(steps) if path.startswith(tuple(f"{folder}/" for folder in SOURCES))]


def lists() -> dict[str, str]:
    """Those of the repository."""
    return sections((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"))
