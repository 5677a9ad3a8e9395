"""`platform status`: what the services of this user are doing. Knows how it is shown."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import RenderableType

from anychip.cli.output import Output, OutputOption, emit, table
from anychip_sdk.errors import UsageError

if TYPE_CHECKING:
    from anychip.deploy.status import ServiceStatus

_HEADERS = ("NAME", "STATE", "REVISION", "UPTIME", "ENDPOINT", "MODEL", "BACKEND", "RUNNING", "WAITING", "KV USE")


def status(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="One service; all if not given.")] = None,
    output: OutputOption = Output.text,
) -> None:
    """Show the state, uptime, endpoint and load of services."""
    from anychip.deploy.known import names
    from anychip.deploy.running import running_services
    from anychip.deploy.services import pick
    from anychip.deploy.state import Store
    from anychip.deploy.status import status_of
    from anychip_sdk.home import home

    store = Store(home())
    running = running_services(store.home)
    if name is not None:
        found = [status_of(store, pick(store, name), running)]
    else:
        found = []
        for one in names(store, running):
            with contextlib.suppress(UsageError):  # its first apply has ended meanwhile, and left nothing
                found.append(status_of(store, one, running))
    emit({"services": [one.to_json() for one in found]}, output, text=_text(found))


def _text(found: list[ServiceStatus]) -> RenderableType:
    from rich.console import Group

    if not found:
        return "there is no service; platform apply RECIPE starts one"
    details = [f"{one.name}: {one.detail}" for one in found if one.detail]
    return Group(table(_HEADERS, [_row(one) for one in found]), *details)


def _row(one: ServiceStatus) -> tuple[str, ...]:
    return (
        one.name,
        one.condition,
        str(one.revision or "-"),
        duration(one.uptime_s),
        one.url or "-",
        one.model or "-",
        f"{one.backend or '-'}{' EMULATED' if one.emulated else ''}",
        _number(one.requests_running),
        _number(one.requests_waiting),
        "-" if one.kv_use is None else f"{one.kv_use:.0%}",
    )


def _number(value: int | None) -> str:
    return "-" if value is None else str(value)


def duration(seconds: float | None) -> str:
    """42s, 3m12s, 5h02m, 4d07h."""
    if seconds is None:
        return "-"
    whole = int(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02}s"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02}m"
    return f"{whole // 86400}d{whole % 86400 // 3600:02}h"


def register(app: typer.Typer) -> None:
    app.command()(status)


__all__ = ["duration", "register", "status"]
