"""Seeds and random numbers: each drawn token has its own, whatever else runs."""

from __future__ import annotations

import os

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15


def draw_seed() -> int:
    return int.from_bytes(os.urandom(8), "little")


def derive_seed(base_seed: int, index: int) -> int:
    """The 64-bit seed of one completion; mixed, so that (seed 1, index 1) is not (seed 2, index 0)."""
    return _mix((_mix(base_seed & _MASK) + index) & _MASK)


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) with 53 random bits, from a counter: no state, so any order of calls gives the same.

    So a sequence that is retracted and resumed, or has other batch mates, draws the same numbers.

    Args:
        seed: of the completion.
        position: of the token in its output.
    """
    return (_mix((seed + (position + 1) * _GOLDEN) & _MASK) >> 11) * 2.0**-53


def _mix(value: int) -> int:
    """The finaliser of splitmix64: every input bit flips each output bit with probability near one half."""
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


__all__ = ["derive_seed", "draw_seed", "uniform"]
