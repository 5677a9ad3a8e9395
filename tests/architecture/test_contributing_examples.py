"""What CONTRIBUTING says that adding a thing touches is what an existing one touches."""

from __future__ import annotations

import re
from pathlib import Path

from support.contributing import lists, source_files
from support.sources import ROOT, short

NATIVE = ROOT / "plugins/cpu/native"
#: the platform, the SDK and the backend that has every op; other vendors' follow when they want to
FOLDERS = (ROOT / "sdk/src", ROOT / "platform/src", ROOT / "plugins/cpu/src", NATIVE)
TEXT = (".py", ".yaml", ".json", ".toml", ".tmpl", ".h", ".hpp", ".cpp")

#: an op of two tensors with a fusion and a native instruction; native code knows it by its activation
OP, ACTIVATION = r"\bgelu_mul\b", r"(?i)gelu\b"
#: a key of the scheduler, declared in a class or read from one; recipes that set it and its other names do not count
KEY = r"(?m)^    prefix_cache:|(?<!\")\b(config|recipe\.scheduler|plan\.scheduler|scheduler)\.prefix_cache\b"


def holding(pattern: str, *folders: Path) -> set[str]:
    """The files under the folders in which a pattern is found."""
    files = (path for folder in folders for path in folder.rglob("*") if path.suffix in TEXT)
    return {short(path) for path in files if re.search(pattern, path.read_text(encoding="utf-8"))}


LISTS = lists()


def test_an_op_stands_in_the_files_that_the_list_names_and_in_no_other():
    experts = {short(path) for path in NATIVE.glob("experts*")}  # they have the activation, and none of the op's code
    found = holding(OP, *FOLDERS) | holding(ACTIVATION, NATIVE) - experts
    assert found == set(source_files(LISTS["Add an op"]))


def test_the_search_finds_what_stands_in_more_files():
    """`silu_mul` is a policy's name too, so that it stands in more files than an op needs to."""
    assert len(holding(OP.replace("gelu", "silu"), *FOLDERS)) > len(source_files(LISTS["Add an op"]))


def test_a_scheduler_key_stands_in_the_files_that_the_list_names_and_in_no_other():
    found = holding(KEY, ROOT / "platform/src")
    assert found == set(source_files(LISTS["Add a recipe key of the scheduler"]))
