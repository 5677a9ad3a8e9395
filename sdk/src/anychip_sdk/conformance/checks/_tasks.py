"""What is done with a backend in a process of its own. Knows no requirement; answers with plain values."""

from __future__ import annotations

import builtins
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from anychip_sdk.backend import Backend
from anychip_sdk.conformance.checks._work import Buffers, download
from anychip_sdk.device import Device, DeviceConfig
from anychip_sdk.errors import AnychipError

Load = Callable[[], Backend]
Where = Callable[[], "tuple[str, DeviceConfig]"]
Answer = Callable[[Mapping[str, Any]], None]

WATCHED = ("builtins", "torch", "anychip")  #: modules of these names, and all below


def describe(load: Load, where: Where, answer: Answer) -> None:
    """What the probe finds here."""
    started_s = time.perf_counter()
    found = load().probe()
    seconds = time.perf_counter() - started_s
    answer({"devices": [identity(device) for device in found], "seconds": seconds})


def identity(device: Any) -> list[str]:
    """What must not change of a probed device."""
    capabilities = repr(device.capabilities)
    return [device.name, device.product, str(device.memory_bytes_total), repr(dict(device.versions)), capabilities]


def purity(load: Load, where: Where, answer: Answer) -> None:
    """What loading the backend changes for everybody else."""
    _import_watched()
    before, state, threads = _snapshot(), _state(), _threads()
    load()
    after = _snapshot()
    changed = sorted(name for name, value in before.items() if name in after and after[name] is not value)
    gone = sorted(name for name in before if name not in after)
    added = sorted(name for name in after if name not in before and name.startswith("builtins."))
    now = _state()
    answer(
        {
            "replaced": changed + gone + [f"{name} (new)" for name in added],
            "state": sorted(name for name in state if state[name] != now[name]),
            "threads": _threads() - threads,
        }
    )


def fork(load: Load, where: Where, answer: Answer, *, hang_s: float) -> None:
    """Open the device, fork, use it in the forked process: how that ends."""
    device = _open(load, where)
    _use(device)
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        _use_and_exit(device, writing)
    os.close(writing)
    code = _wait(pid, hang_s)
    with os.fdopen(reading, encoding="utf-8", errors="replace") as channel:
        told = channel.read()
    _use(device)  # the parent goes on
    answer({"code": code, "told": told})


def hold(load: Load, where: Where, answer: Answer, *, nbytes: int) -> None:
    """Hold that much device memory until killed."""
    device = _open(load, where)
    buffer = device.alloc(nbytes)
    buffer.fill_(1)
    device.synchronize()
    answer({"held": nbytes})
    sys.stdin.buffer.read()


def _import_watched() -> None:
    import torch.distributed
    import torch.fx  # noqa: F401

    import anychip_sdk.conformance.context
    import anychip_sdk.testing  # noqa: F401


def _open(load: Load, where: Where) -> Device:
    torch.set_num_threads(1)
    backend = load()
    name, config = where()
    return backend.open(backend.find_device(name), config)


def _use(device: Device) -> None:
    sent = torch.arange(1000, dtype=torch.int32)
    back = torch.zeros_like(sent)
    with Buffers(device) as buffers:
        placed = buffers.put(sent)
        stream = device.create_stream()
        device.copy(back, placed, stream)
        stream.synchronize()
        device.destroy_stream(stream)
        again = download(device, placed)
    if not torch.equal(back, sent) or not torch.equal(again, sent):
        message = "the data came back wrong"
        raise ArithmeticError(message)


RIGHT, TYPED, WRONG = 0, 3, 4  #: how the forked process ends


def _use_and_exit(device: Device, writing: int) -> None:
    """End the forked process; what it could not do goes into the pipe."""
    try:
        _use(device)
    except AnychipError:
        os._exit(TYPED)
    except BaseException as error:  # the forked process must not return into the parent's code, whatever happens
        os.write(writing, f"{type(error).__name__}: {error}"[:1000].encode())
        os._exit(WRONG)
    os._exit(RIGHT)


def _wait(pid: int, seconds: float) -> int | None:
    """The exit code, minus the signal, or None where it had to be killed for hanging."""
    end_s = time.perf_counter() + seconds
    while time.perf_counter() < end_s:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return None


def _snapshot() -> dict[str, object]:
    """Every callable of the watched modules and of their classes, by name; held, so that identities stay unique."""
    found: dict[str, object] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # looking at a deprecated name is no use of it
        for name, module in tuple(sys.modules.items()):
            if isinstance(module, ModuleType) and name.partition(".")[0].partition("_")[0] in WATCHED:
                _add_callables(found, name, vars(module), dive=True)
        _add_callables(found, "builtins", vars(builtins), dive=False)
    return found


def _add_callables(found: dict[str, object], prefix: str, names: Mapping[str, object], *, dive: bool) -> None:
    for name, value in tuple(names.items()):
        if not callable(value) and not isinstance(value, (staticmethod, classmethod, property)):
            continue
        found[f"{prefix}.{name}"] = value
        if dive and isinstance(value, type) and getattr(value, "__module__", "") == prefix:
            _add_callables(found, f"{prefix}.{name}", vars(value), dive=False)


def _state() -> dict[str, str]:
    """Settings of the interpreter and of torch that a backend has no business with."""
    return {
        "torch.get_default_dtype": str(torch.get_default_dtype()),
        "torch.get_default_device": str(torch.get_default_device()),
        "torch.get_num_threads": str(torch.get_num_threads()),
        "torch.is_grad_enabled": str(torch.is_grad_enabled()),
        "torch.are_deterministic_algorithms_enabled": str(torch.are_deterministic_algorithms_enabled()),
        "sys.meta_path": repr([id(finder) for finder in sys.meta_path]),
        "sys.path_hooks": repr([id(hook) for hook in sys.path_hooks]),
        "sys.excepthook": str(id(sys.excepthook)),
        "signal handlers": repr([str(signal.getsignal(number)) for number in (signal.SIGINT, signal.SIGTERM)]),
        "os.environ": repr(sorted(os.environ.items())),
    }


def _threads() -> int:
    task = Path("/proc/self/task")
    return len(list(task.iterdir())) if task.exists() else threading.active_count()


TASKS: Mapping[str, Callable[..., None]] = {"describe": describe, "fork": fork, "hold": hold, "purity": purity}

__all__ = ["RIGHT", "TASKS", "TYPED", "WRONG", "describe", "fork", "hold", "identity", "purity"]
