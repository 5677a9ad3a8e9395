"""What starts without torch: commands that read recipes, and all of a service until its worker is under way."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
RECIPE = str(ROOT / "recipes/quickstart.yaml")

#: runs its second argument in an interpreter in which nobody can import torch
BLOCKED = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            raise ImportError("torch is imported")

sys.meta_path.insert(0, Blocker())
exec(sys.argv.pop(1))
"""

COMMAND = "from anychip.cli.main import main; raise SystemExit(main(sys.argv[1:]))"


def run(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", BLOCKED, code, *arguments], capture_output=True, text=True, check=False, timeout=60
    )


@pytest.mark.parametrize(
    "arguments", [("--help",), ("validate", RECIPE), ("schema",), ("backends",)], ids=lambda a: a[0]
)
def test_a_command_that_computes_nothing_imports_no_torch(arguments: tuple[str, ...]) -> None:
    done = run(COMMAND, *arguments)
    assert (done.returncode, done.stderr) == (0, "")


def test_status_imports_no_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANYCHIP_HOME", str(tmp_path))
    done = run(COMMAND, "status")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("module", ["anychip", "anychip.deploy.service", "anychip.engine.worker", "anychip.server.app"])
def test_a_module_on_the_way_to_the_worker_imports_no_torch(module: str) -> None:
    done = run(f"import {module}")
    assert (done.returncode, done.stderr) == (0, "")


def test_the_blocker_blocks() -> None:
    assert "torch is imported" in run("import anychip.engine.core").stderr
