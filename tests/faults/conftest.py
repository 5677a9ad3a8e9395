"""What the fault tests share: a machine of their own, with a tiny model. Every test of this folder bears the marker."""

from pathlib import Path

import pytest

from support.machines import machine_with_a_model

FOLDER = Path(__file__).parent


def pytest_collection_modifyitems(items):
    for item in items:
        if FOLDER in item.path.parents:
            item.add_marker(pytest.mark.faults)


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    """A home, a recipe and a model of a few kilobytes; whatever runs in the end is ended."""
    with machine_with_a_model(tmp_path_factory.mktemp("machine")) as found:
        yield found


@pytest.fixture(scope="session")
def record_cell(request):
    """Keeps what came of the cells of the kill matrix, and prints them as a table in the end."""
    rows = [("point", "killed", "runs", "command", "status")]

    def record(point, victim, outcome, status):
        runs = f"revision {outcome.revision}" if outcome.revision else "nothing"
        code = "-" if outcome.code is None else f"exit {outcome.code}"
        told = "no service" if status is None else f"{status.condition}{': ' if status.detail else ''}{status.detail}"
        rows.append((point, victim, runs, code, told))

    yield record
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    lines = [
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[4]]) for row in rows
    ]
    with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        request.config.get_terminal_writer().line("\n" + "\n".join(lines))
