"""What a hook's answer must look like, field by field. Knows the contract's types; calls no hook.

Type hints promise nothing at run time, and a plan that meets None where a number belongs fails far from the plugin.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from packaging.specifiers import InvalidSpecifier, SpecifierSet

from anychip_sdk.device import Capabilities, DeviceInfo
from anychip_sdk.finding import Finding
from anychip_sdk.guard import shown
from anychip_sdk.hooks import PreparedWeight
from anychip_sdk.info import BackendInfo, Requirements
from anychip_sdk.speeds import KernelSpeed, Speeds

MOST_DEVICES = 4096
MOST_BYTES = 2**62


def hook_problem(function: object) -> str | None:
    """Why a function can't be a hook: hooks are called, and answer."""
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        return "is an async function; hooks are plain functions, called without an event loop"
    if inspect.isgeneratorfunction(function):
        return "is a generator; hooks are plain functions that return their answer"
    return None


def info_problems(info: BackendInfo, name: str) -> list[str]:
    """What is wrong with what a backend says of itself; `name` is what its entry point is called."""
    problems = [
        *_texts(info, ("name", "vendor", "api", "absence")),
        *_pairs(info, ("claims", "environment")),
        *_booleans(info, ("on_every_machine",)),
    ]
    requirements: object = info.requirements
    if not isinstance(requirements, Requirements):
        return [*problems, f"requirements is {shown(requirements)}, expected Requirements"]
    problems += _texts(info.requirements, ("torch", "driver", "runtime"))
    if problems:
        return problems
    if info.name != name:
        problems.append(f"the entry point is called '{name}', anychip_backend says '{info.name}'; they must be equal")
    for what, text in {"api": info.api, **vars(info.requirements)}.items():
        try:
            SpecifierSet(text)
        except InvalidSpecifier:
            problems.append(f"{what} range '{text}' is not a version specifier such as '>=1.0,<2'")
    return problems


def checked_devices(answer: object) -> tuple[DeviceInfo, ...]:
    """The devices of a probe, their mappings as plain dictionaries.

    Raises:
        ValueError: with every problem.
    """
    if not isinstance(answer, Sequence) or isinstance(answer, (str, bytes)):
        message = f"returned {shown(answer)}, expected Sequence of DeviceInfo"
        raise ValueError(message)
    if len(answer) > MOST_DEVICES:
        message = f"returned {len(answer)} devices, expected at most {MOST_DEVICES}"
        raise ValueError(message)
    problems: list[str] = []
    devices: dict[str, DeviceInfo] = {}
    for device in answer:
        found = device_problems(device)
        problems += found
        if found or not isinstance(device, DeviceInfo):
            continue
        if device.name in devices:
            problems.append(f"{device.name} is listed twice")
        devices[device.name] = dataclasses.replace(
            device, versions=dict(device.versions), attributes=dict(device.attributes)
        )
    if problems:
        raise ValueError("; ".join(problems))
    return tuple(devices.values())


def checked_reasons(answer: object, calls: int) -> tuple[str | None, ...] | None:
    """For each call of a program None or a text; None: there is no compiler.

    Raises:
        ValueError: it is neither.
    """
    if answer is None:
        return None
    is_listed = isinstance(answer, Sequence) and not isinstance(answer, str)
    reasons: tuple[Any, ...] = tuple(answer) if isinstance(answer, Sequence) else ()
    if not is_listed or len(reasons) != calls or not all(one is None or isinstance(one, str) for one in reasons):
        message = f"returned {shown(answer)}, expected a text or None for each of {calls} calls"
        raise ValueError(message)
    return reasons


def checked_findings(answer: object) -> tuple[Finding, ...]:
    """A diagnosis; None is an empty one.

    Raises:
        ValueError: it is something else.
    """
    if answer is None:
        return ()
    if not isinstance(answer, Sequence) or not all(isinstance(one, Finding) for one in answer):
        message = f"returned {shown(answer)}, expected a sequence of Finding"
        raise ValueError(message)
    return tuple(answer)


def checked_weight(answer: object) -> PreparedWeight:
    """A weight in a kernel's layout.

    Raises:
        ValueError: it is something else, or takes no number of bytes.
    """
    if not isinstance(answer, PreparedWeight):
        message = f"returned {shown(answer)}, expected PreparedWeight"
        raise ValueError(message)
    if not _is_whole(answer.nbytes) or not 0 <= answer.nbytes <= MOST_BYTES:
        message = f"nbytes is {shown(answer.nbytes)}, expected a whole number of at least 0"
        raise ValueError(message)
    return answer


