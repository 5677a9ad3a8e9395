"""`platform devices`: what the installed backends find on this machine. Knows how it is shown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import RenderableType

from anychip.cli.output import Output, OutputOption, emit, table

if TYPE_CHECKING:
    from anychip.backends import Probed

_HEADERS = ("BACKEND", "DEVICE", "PRODUCT", "MEMORY", "FREE", "VERSIONS", "ATTRIBUTES")


def devices(
    emulate: Annotated[
        str | None, typer.Option("--emulate", metavar="BACKEND", help="Show the devices of this backend's emulator.")
    ] = None,
    output: OutputOption = Output.text,
) -> None:
    """Probe every installed backend; one that is broken is listed with its reason."""
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
