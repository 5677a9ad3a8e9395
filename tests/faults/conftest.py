"""What the fault tests share: a machine of their own, with a tiny model. Every test of this folder bears the marker."""

from pathlib import Path

import pytest

from support.kill_table import write_table
from support.machines import machine_with_a_model

FOLDER = Path(__file__).parent


def pytest_collection_modifyitems(items):
    for item in items:
        if FOLDER in item.path.parents:
            item.add_marker(pytest.mark.faults)


def pytest_terminal_summary(terminalreporter):
    write_table(terminalreporter)


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    """A home, a recipe and a model of a few kilobytes; whatever runs in the end is ended."""
    with machine_with_a_model(tmp_path_factory.mktemp("machine")) as found:
        yield found
