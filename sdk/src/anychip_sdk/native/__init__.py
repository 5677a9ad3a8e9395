"""Backends that are shared objects behind a C interface, `anychip_backend.h`. Knows no chip, and imports no torch."""

from pathlib import Path

#: The folder of anychip_backend.h, for a compiler's -I.
INCLUDE = Path(__file__).parent

__all__ = ["INCLUDE"]
