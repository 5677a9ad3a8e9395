"""Try a shared object in a process of its own, where a crash harms nobody. Knows no op and no torch."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
from functools import lru_cache
from pathlib import Path

from anychip_sdk import errors
from anychip_sdk.errors import AnychipError, BackendBroken
from anychip_sdk.native import abi
from anychip_sdk.native.library import Library

_REFUSED = 3  # exit code of a trial that raised; the error stands on the last line of stdout
_LIMIT_S = 120.0


def try_out(path: str | os.PathLike[str], limit_s: float = _LIMIT_S) -> None:
    """Load the library, probe it, and open and close its first device, in another process.

    Raises:
        BackendNotFound, BackendBroken, BackendIncompatible: what is wrong, and where.
    """
    file = Path(path).absolute()
    try:
        stamp = file.stat()
    except OSError:
        Library(file)  # says what is wrong with the path
        raise
    _tried(str(file), stamp.st_mtime_ns, stamp.st_size, limit_s)


@lru_cache(maxsize=64)
def _tried(path: str, _changed_ns: int, _size: int, limit_s: float) -> None:
    """Once per file and process; a failure is not remembered."""
    home = str(Path(__file__).parents[2])
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([home, *filter(None, [os.environ.get("PYTHONPATH")])])}
    command = [sys.executable, "-m", "anychip_sdk.native.trial", path]
    try:
        done = subprocess.run(command, capture_output=True, env=environ, timeout=limit_s, check=False)
    except subprocess.TimeoutExpired as error:
        message = f"native backend {path}: {_stage(error.stdout)} took more than {limit_s:.0f} s in a trial process"
        raise BackendBroken(message, hint=_tail(error.stderr)) from error
    if done.returncode == 0:
        return
    if done.returncode == _REFUSED:
        told = json.loads(done.stdout.splitlines()[-1])
        raise getattr(errors, told["kind"], BackendBroken)(told["message"], hint=told["hint"])
    how = f"exit code {done.returncode}"
    if done.returncode < 0:
        number = signal.Signals(-done.returncode)
        how = f"{number.name} ({signal.strsignal(number)})"
    message = f"native backend {path}: {_stage(done.stdout)} crashed in a trial process: {how}"
    raise BackendBroken(message, hint=_tail(done.stderr))


def _stage(stdout: bytes | None) -> str:
    lines = (stdout or b"").decode("utf-8", "replace").splitlines()
    return lines[-1] if lines else "starting"


def _tail(stderr: bytes | None) -> str | None:
    lines = (stderr or b"").decode("utf-8", "replace").splitlines()[-5:]
    return "it said: " + "\n  ".join(lines) if lines else None


def _say(stage: str) -> None:
    sys.stdout.write(stage + "\n")
    sys.stdout.flush()


def _run(path: str) -> None:
    _say("loading it")
    library = Library(path)
    _say("device_count")
    count = library.device_count()
    for index in range(count):
        _say(f"describe({index})")
        library.describe(index)
    if not count:
        return
    device, config = ctypes.c_void_p(), abi.sized(abi.ConfigC)
    _say("init(0)")
    library.check(library.device.init(0, ctypes.byref(config), ctypes.byref(device)), "init(0)")
    _say("memory")
    total, free = ctypes.c_uint64(), ctypes.c_uint64()
    library.check(library.device.memory(device, ctypes.byref(total), ctypes.byref(free)), "memory")
    _say("destroy")
    library.check(library.device.destroy(device), "destroy")


def main(path: str) -> int:
    try:
        _run(path)
    except AnychipError as error:
        _say(json.dumps({"kind": type(error).__name__, "message": error.message, "hint": error.hint}))
        return _REFUSED
    except ValueError as error:  # a status that says the call was invalid
        _say(json.dumps({"kind": "BackendBroken", "message": str(error), "hint": None}))
        return _REFUSED
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))

__all__ = ["main", "try_out"]
