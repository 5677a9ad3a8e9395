"""Memory for what instructions make. Knows who needs what how long; knows no instruction."""

from __future__ import annotations

from typing import Any

import torch


class Buffers:
    """Tensors [tokens, width] for what an instruction makes, used again when nobody needs it any more."""

    def __init__(self, tokens: int) -> None:
        self._tokens = tokens
        self._all: list[torch.Tensor] = []
        self._free: list[torch.Tensor] = []

    def take(self, width: int, dtype: torch.dtype) -> torch.Tensor:
        for index, one in enumerate(self._free):
            if one.shape[1] == width and one.dtype == dtype:
                return self._free.pop(index)
        with torch.inference_mode(False):
            made = torch.zeros((self._tokens, width), dtype=dtype)
        self._all.append(made)
        return made

    def keep(self, live: set[int]) -> None:
        """Only tensors at these addresses are needed further on."""
        self._free = [one for one in self._all if one.untyped_storage().data_ptr() not in live]

    @property
    def all(self) -> list[torch.Tensor]:
        return self._all


def addresses(value: Any) -> list[int]:
    """Of the memory behind a tensor, or behind those in a tuple."""
    if isinstance(value, torch.Tensor):
        return [value.untyped_storage().data_ptr()]
    if isinstance(value, (tuple, list)):
        return [address for one in value for address in addresses(one)]
    return []


__all__ = ["Buffers", "addresses"]
