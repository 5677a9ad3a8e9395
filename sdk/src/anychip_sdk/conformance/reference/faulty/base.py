"""How a fault is declared: a broken device or plugin, and the requirement that must find it. Knows no fault."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from anychip_sdk.conformance.reference.device import AsyncReferenceDevice
from anychip_sdk.conformance.reference.plugin import AsyncReferencePlugin

D = TypeVar("D", bound="type[AsyncReferenceDevice]")
P = TypeVar("P", bound="type[AsyncReferencePlugin]")


@dataclass(frozen=True)
class Fault:
    """One way to be wrong.

    Attributes:
        name: in words, with underscores.
        kills: the requirements that must find it; others may.
        plugin: the reference chip's plugin with it.
        text: what is wrong, one line.
        raises: parts of "Type: text" of what the fault itself raises; a kill by any other exception is an accident.
    """

    name: str
    kills: tuple[str, ...]
    plugin: type[AsyncReferencePlugin]
    text: str
    raises: tuple[str, ...] = ()


FAULTS: dict[str, Fault] = {}


def device_fault(*kills: str, raises: Sequence[str] = ()) -> Callable[[D], D]:
    """Declare a broken device; its class's name and docstring name the fault."""

    def wrap(broken: D) -> D:
        plugin = type(f"{broken.__name__}Plugin", (AsyncReferencePlugin,), {"device_class": broken})
        _add(broken, kills, plugin, raises)
        return broken

    return wrap


def plugin_fault(*kills: str, raises: Sequence[str] = ()) -> Callable[[P], P]:
    """Declare a broken plugin."""

    def wrap(broken: P) -> P:
        _add(broken, kills, broken, raises)
        return broken

    return wrap


def _add(broken: type, kills: tuple[str, ...], plugin: type[AsyncReferencePlugin], raises: Sequence[str]) -> None:
    name = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in broken.__name__).strip("_")
    FAULTS[name] = Fault(name, kills, plugin, (broken.__doc__ or "").strip(), tuple(raises))


__all__ = ["FAULTS", "Fault", "device_fault", "plugin_fault"]
