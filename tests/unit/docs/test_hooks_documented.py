"""The vendor's guide and the SDK say the same: hooks, signatures, the example, the ops."""

import inspect
import re
import textwrap

import pytest
import torch

from anychip_sdk import hooks
from anychip_sdk.ops import CATALOGUE
from support.sources import ROOT

GUIDE = (ROOT / "docs/writing-a-backend.md").read_text(encoding="utf-8")
EXAMPLE = ROOT / "tests/support/vendor_example"


def section(hook: str) -> str:
    """What stands under a hook's heading."""
    found = re.search(rf"^### {hook}\n(.*?)(?=^#|\Z)", GUIDE, re.MULTILINE | re.DOTALL)
    assert found is not None, f"docs/writing-a-backend.md has no heading '### {hook}'"
    return found.group(1)


def signature(hook: str) -> str:
    text = str(inspect.signature(getattr(hooks, hook)))
    return f"def {hook}{text}".replace("'", "")


@pytest.mark.parametrize("hook", hooks.HOOKS)
def test_a_hook_stands_under_its_heading_with_its_signature(hook):
    assert f"```python\n{signature(hook)}\n```" in section(hook)


@pytest.mark.parametrize("hook", hooks.HOOKS)
def test_a_hook_is_called_required_or_optional_as_it_is(hook):
    kind = "required" if hook in hooks.REQUIRED else "optional"
    assert f"({kind}) " in section(hook)
    assert inspect.getdoc(getattr(hooks, hook)).startswith(f"({kind}) ")


def test_the_guide_has_no_hook_that_does_not_exist():
    assert re.findall(r"^### (anychip_\w+)$", GUIDE, re.MULTILINE) == list(hooks.HOOKS)


@pytest.mark.parametrize("name", ["acme_chip.py", "pyproject.toml"])
def test_the_example_is_the_tested_one(name):
    assert (EXAMPLE / name).read_text(encoding="utf-8").strip() in GUIDE


def test_every_op_is_named():
    listed = GUIDE.split("The ops are\n")[1].split(".\n")[0]
    assert re.findall(r"`(\w+)`", listed) == list(CATALOGUE)


def test_the_lines_about_testing_kernels_run():
    torch.set_num_threads(1)
    code = re.search(r"```python\n(import torch\n.*?)```", GUIDE, re.DOTALL)
    assert code is not None
    exec(textwrap.dedent(code.group(1)), {})
