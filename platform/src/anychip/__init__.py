"""Serve large language models on any chip from one declarative recipe. Knows no vendor and imports nothing heavy."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from anychip.engine.engine import Engine

try:
    __version__ = version("anychip")
except PackageNotFoundError:  # run from a source tree that was never installed
    __version__ = "0.0.0+source"


def __getattr__(name: str) -> object:
    """Import the engine, and with it torch, only when somebody asks for it."""
    if name == "Engine":
        from anychip.engine.engine import Engine

        return Engine
    raise AttributeError(f"module 'anychip' has no attribute {name!r}")


__all__ = ["Engine", "__version__"]
