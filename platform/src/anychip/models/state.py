"""What modules keep between steps and what they look up, as submodules without memory. Knows shapes; knows no pool."""

from __future__ import annotations

import torch
from torch import nn

from anychip_sdk.state import StateSpec, StateTensor, grouped


class State(nn.Module):
    """One module's state: a buffer per tensor, to which the engine binds the pool's.

    Attributes:
        spec: what is kept.
        group: which of the model's groups it belongs to; set by `number_states`.
    """

    def __init__(self, spec: StateSpec) -> None:
        super().__init__()
        self.spec = spec
        self.group = 0
        entry = (1, 1) if spec.kind == "paged" else (1,)
        for tensor in spec.tensors:
            self.register_buffer(tensor.name, torch.empty(*entry, *tensor.shape, device="meta"), persistent=False)


class KeysAndValues(State):
    """Keys `k` and values `v` of grouped-query attention, [kv_heads, head_dim] a token each."""

    k: torch.Tensor
    v: torch.Tensor

    def __init__(self, kv_heads: int, head_dim: int, window: int | None) -> None:
        shape = (kv_heads, head_dim)
        super().__init__(StateSpec("kv", "paged", (StateTensor("k", shape), StateTensor("v", shape)), window))


class Table(nn.Module):
    """Numbers that a model computes from its config when it is loaded, in the buffer `table`."""

    table: torch.Tensor

    def compute(self, positions: int) -> torch.Tensor:
        """The table for sequences of so many tokens, on the host."""
        raise NotImplementedError


def number_states(model: nn.Module) -> None:
    """Tell each state of a model which group of equal states it belongs to."""
    states = [module for module in model.modules() if isinstance(module, State)]
    _, places = grouped([state.spec for state in states])
    for state, (group, _) in zip(states, places, strict=True):
        state.group = group


__all__ = ["KeysAndValues", "State", "Table", "number_states"]
