"""`platform devices`: what the installed backends find on this machine, and how fast it is. Knows how it is shown."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import RenderableType

from anychip.cli.output import Output, OutputOption, emit, progress_console, table

if TYPE_CHECKING:
    from anychip.backends import Probed
    from anychip_sdk.speeds import KernelSpeed, Speeds

_RATES = ("KERNEL", "CALL us", "WEIGHTS GB/s", "GFLOP/s", "KV GB/s", "G SCORES/s", "ATTENTION GFLOP/s", "MOVED GB/s")
_HEADERS = ("BACKEND", "DEVICE", "PRODUCT", "MEMORY", "FREE", "VERSIONS", "ATTRIBUTES")


def devices(
    emulate: Annotated[
        str | None, typer.Option("--emulate", metavar="BACKEND", help="Show the devices of this backend's emulator.")
    ] = None,
    measure: Annotated[
        str | None,
        typer.Option("--measure", metavar="BACKEND", help="Measure how fast its first device is, for plans; a minute."),
    ] = None,
    threads: Annotated[
        int | None, typer.Option("--threads", min=1, help="Measure with so many host threads, as backend.threads says.")
    ] = None,
    output: OutputOption = Output.text,
) -> None:
    """Probe every installed backend; one that is broken is listed with its reason."""
    if measure is not None:
        _measure(measure, threads, output)
        return
    from anychip.backends import probe_all, probe_emulator

    probed = probe_all() if emulate is None else (probe_emulator(emulate),)
    found = [row for one in probed for row in _devices_json(one)]
    without = [_without_json(one) for one in probed if not one.devices]
    emit({"devices": found, "without": without}, output, text=_text(probed))


def reason(one: Probed) -> str:
    """Why a backend shows no device."""
    if one.error is not None:
        return one.error.message.partition("\n")[0]
    absence = one.backend.info.absence if one.backend is not None else ""
    return absence or "no device present"


def _measure(name: str, threads: int | None, output: Output) -> None:
    """Measure a backend's first device and keep what came out, in a process that has the backend's variables."""
    from dataclasses import asdict

    from anychip.backends import NATIVE, choose
    from anychip.forecast.speeds import Subject, keep
    from anychip.measure.measure import measure
    from anychip_sdk.environment import missing_variables, worker_environment

    library = name if Path(name).suffix == ".so" else None
    backend = choose(NATIVE if library else name, library).backend
    if missing_variables(backend.info.environment):
        options = [] if threads is None else ["--threads", str(threads)]
        command = [sys.executable, "-m", "anychip", "devices", "--measure", name, *options, "--output", output.value]
        os.execve(sys.executable, command, worker_environment(backend.info.environment))
    device = backend.find_device(None)
    console = progress_console()
    measured = measure(backend, device, threads, lambda what: console.print(what, markup=False, highlight=False))
    path = keep(measured, Subject(backend, device, threads, library))
    found = [asdict(speeds) for speeds in measured]
    emit({"device": device.name, "path": str(path), "speeds": found}, output, text=_speeds_text(measured, path))


def _speeds_text(measured: Sequence[Speeds], path: Path) -> RenderableType:
    from rich.console import Group

    parts: list[RenderableType] = []
    for speeds in measured:
        rows = [(name, *_rates(speed)) for name, speed in speeds.kernels.items()]
        engine = f"the engine: {1e6 * speeds.step_s:.0f} us a step and {1e6 * speeds.request_s:.1f} us a request in it"
        parts += [table(_RATES, rows), engine, speeds.told]
    return Group(*parts, f"kept in {path}")


def _rates(speed: KernelSpeed) -> tuple[str, ...]:
    giga = (
        speed.weight_bytes_per_s,
        speed.flops_per_s,
        speed.kv_bytes_per_s,
        speed.scores_per_s,
        speed.attention_flops_per_s,
        speed.moved_bytes_per_s,
    )
    return f"{1e6 * speed.call_s:.1f}", *("" if rate is None else f"{rate / 1e9:.1f}" for rate in giga)


def _without_json(one: Probed) -> dict[str, object]:
    return {"backend": one.installed.name, "broken": one.error is not None, "reason": reason(one)}


def _devices_json(one: Probed) -> list[dict[str, object]]:
    return [
        {
            "backend": one.installed.name,
            "emulated": _is_emulated(one),
            "name": device.name,
            "product": device.product,
            "memory_bytes_total": device.memory_bytes_total,
            "memory_bytes_free": device.memory_bytes_free,
            "versions": dict(device.versions),
            "attributes": dict(device.attributes),
        }
        for device in one.devices
    ]


def _is_emulated(one: Probed) -> bool:
    return one.backend is not None and one.backend.emulated


def _text(probed: tuple[Probed, ...]) -> RenderableType:
    from rich.console import Group

    rows = [
        (
            one.installed.name + (" EMULATED" if _is_emulated(one) else ""),
            device.name,
            device.product,
            _gib(device.memory_bytes_total),
            _gib(device.memory_bytes_free),
            _pairs(device.versions),
            _pairs(device.attributes),
        )
        for one in probed
        for device in one.devices
    ]
    lines = [
        f"{one.installed.name}: {'broken: ' if one.error else ''}{reason(one)}" for one in probed if not one.devices
    ]
    if not probed:
        return "no backend is installed"
    return Group(*([table(_HEADERS, rows)] if rows else []), *lines)


def _gib(nbytes: int) -> str:
    return f"{nbytes / 2**30:.1f} GiB"


def _pairs(values: object) -> str:
    return " ".join(f"{name}={value}" for name, value in values.items()) if isinstance(values, dict) else ""


def register(app: typer.Typer) -> None:
    app.command()(devices)


__all__ = ["devices", "reason", "register"]
