"""What xpu-smi prints, as data. Knows its formats and their variants; runs nothing."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

#: how many fields a line of `xpu-smi -m` has at least; newer tools print ten more
FIELDS_MIN = 22
#: versions that are not the driver's or runtime's own: what the CUDA shim claims to be
SHIM_DRIVERS = (515, 525, 535, 550)
SHIM_RUNTIMES = (10, 11, 12)


class Card(NamedTuple):
    """One card as its tool describes it."""

    number: int  #: of /dev/xpuN
    product: str
    memory_mib_used: int
    memory_mib_total: int
    temperature_c: str
    power_w: str
    utilization: str
    firmware: str


class Versions(NamedTuple):
    """What a tool says; None: nothing, or a number that is not its own."""

    driver: str | None
    runtime: str | None


def machine_cards(text: str) -> tuple[Card, ...]:
    """The cards of `xpu-smi -m`: a line each, of fields quoted as a shell quotes them.

    Raises:
        ValueError: a line that is no card, with the line.
    """
    return tuple(_machine_card(line) for line in text.splitlines() if line.strip())


def _machine_card(line: str) -> Card:
    fields = shlex.split(line)
    if len(fields) < FIELDS_MIN:
        message = f"xpu-smi -m: {len(fields)} fields, at least {FIELDS_MIN} were expected: {line!r}"
        raise ValueError(message)
    return Card(
        number=int(fields[1]),
        product=fields[21],
        memory_mib_used=int(float(fields[17])),
        memory_mib_total=int(float(fields[18])),
        temperature_c=fields[4],
        power_w=fields[8],
        utilization=fields[19],
        firmware=fields[20],
    )


def query_cards(text: str) -> tuple[Card, ...]:
    """The cards of `xpu-smi -q`: indented keys and values, one block for each card."""
    return tuple(_query_card(block) for block in _blocks(text))


def _blocks(text: str) -> Iterator[str]:
    """The text from each product's name to the next one's."""
    starts = [found.start() for found in re.finditer(r"^\s*Product Name\s*:", text, re.MULTILINE)]
    for start, stop in pairwise([*starts, len(text)]):
        yield text[start:stop]


def _query_card(block: str) -> Card:
    # the second group of keys named Used and Total is the L3's, so the memory's own group is looked at
    memory = block[block.find("Memory Usage") :]
    return Card(
        number=int(_value(block, "Minor Number", "0")),
        product=_value(block, "Product Name", ""),
        memory_mib_used=_mib(_value(memory, "Used", "0")),
        memory_mib_total=_mib(_value(memory, "Total", "0")),
        temperature_c=_number(_value(block, "Xpu Current Temp", "")),
        power_w=_number(_value(block, "Power Draw", "")),
        utilization=_number(_value(block, "Xpu", "")),
        firmware=_value(block, "Firmware Version", ""),
    )


def versions(text: str) -> Versions:
    """Driver and runtime from any of the tool's outputs, without what the CUDA shim says of itself."""
    driver = _version(text, "Driver Version")
    runtime = _version(text, "XPU-RT Version")
    return Versions(
        None if _major(driver) in SHIM_DRIVERS else driver, None if _major(runtime) in SHIM_RUNTIMES else runtime
    )


def kernel_version(text: str) -> str | None:
    """The driver's version from /proc/kunlun/version."""
    found = re.search(r"\d+(?:\.\d+)+", text)
    return found.group() if found else None


def _version(text: str, name: str) -> str | None:
    found = re.search(rf"{name}\s*:\s*(\d+(?:\.\d+)*)", text)
    return found.group(1) if found else None


def _major(version: str | None) -> int | None:
    return None if version is None else int(version.partition(".")[0])


def _value(block: str, key: str, missing: str) -> str:
    found = re.search(rf"^\s*{key}\s*:\s*(.*?)\s*$", block, re.MULTILINE)
    return found.group(1) if found else missing


def _number(text: str) -> str:
    return text.partition(" ")[0]


def _mib(text: str) -> int:
    return int(float(_number(text) or 0))


__all__ = ["Card", "Versions", "kernel_version", "machine_cards", "query_cards", "versions"]
