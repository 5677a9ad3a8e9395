"""What the vendor's command-line tools print about the virtual host. Knows formats; knows nothing of who reads them."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from typing import NamedTuple

from anychip_kunlun.emulator.machine import Machine
from anychip_kunlun.emulator.modules import versions
from anychip_kunlun.emulator.profile import Profile

MIB = 1 << 20
FIELDS, FIELDS_SHORT = 32, 22


class Board(NamedTuple):
    product: str
    architecture: str


BOARDS = {
    "P800": Board("P800 OAM", "KL3"),
    "R300": Board("R300", "KL2"),
    "R200": Board("R200", "KL2"),
}


class Tools:
    """`xpu-smi` and `python -m torch_xmlir --doctor`."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def run(self, command: Sequence[str]) -> str:
        """A tool's output.

        Raises:
            FileNotFoundError: there is no such tool.
            subprocess.CalledProcessError: it refuses its arguments.
        """
        name, *arguments = command
        if name.endswith("xpu-smi") and self._machine.profile.smi != "missing":
            return self._xpu_smi(command, arguments)
        if "python" in name and arguments == ["-m", "torch_xmlir", "--doctor"]:
            return self._doctor()
        message = f"[Errno 2] No such file or directory: '{name}'"
        raise FileNotFoundError(message)

    def _xpu_smi(self, command: Sequence[str], arguments: Sequence[str]) -> str:
        smi = self._machine.profile.smi
        if not arguments:
            return self._table()
        if arguments == ["-L"]:
            return "".join(f"XPU {index}: {self._board.product}\n" for index, _ in enumerate(self._machine.cards))
        if arguments == ["-m"] and smi != "no-machine-readable":
            return "".join(self._fields(index) for index, _ in enumerate(self._machine.cards))
        if arguments[0] == "-q":
            return self._query(arguments[1:])
        if arguments == ["topo", "-m"]:
            return self._topology()
        raise subprocess.CalledProcessError(2, list(command), stderr=f"xpu-smi: unknown option {arguments[0]}")

    @property
    def _board(self) -> Board:
        return BOARDS[self._machine.profile.chip]

    def _header(self) -> str:
        driver, runtime = shown_versions(self._machine.profile)
        return f"XPU-SMI    Driver Version: {driver}    XPU-RT Version: {runtime}"

    def _memory(self, index: int) -> tuple[int, int]:
        """MiB used and total of a card."""
        driver = self._machine.cards[index].allocator.driver
        return (driver.capacity - driver.free) // MIB, driver.capacity // MIB

    def _table(self) -> str:
        rows = []
        for index, _ in enumerate(self._machine.cards):
            used, total = self._memory(index)
            rows.append(f"|   {index}  {self._board.product}   | {_bus(index)} |  {used}MiB / {total}MiB |  0%  |")
        return "\n".join([f"| {self._header()} |", *rows, ""])

    def _fields(self, index: int) -> str:
        """Quoted as a shell quotes: the product's name holds a space."""
        used, total = self._memory(index)
        fields = [_bus(index), index, index, f"EMULATED{index:04}", 40, 38, 41, 39, 86, *([1200] * 6), 0, 96]
        fields += [used, total, 0, "0001.0015", f'"{self._board.product}"', 0, *([0] * 9)]
        short = self._machine.profile.smi == "short"
        return " ".join(str(field) for field in fields[: FIELDS_SHORT if short else FIELDS]) + "\n"

    def _query(self, arguments: Sequence[str]) -> str:
        wanted = [int(text) for text in "".join(arguments).replace("--id=", "").replace("-i", "").split()]
        driver, runtime = shown_versions(self._machine.profile)
        lines = [f"Driver Version                : {driver}", f"XPU-RT Version                : {runtime}"]
        for index, _ in enumerate(self._machine.cards):
            if not wanted or index in wanted:
                lines += self._card_lines(index)
        return "\n".join(["==============XPU-SMI LOG==============", *lines, ""])

    def _card_lines(self, index: int) -> list[str]:
        used, total = self._memory(index)
        return [
            f"XPU {_bus(index)}",
            f"    Product Name              : {self._board.product}",
            f"    Product Architecture      : {self._board.architecture}",
            f"    Serial Number             : EMULATED{index:04}",
            f"    XPU UUID                  : GPU-00000000-0000-0000-0000-{index:012}",
            f"    Minor Number              : {index}",
            f"    OAM Id                    : {index}",
            f"    Bus Id                    : {_bus(index)}",
            "    Memory Usage",
            f"        Total                 : {total} MiB",
            "        Reserved              : 0 MiB",
            f"        Used                  : {used} MiB",
            f"        Free                  : {total - used} MiB",
            "    L3 Usage",
            "        Total                 : 96 MiB",
            "        Used                  : 0 MiB",
            "    Utilization",
            "        Xpu                   : 0 %",
            "    Temperature",
            "        Xpu Current Temp      : 40 C",
            "    Power Readings",
            "        Power Draw            : 86.00 W",
            "    Processes                 : None",
        ]

    def _topology(self) -> str:
        link = "XPULINK" if self._machine.profile.has_address_windows else "PHB"
        names = [f"XPU{index}" for index, _ in enumerate(self._machine.cards)]
        rows = ["\t".join([name, *("X" if name == other else link for other in names)]) for name in names]
        return "\n".join(["\t" + "\t".join(names), *rows, ""])

    def _doctor(self) -> str:
        profile = self._machine.profile
        found = {"driver": profile.driver, "runtime": profile.runtime, **versions(profile)}
        return json.dumps(found, indent=2) + "\n"


def shown_versions(profile: Profile) -> tuple[str, str]:
    """Driver and runtime as the tool's variant shows them: some show what the CUDA shim claims to be."""
    if profile.smi == "no-runtime":
        return "515.58", "N/A"
    if profile.smi == "cuda-runtime":
        return profile.driver, "10.2"
    return profile.driver, profile.runtime


def _bus(index: int) -> str:
    return f"0000:{0x10 + index:02x}:00.0"


__all__ = ["BOARDS", "FIELDS", "Board", "Tools", "shown_versions"]
