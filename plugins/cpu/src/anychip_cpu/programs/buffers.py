"""Memory for what instructions make. Knows who needs what how long; knows no instruction."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx


class Buffers:
    """Tensors [tokens, width] for what an instruction makes, used again when nobody needs it any more."""

    def __init__(self, tokens: int, dtype: torch.dtype) -> None:
        self._tokens, self._dtype = tokens, dtype
        self._all: list[torch.Tensor] = []
        self._free: list[torch.Tensor] = []

    def take(self, width: int) -> torch.Tensor:
        for index, one in enumerate(self._free):
            if one.shape[1] == width:
                return self._free.pop(index)
        with torch.inference_mode(False):
            made = torch.zeros((self._tokens, width), dtype=self._dtype)
        self._all.append(made)
        return made

    def keep(self, live: set[int]) -> None:
        """Only tensors at these addresses are needed further on."""
        self._free = [one for one in self._all if one.untyped_storage().data_ptr() not in live]

    @property
    def all(self) -> list[torch.Tensor]:
        return self._all


def last_uses(graph: fx.Graph) -> dict[fx.Node, list[fx.Node]]:
    """For each node, the nodes whose values nobody reads behind it."""
    last = {node: node for node in graph.nodes}
    for node in graph.nodes:
        for one in node.all_input_nodes:
            last[one] = node
    dying: dict[fx.Node, list[fx.Node]] = {}
    for node, user in last.items():
        dying.setdefault(user, []).append(node)
    return dying


def addresses(value: Any) -> list[int]:
    """Of the memory behind a tensor, or behind those in a tuple."""
    if isinstance(value, torch.Tensor):
        return [value.untyped_storage().data_ptr()]
    if isinstance(value, (tuple, list)):
        return [address for one in value for address in addresses(one)]
    return []


__all__ = ["Buffers", "addresses", "last_uses"]