def device_problems(device: object) -> list[str]:
    if not isinstance(device, DeviceInfo):
        return [f"{shown(device)} is not a DeviceInfo"]
    problems = [*_texts(device, ("name", "product")), *_pairs(device, ("versions", "attributes"))]
    total, free = device.memory_bytes_total, device.memory_bytes_free
    if not _is_whole(total) or not 0 < total <= MOST_BYTES:
        problems.append(f"memory_bytes_total is {shown(total)}, must be above 0, in whole bytes")
    elif not _is_whole(free) or not 0 <= free <= total:
        problems.append(
            f"memory_bytes_free is {shown(free)}, must be between 0 and memory_bytes_total ({shown(total)})"
        )
    problems += _capabilities(device.capabilities)
    if device.speeds is not None:
        problems += _speeds(device.speeds)
    name = device.name if isinstance(device.name, str) and device.name else "a device"
    return [f"{name}: {problem}" for problem in problems]


def memory_problem(memory: Any) -> str | None:
    """Why an opened device's memory can't be so."""
    total, free = memory.bytes_total, memory.bytes_free
    if not _is_whole(total) or not _is_whole(free):
        return f"bytes_total is {shown(total)} and bytes_free {shown(free)}, expected whole numbers"
    if not 0 <= free <= total:
        return f"bytes_free is {free}, must be between 0 and bytes_total ({total})"
    return None


def _capabilities(found: object) -> Iterable[str]:
    if not isinstance(found, Capabilities):
        yield f"capabilities is {shown(found)}, expected Capabilities"
        return
    dtypes: object = found.dtypes
    if not isinstance(dtypes, tuple) or not dtypes or not all(isinstance(one, torch.dtype) for one in dtypes):
        yield f"capabilities.dtypes is {shown(dtypes)}, expected a tuple of torch dtypes, at least one"
    yield from _booleans(found, ("async_streams",))
    for name in ("page_size", "prefill_tokens"):
        value = getattr(found, name)
        if value is not None and (not _is_whole(value) or not 0 < value < 2**31):
            yield f"capabilities.{name} is {shown(value)}, expected a whole number above 0, or None"


def _speeds(speeds: object) -> list[str]:
    if not isinstance(speeds, Speeds):
        return [f"speeds is {shown(speeds)}, expected Speeds"]
    kernels: list[object] = [] if speeds.others is None else [speeds.others]
    kernels += dict(speeds.kernels).values()
    strange = [kernel for kernel in kernels if not isinstance(kernel, KernelSpeed)]
    if strange:
        return [f"speeds: {shown(strange[0])} is not a KernelSpeed"]
    figures: list[object] = [value for kernel in kernels for value in vars(kernel).values()]
    figures += [speeds.step_s, speeds.request_s, speeds.memory_bytes_per_s]
    wrong = [value for value in figures if value is not None and not _is_amount(value)]
    return [f"speeds: {shown(value)} is no rate and no time, expected a finite number of at least 0" for value in wrong]


def _texts(value: object, names: Sequence[str]) -> Iterable[str]:
    for name in names:
        text = getattr(value, name)
        if not isinstance(text, str):
            yield f"{name} is {shown(text)}, expected a text"
        elif name == "name" and not text:
            yield "name is empty"


def _pairs(value: object, names: Sequence[str]) -> Iterable[str]:
    for name in names:
        pairs = getattr(value, name)
        is_mapping = isinstance(pairs, Mapping)
        if not is_mapping or not all(isinstance(text, str) for pair in pairs.items() for text in pair):
            yield f"{name} is {shown(pairs)}, expected texts by name"


def _booleans(value: object, names: Sequence[str]) -> Iterable[str]:
    for name in names:
        if not isinstance(getattr(value, name), bool):
            yield f"{name} is {shown(getattr(value, name))}, expected True or False"


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_amount(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) and value >= 0


__all__ = [
    "checked_devices",
    "checked_findings",
    "checked_reasons",
    "checked_weight",
    "device_problems",
    "hook_problem",
    "info_problems",
    "memory_problem",
]
