"""What the fault tests share: a machine of their own, with a tiny model. Every test of this folder bears the marker."""

from pathlib import Path

import pytest

from support.machines import Machine
from support.tiny_models import make_tiny

FOLDER = Path(__file__).parent


def pytest_collection_modifyitems(items):
    for item in items:
        if FOLDER in item.path.parents:
            item.add_marker(pytest.mark.faults)


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    """A home, a recipe and a model of a few kilobytes; whatever runs in the end is ended."""
    found = Machine(tmp_path_factory.mktemp("machine"))
    make_tiny(found.folder / "model", "llama", tokenizer=True, max_position_embeddings=256)
    yield found
    found.run("down", "--all")
