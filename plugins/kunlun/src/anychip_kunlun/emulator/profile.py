"""Which virtual host the emulator imitates: cards, generation, quirks. Knows settings; knows not how they act."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from anychip_sdk.errors import UsageError

#: holds the settings, so that they reach every process of a service
VARIABLE = "ANYCHIP_KUNLUN_EMULATE"

Generation = Literal["torch251", "torch290"]
Smi = Literal["plain", "no-runtime", "cuda-runtime", "short", "no-machine-readable", "missing"]
Nodes = Literal["all", "none", "no-control"]

UNITS = {"": 1, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30}


@dataclass(frozen=True)
class Fault:
    """A kernel that dies on the device; the host hears of it at the next synchronize."""

    code: int  #: 700 (illegal memory access) or 714 (kernel exception)
    launch: int  #: the number of the launch, counted from 1 over all cards
    op: str | None = None  #: count launches of this op only

    @classmethod
    def parse(cls, text: str) -> Fault:
        found = re.fullmatch(r"(\d+)@(\d+)(?::(\w+))?", text)
        if found is None:
            message = f"'{text}' is no CODE@LAUNCH or CODE@LAUNCH:OP"
            raise ValueError(message)
        return cls(int(found[1]), int(found[2]), found[3])


@dataclass(frozen=True)
class Profile:
    """A virtual host. The defaults are a healthy one with the newer generation of the vendor's wheels.

    Attributes:
        chip: P800, R300 or R200.
        cards: how many.
        memory_bytes: of each card; scaled down from the chip's own so that the host can back it.
        generation: of the wheels: torch251 or torch290.
        host: the folder that is the virtual host, shared by all processes that name it; None: one of its own.
        driver, runtime: the versions that the tools report.
        nodes: which device nodes exist.
        smi: how `xpu-smi` answers.
        hook_applied: False: torch is not patched and nothing says so.
        visible_mismatch: the two variables of visible devices contradict each other.
        missing_modules, missing_ops: what can't be imported, or lacks in kunlun_ops.
        old_ops_name: the ops answer to xtorch_ops only.
        linear_columns_right: fp16 products with more output columns are wrong beyond it.
        bf16_slowdown: how many times longer bf16 products take.
        turned_swiglu: the gate is taken from the second half.
        plain_alpha: prefill_attention takes alpha as the whole scale.
        compile_s: what the first launch of an op in a dtype takes.
        is_fragmenting: freed ranges of device memory don't merge.
        blocking_streams: a stream's work is done before its call returns.
        has_graphs, garbled_replay: graph capture is there; what it replays is wrong.
        has_address_windows: False: collectives fail on an address window.
        fault: one deferred error.
        fault_file: the deferred error happens at the next launch once this file exists, and removes it.
    """

    chip: str = "P800"
    cards: int = 1
    memory_bytes: int = 2 << 30
    generation: Generation = "torch290"
    host: Path | None = None
    driver: str = "5.0.21.26"
    runtime: str = "5.0.21"
    nodes: Nodes = "all"
    smi: Smi = "plain"
    hook_applied: bool = True
    visible_mismatch: bool = False
    missing_modules: tuple[str, ...] = ()
    missing_ops: tuple[str, ...] = ()
    old_ops_name: bool = False
    linear_columns_right: int | None = None
    bf16_slowdown: float = 1.0
    turned_swiglu: bool = False
    plain_alpha: bool = False
    compile_s: float = 0.0
    is_fragmenting: bool = False
    blocking_streams: bool = False
    has_graphs: bool = True
    garbled_replay: bool = False
    has_address_windows: bool = True
    fault: Fault | None = None
    fault_file: Path | None = None

    @classmethod
    def parse(cls, text: str) -> Profile:
        """Read a comma list of settings, e.g. "torch251,cards=2,memory=64MiB,missing-op=swiglu".

        Raises:
            UsageError: naming every part that is not understood.
        """
        values: dict[str, Any] = {}
        problems = []
        for part in filter(None, (piece.strip() for piece in text.split(","))):
            name, _, value = part.partition("=")
            try:
                SETTINGS[name].apply(values, value)
            except KeyError:
                problems.append(f"'{name}' is no setting")
            except ValueError as error:
                problems.append(f"{part}: {error}")
        if problems:
            known = ", ".join(sorted(SETTINGS))
            message = f"{VARIABLE}: {'; '.join(problems)}"
            raise UsageError(message, hint=f"settings: {known}")
        return cls(**values)

    def replace(self, **changes: Any) -> Profile:
        return dataclasses.replace(self, **changes)


class Setting(NamedTuple):
    """One word of the comma list."""

    apply: Callable[[dict[str, Any], str], None]  #: takes the fields so far and the text behind '='
    meaning: str


def _flag(field: str, value: object, meaning: str) -> Setting:
    def apply(values: dict[str, Any], text: str) -> None:
        if text:
            message = "takes no value"
            raise ValueError(message)
        values[field] = value

    return Setting(apply, meaning)


def _value(field: str, read: Callable[[str], Any], meaning: str) -> Setting:
    def apply(values: dict[str, Any], text: str) -> None:
        values[field] = read(text)

    return Setting(apply, meaning)


def _more(field: str, meaning: str) -> Setting:
    def apply(values: dict[str, Any], text: str) -> None:
        if not text:
            message = "needs a name"
            raise ValueError(message)
        values[field] = (*values.get(field, ()), text)

    return Setting(apply, meaning)


def _bytes(text: str) -> int:
    found = re.fullmatch(r"(\d+)\s*([KMG]iB)?", text, re.IGNORECASE)
    if found is None:
        message = "expected bytes, e.g. 64MiB"
        raise ValueError(message)
    return int(found[1]) * UNITS[(found[2] or "").upper()]


def _one_of(*allowed: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in allowed:
            message = f"expected one of {', '.join(allowed)}"
            raise ValueError(message)
        return text

    return read


def _count(text: str) -> int:
    count = int(text)
    if count < 1:
        message = "expected 1 or more"
        raise ValueError(message)
    return count


SETTINGS = {
    "addr-window": _flag("has_address_windows", False, "collectives fail on an address window"),
    "bf16-slow": _value("bf16_slowdown", float, "bf16 products take that many times longer"),
    "blocking-streams": _flag("blocking_streams", True, "no work is ever deferred"),
    "cards": _value("cards", _count, "how many cards"),
    "chip": _value("chip", _one_of("P800", "R300", "R200"), "which chip"),
    "driver": _value("driver", str, "the driver's version"),
    "fault": _value("fault", Fault.parse, "a deferred error: 700 or 714 at that launch (of that op)"),
    "fault-file": _value("fault_file", Path, "a deferred error whenever this file exists"),
    "fragmenting": _flag("is_fragmenting", True, "freed device memory doesn't merge"),
    "garbled-graph": _flag("garbled_replay", True, "replayed graphs give wrong results"),
    "host": _value("host", Path, "the folder of the virtual host"),
    "memory": _value("memory_bytes", _bytes, "of each card, e.g. 64MiB"),
    "missing-module": _more("missing_modules", "a vendor module that can't be imported"),
    "missing-op": _more("missing_ops", "a function that kunlun_ops lacks"),
    "no-graph": _flag("has_graphs", False, "graphs can't be captured"),
    "nodes": _value("nodes", _one_of("all", "none", "no-control"), "which device nodes exist"),
    "plain-alpha": _flag("plain_alpha", True, "prefill_attention takes alpha as the whole scale"),
    "runtime": _value("runtime", str, "the runtime's version"),
    "silent-hook": _flag("hook_applied", False, "torch is not patched, silently"),
    "slow-compile": _value("compile_s", float, "seconds that the first launch of an op takes"),
    "smi": _value(
        "smi",
        _one_of("plain", "no-runtime", "cuda-runtime", "short", "no-machine-readable", "missing"),
        "how xpu-smi answers",
    ),
    "torch251": _flag("generation", "torch251", "the older generation of wheels"),
    "torch290": _flag("generation", "torch290", "the newer generation of wheels"),
    "turned-swiglu": _flag("turned_swiglu", True, "swiglu takes its gate from the second half"),
    "visible-mismatch": _flag("visible_mismatch", True, "the variables of visible devices contradict each other"),
    "wrong-linear": _value("linear_columns_right", _count, "fp16 products are wrong beyond that many columns"),
    "xtorch-ops": _flag("old_ops_name", True, "kunlun_ops has its old name"),
}

__all__ = ["SETTINGS", "VARIABLE", "Fault", "Generation", "Nodes", "Profile", "Setting", "Smi"]
