"""The vendor's fused ops: found by name, told apart by signature, called with a trail. Knows no op's meaning."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

from anychip_kunlun.detect import OPS
from anychip_kunlun.stack import Stack
from anychip_kunlun.trail import Trail


class VendorOps:
    """kunlun_ops, imported when an op of it is first looked for.

    Attributes:
        device_index: of the device that was opened; the current device is a thread's own and is 0 in a new one.
    """

    def __init__(self, stack: Callable[[], Stack], trail: Trail) -> None:
        self._stack = stack
        self._thread = threading.local()
        self._functions: dict[str, Callable[..., Any] | None] = {}
        self._parameters: dict[str, frozenset[str]] = {}
        self._module: ModuleType | None = None
        self.trail = trail
        self.device_index = 0

    @property
    def stack(self) -> Stack:
        return self._stack()

    def has(self, *names: str) -> bool:
        """Whether all of these ops are there."""
        return all(self._find(name) is not None for name in names)

    def parameters(self, name: str) -> frozenset[str]:
        """The names of an op's parameters, which tell generations apart."""
        if name not in self._parameters:
            function = self._find(name)
            self._parameters[name] = frozenset() if function is None else frozenset(_names(function))
        return self._parameters[name]

    def call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Run an op on the opened device.

        Raises:
            RuntimeError: it is not there, or refuses its arguments; with its name.
        """
        function = self._find(name)
        if function is None:
            message = f"kunlun_ops has no {name}"
            raise RuntimeError(message)
        self.trail.check()
        self.enter()
        self.trail.last_op = f"kunlun_ops.{name}"
        try:
            return function(*args, **kwargs)
        except (ValueError, TypeError) as error:
            message = f"kunlun_ops.{name}: {error}"
            raise RuntimeError(message) from error

    def enter(self) -> None:
        """Make the opened device the calling thread's current one."""
        if getattr(self._thread, "index", None) != self.device_index:
            self.stack.accelerator.set_device(self.device_index)
            self._thread.index = self.device_index

    def _find(self, name: str) -> Callable[..., Any] | None:
        if name not in self._functions:
            module = self._loaded()
            self._functions[name] = None if module is None else getattr(module, name, None)
        return self._functions[name]

    def _loaded(self) -> ModuleType | None:
        if self._module is None:
            known = [name for name in OPS if self.stack.has_module(name)]
            self._module = self.stack.load(known[0]) if known else None
        return self._module


def _names(function: Callable[..., Any]) -> tuple[str, ...]:
    try:
        return tuple(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return ()  # a builtin without a signature is taken for the newer generation


__all__ = ["VendorOps"]
