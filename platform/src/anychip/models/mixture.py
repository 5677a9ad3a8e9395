"""What a mixture of experts is, and what checkpoints call its tensors. Knows names and numbers; builds no module."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from anychip.models.source import Source


@dataclass(frozen=True)
class Routing:
    """How experts are chosen and weighed: the plain arguments of `router_topk`."""

    score: str = "softmax"
    renormalise: str = "none"
    groups: int = 1
    top_groups: int = 1
    group_score: str = "max"
    floor: float = 0.0
    factor: float = 1.0


@dataclass(frozen=True)
class Mixture:
    """The experts of a layer.

    `inner` and `shared_inner` are widths of one expert and of the shared one, which is gated or weighs 1; 0: there is
    none. The router may have a bias for its logits and one for the choice, experts may have biases.
    """

    experts: int
    per_token: int
    inner: int
    routing: Routing = Routing()
    shared_inner: int = 0
    is_shared_gated: bool = False
    has_logit_bias: bool = False
    has_selection_bias: bool = False
    has_biases: bool = False
    activation: str = "silu"

    def smaller(self) -> Mixture:
        """The same mixture with few experts, for verification: twice as many as a token needs, in whole groups."""
        of_group = max(2, -(-2 * self.per_token // self.routing.groups))
        return replace(self, experts=min(self.experts, self.routing.groups * of_group))


class Stacks(NamedTuple):
    """Tensors that hold all experts, within a layer: [experts, 2 * inner, hidden] and [experts, hidden, inner]."""

    gate_up: str
    down: str
    #: both are [experts, in, out], and gate and up take turns
    is_turned: bool = False


class ExpertNames(NamedTuple):
    """What a family's checkpoints call a mixture's tensors, behind `model.layers.N.`.

    Attributes:
        expert: a matrix of one expert, with {expert} and {part}; None: they are stacked always.
        parts: gate, up and down.
        stacks: of all experts; None: they never are.
        apart: a stack of one part, with {part}, as GGUF files have it.
        renamed: what else is called otherwise than in the modules.
    """

    expert: str | None = "mlp.experts.{expert}.{part}.weight"
    parts: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj")
    stacks: Stacks | None = Stacks("mlp.experts.gate_up_proj", "mlp.experts.down_proj")
    apart: str = "mlp.experts.{part}.weight"
    renamed: tuple[tuple[str, str], ...] = ()


def layout_of(names: ExpertNames, tensors: Collection[str]) -> str:
    """each: a tensor per expert; stacked: gate and up in one tensor; apart: a tensor for each part."""
    apart = names.apart.format(part=names.parts[0])
    if any(tensor.endswith(apart) for tensor in tensors):
        return "apart"
    if names.stacks is not None and any(tensor.endswith(names.stacks.gate_up) for tensor in tensors):
        return "stacked"
    return "stacked" if names.expert is None else "each"


def expert_sources(
    names: ExpertNames, layout: str, prefix: str, shape: tuple[int, ...], *, is_down: bool
) -> tuple[Source, ...]:
    """Where the experts' matrices stand: [experts, 2 * inner, hidden], gate first, or [experts, hidden, inner]."""
    if layout == "stacked":
        assert names.stacks is not None
        name = prefix + (names.stacks.down if is_down else names.stacks.gate_up)
        return tuple(_stacked(names.stacks, name, shape, is_down=is_down))
    experts, rows, columns = shape
    parts = names.parts[2:] if is_down else names.parts[:2]
    height = rows // len(parts)
    if layout == "apart":
        stacks = [(prefix + names.apart.format(part=part), (experts, height, columns)) for part in parts]
        return tuple(
            Source(name, whole, range(expert * height, (expert + 1) * height))
            for expert in range(experts)
            for name, whole in stacks
        )
    assert names.expert is not None
    return tuple(
        Source(prefix + names.expert.format(expert=expert, part=part), (height, columns))
        for expert in range(experts)
        for part in parts
    )


def _stacked(stacks: Stacks, name: str, shape: tuple[int, ...], *, is_down: bool) -> Iterator[Source]:
    experts, rows, columns = shape
    whole = (experts, columns, rows) if stacks.is_turned else shape
    if is_down or not stacks.is_turned:
        yield Source(name, whole, transposed=stacks.is_turned)
        return
    for first in range(0, experts * rows, rows):
        for odd in (0, 1):
            yield Source(name, whole, range(first + odd, first + rows, 2), transposed=True)


def bias_sources(stacks: Stacks, prefix: str, shape: tuple[int, ...], *, is_down: bool) -> tuple[Source, ...]:
    """Of stacks that have biases: [experts, 2 * inner] with gate first, or [experts, hidden]."""
    name = f"{prefix}{stacks.down if is_down else stacks.gate_up}_bias"
    if is_down or not stacks.is_turned:
        return (Source(name, shape),)
    experts, columns = shape
    return tuple(
        Source(name, shape, range(expert, expert + 1), range(odd, columns, 2))
        for expert in range(experts)
        for odd in (0, 1)
    )


__all__ = ["ExpertNames", "Mixture", "Routing", "Stacks", "bias_sources", "expert_sources", "layout_of"]
