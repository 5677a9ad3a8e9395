"""The chips of the family by the names that their tools print. Knows sizes and what is certified; asks no device."""

from __future__ import annotations

from typing import NamedTuple

MIB = 1 << 20


class Chip(NamedTuple):
    """One product.

    Attributes:
        name: how the tools' product name begins, e.g. "P800 OAM".
        architecture: KL1, KL2 (XPU2) or KL3 (XPU3).
        memory_mib: of one device, as sold; what a device says of itself counts.
        has_kernels: the op libraries run on it. On others every op is the reference's.
    """

    name: str
    architecture: str
    memory_mib: int
    has_kernels: bool = False


CHIPS: tuple[Chip, ...] = (
    Chip("P800", "KL3", 98304, has_kernels=True),
    Chip("RG800", "KL2", 32768),
    Chip("R480", "KL2", 32768),  # a board of eight R300
    Chip("R300", "KL2", 32768),
    Chip("R200-8F", "KL2", 32768),
    Chip("R200", "KL2", 16384),
    Chip("K200", "KL1", 16384),
    Chip("K100", "KL1", 8192),
)


def chip_of(product: str) -> Chip | None:
    """The chip of a product name; None: none that is known."""
    return next((chip for chip in CHIPS if product.upper().startswith(chip.name)), None)


__all__ = ["CHIPS", "MIB", "Chip", "chip_of"]
