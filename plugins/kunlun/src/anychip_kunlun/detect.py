"""Is the vendor's stack here, and which cards does it show? Knows files, tools and variables; opens no device."""

from __future__ import annotations

import subprocess
from typing import NamedTuple

from anychip_kunlun import smi
from anychip_kunlun.smi import Card
from anychip_kunlun.stack import Stack

CONTROL = "dev/xpuctrl"
DRIVER = "proc/kunlun/version"
HOOK = "torch_xmlir"  #: the package that gives torch the chip's kernels
OPS = ("kunlun_ops", "xtorch_ops")  #: the fused ops; the second is their older name
VISIBLE = ("XPU_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")
#: variable -> why no service can run with it
HARMFUL = {
    "DISABLE_XPYTORCH": "it keeps torch from being patched",
    "XMLIR_DISABLE_CUDA_ALLOCATOR": "it takes the memory statistics away",
    "XPU_DUMMY_EVENT": "it makes every event a fake",
    "XPU_RUN_MODE": "it writes registers of all cards when a library is imported",
}


class Problem(NamedTuple):
    """A part of the stack that is missing or wrong."""

    part: str
    what: str
    hint: str
    is_blocking: bool = True  #: without it no device can be used


class Inventory(NamedTuple):
    """What the tools say of this machine."""

    cards: tuple[Card, ...]  #: those that the process may see, in the order of their indices
    driver: str | None
    runtime: str | None


def problems(stack: Stack) -> tuple[Problem, ...]:
    """Everything that is missing or wrong; runs no tool and imports nothing."""
    nodes = _nodes(stack)
    found = [*nodes, *_driver(stack), *_modules(stack), *_variables(stack)]
    if not any(problem.part == HOOK for problem in found) and not nodes and not is_patched(stack):
        found.append(
            Problem(
                "torch",
                f"{HOOK} is installed, but torch has no kernels of it: its import hook failed silently",
                "look for SYMBOL_REWRITE in the output of `python -c 'import torch'`; often libcuda.so.1 is not found",
            )
        )
    return tuple(found)


def absence(stack: Stack) -> str:
    """Why there is no device and what to install; empty where nothing blocks."""
    found = problems(stack)
    if not any(problem.is_blocking for problem in found):
        return ""
    return "; ".join(f"{problem.part}: {problem.what} ({problem.hint})" for problem in found)


def is_patched(stack: Stack) -> bool:
    """Whether torch's own table of kernels holds the chip's."""
    return "XMLIR" in stack.dispatch_dump("aten::add.Tensor").upper()


def inventory(stack: Stack) -> Inventory:
    """The visible cards and the versions, from xpu-smi.

    Raises:
        ValueError: the tool's output is in no known form.
    """
    query = _run(stack, "-q")
    plain = _run(stack)
    machine = _run(stack, "-m")
    cards = smi.machine_cards(machine) or smi.query_cards(query)
    told = [smi.versions(text) for text in (query, plain)]
    driver = next((one.driver for one in told if one.driver), None) or _kernel_version(stack)
    runtime = next((one.runtime for one in told if one.runtime), None)
    return Inventory(_visible(stack, cards), driver, runtime)


def _run(stack: Stack, *options: str) -> str:
    """The tool's output; empty where it is missing or refuses: older ones have fewer options."""
    try:
        return stack.run(["xpu-smi", *options])
    except (FileNotFoundError, PermissionError, subprocess.SubprocessError):
        return ""


def _nodes(stack: Stack) -> list[Problem]:
    cards = list((stack.root / "dev").glob("xpu[0-9]*"))
    missing = ([] if cards else ["/dev/xpu0"]) + ([] if (stack.root / CONTROL).exists() else ["/dev/xpuctrl"])
    if not missing:
        return []
    hint = "install the XPU driver, 5.0.21 or later; pass /dev/xpuctrl and every /dev/xpuN into the container"
    return [Problem("device nodes", f"no {' and no '.join(missing)}", hint)]


def _driver(stack: Stack) -> list[Problem]:
    if (stack.root / DRIVER).exists():
        return []
    hint = "install the XPU driver, 5.0.21 or later"
    return [Problem("driver", "no /proc/kunlun/version", hint, is_blocking=False)]


def _modules(stack: Stack) -> list[Problem]:
    found = []
    if not stack.has_module(HOOK):
        hint = "run the vendor's xpytorch-cp310-torch290 installer, which brings torch and xmlir"
        found.append(Problem(HOOK, "not installed", hint))
    if not any(map(stack.has_module, OPS)):
        hint = "install the vendor's wheel, 0.1.58 or later; every op is the reference's without it"
        found.append(Problem(OPS[0], "not installed", hint, is_blocking=False))
    return found


def _variables(stack: Stack) -> list[Problem]:
    found = [
        Problem("environment", f"{name}={stack.environ[name]}: {why}", f"unset {name}")
        for name, why in HARMFUL.items()
        if stack.environ.get(name, "0") not in ("", "0")
    ]
    values = {name: stack.environ[name] for name in VISIBLE if name in stack.environ}
    if len(set(values.values())) > 1:
        text = ", ".join(f"{name}={value}" for name, value in values.items())
        found.append(Problem("environment", f"{text}: they must be equal", "set both to the same list, or unset both"))
    return found


def _kernel_version(stack: Stack) -> str | None:
    path = stack.root / DRIVER
    return smi.kernel_version(path.read_text()) if path.exists() else None


def _visible(stack: Stack, cards: tuple[Card, ...]) -> tuple[Card, ...]:
    """The cards that the variables leave, in their order: index N of the process is not always card N."""
    listed = next((stack.environ[name] for name in VISIBLE if stack.environ.get(name)), None)
    if listed is None:
        return cards
    numbers = [int(part) for part in listed.split(",") if part.strip().isdigit()]
    by_number = {card.number: card for card in cards}
    return tuple(by_number[number] for number in numbers if number in by_number)


__all__ = [
    "HARMFUL",
    "HOOK",
    "OPS",
    "VISIBLE",
    "Inventory",
    "Problem",
    "absence",
    "inventory",
    "is_patched",
    "problems",
]
