"""The package that the vendor's guide begins with, taken from the guide itself. Knows Markdown; runs nothing."""

import re
from pathlib import Path

from support.sources import ROOT

GUIDE = (ROOT / "docs/writing-a-backend.md").read_text(encoding="utf-8")
_SECTION = GUIDE.split("## Twenty lines\n")[1].split("\n## ")[0]
#: path -> text of every file that stands under its name there
FILES = {
    path: text
    for path, text in re.findall(r"^\*\*`([^`]+)`\*\*.*?^```\w+\n(.*?)^```$", _SECTION, re.MULTILINE | re.DOTALL)
}


def write(folder: Path) -> Path:
    """Lay the package out."""
    for path, text in FILES.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")
    return folder
