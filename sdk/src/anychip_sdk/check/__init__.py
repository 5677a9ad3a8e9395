"""Check a plugin: its wheel, its conformance.yaml and what it registers say the same. Knows no chip; runs no kernel."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from anychip_sdk.check.package import Package, installed, unpacked
from anychip_sdk.check.report import Problem, Report, as_text, exit_code
from anychip_sdk.errors import UsageError

TIMEOUT_S = 180.0
_BOOT = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from anychip_sdk.check.loading import main; main()"


def check_plugins(subject: str | None = None) -> tuple[Report, ...]:
    """Check what a wheel or an installed distribution offers; one report for each backend, with all that is wrong.

    Args:
        subject: an installed backend's name, or the path of a wheel; None: every installed backend.

    Raises:
        UsageError: the wheel can't be read.
        BackendNotFound: no such backend is installed.
    """
    if subject is not None and subject.endswith(".whl"):
        wheel = Path(subject)
        if not wheel.is_file():
            message = f"there is no file {wheel}"
            raise UsageError(message, hint="build it: python -m build --wheel")
        with tempfile.TemporaryDirectory(prefix="anychip-") as folder:
            return _reports(unpacked(wheel, Path(folder)))
    return tuple(report for package in installed(subject) for report in _reports(package))


def _reports(package: Package) -> tuple[Report, ...]:
    own = tuple(Problem("package", text) for text in package.problems)
    if not package.backends:
        return (Report(package.subject, "", package.title, package.version, "", {}, own, package.notes),)
    reports = []
    for name, module in package.backends:
        found = _examined(package, name, module)
        problems = (*own, *(Problem(area, text) for area, text in found["problems"]))
        notes = (*package.notes, *found["notes"])
        reports.append(
            Report(package.subject, name, package.title, package.version, module, found["facts"], problems, notes)
        )
    return tuple(reports)


def _examined(package: Package, name: str, module: str) -> dict[str, Any]:
    """What a process that loads the plugin answers."""
    with tempfile.TemporaryDirectory(prefix="anychip-") as scratch:
        answer = Path(scratch) / "answer.json"
        job = {
            "name": name,
            "module": module,
            "distribution": package.title,
            "version": package.version,
            "answer": str(answer),
        }
        path = [*((str(package.folder),) if package.folder is not None else ()), *sys.path]
        try:
            done = subprocess.run(
                [sys.executable, "-c", _BOOT, json.dumps(path)],
                input=json.dumps(job) + "\n",
                env={**os.environ, "OMP_NUM_THREADS": "1"},  # torch's own threads are not the plugin's
                capture_output=True,
                text=True,
                timeout=TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return _nothing(f"loading and probing it did not end within {TIMEOUT_S:g} s")
        if not answer.exists():
            return _nothing(f"the process that loads it {_ending(done.returncode)}\n{done.stderr[-2000:].strip()}")
        found: dict[str, Any] = json.loads(answer.read_text(encoding="utf-8"))
    if done.stdout.strip():
        found["notes"].append(f"it prints when it is loaded: {done.stdout.strip().splitlines()[0][:80]!r}")
    if done.returncode:
        found["problems"].append(("contract", f"the process that loaded it {_ending(done.returncode)} at its end"))
    return found


def _nothing(text: str) -> dict[str, Any]:
    return {"facts": {}, "problems": [("contract", text.rstrip())], "notes": []}


def _ending(code: int) -> str:
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


__all__ = ["Problem", "Report", "as_text", "check_plugins", "exit_code"]
