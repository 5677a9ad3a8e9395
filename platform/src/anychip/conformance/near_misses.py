"""Graphs that look like a fusion's pattern and aren't, or are it with other numbers. Knows edits; runs nothing.

Each edit is made by the names of nodes, so that it can be made on any copy of the same graph.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from torch import fx

from anychip.conformance.layer import Edit
from anychip.graph.fusions import FUSIONS
from anychip.graph.ir import ModelGraph
from anychip.graph.match import Match, Pattern, find
from anychip_sdk.fusion import Fusion
from anychip_sdk.ops import Op, kv_write

SMALL = 0.01  #: a float under this is an eps
OTHER_EPS = 100.0
OTHER_SCALE = 0.5


class NearMiss(NamedTuple):
    text: str
    edit: Edit
    is_pattern: bool  #: whether it may still be rewritten, as long as the outputs are right


def places(graph: ModelGraph, fusions: Iterable[Fusion]) -> list[tuple[Pattern, Match]]:
    """Where any of the fusions stands."""
    found = []
    for fusion in fusions:
        pattern = Pattern(fusion)
        for node in graph.graph.nodes:
            match = find(pattern, node)
            if isinstance(match, Match):
                found.append((pattern, match))
    return found


def of_policy(policy: str, own: Iterable[Fusion] = ()) -> list[Fusion]:
    """The backend's own fusions of a policy, then the built-in ones, as `fold` tries them."""
    return [fusion for fusion in (*own, *FUSIONS) if fusion.policy == policy]


def second_users(pattern: Pattern, match: Match) -> Iterator[NearMiss]:
    """Each value of the pattern, wanted by somebody else too."""
    results = set(match.outputs(pattern))
    for node in match.nodes.values():
        if _is_value(node):
            yield NearMiss(f"{node.name} has a second user", _also_returned(node.name), node in results)


def other_numbers(match: Match) -> Iterator[NearMiss]:
    """Each number of the pattern's ops, changed at one place alone."""
    for node in match.nodes.values():
        if not isinstance(node.target, Op):
            continue
        for index, value in enumerate(node.args):
            if isinstance(value, float) and value:
                changed = value * (OTHER_EPS if abs(value) < SMALL else OTHER_SCALE)
                text = f"{node.name}'s {node.target.args[index].name} is {changed:g} instead of {value:g}"
                yield NearMiss(text, _with_argument(node.name, index, changed), is_pattern=True)


def swapped_operands(match: Match) -> Iterator[NearMiss]:
    """Two values of the same shape, in the other order."""
    for node in match.nodes.values():
        if not isinstance(node.target, Op):
            continue
        by_shape: dict[str, list[int]] = {}
        for index, (arg, value) in enumerate(zip(node.target.args, node.args, strict=True)):
            if isinstance(value, fx.Node) and arg.shape and not arg.weight and not arg.mutated:
                by_shape.setdefault(f"{arg.dtype} {arg.shape}", []).append(index)
        for indices in by_shape.values():
            if len(indices) > 1:
                first, second = indices[:2]
                yield NearMiss(f"{node.name}'s operands are swapped", _swapped(node.name, first, second), True)


def _is_value(node: fx.Node) -> bool:
    """A tensor that is the same however it is computed; caches hold what nobody wrote, and tuples are taken apart."""
    origin = node.args[0] if node.target is operator.getitem else node
    if not isinstance(origin, fx.Node) or origin.target is kv_write:
        return False
    return not (isinstance(node.target, Op) and len(node.target.returns) > 1)


def _node(model: ModelGraph, name: str) -> fx.Node:
    found: fx.Node = next(node for node in model.graph.nodes if node.name == name)
    return found


def _also_returned(name: str) -> Edit:
    def edit(model: ModelGraph) -> None:
        output = next(node for node in reversed(list(model.graph.nodes)) if node.op == "output")
        output.args = ((output.args[0], _node(model, name)),)

    return edit


def _with_argument(name: str, index: int, value: Any) -> Edit:
    def edit(model: ModelGraph) -> None:
        _node(model, name).update_arg(index, value)

    return edit


def _swapped(name: str, first: int, second: int) -> Edit:
    def edit(model: ModelGraph) -> None:
        node = _node(model, name)
        args = list(node.args)
        args[first], args[second] = args[second], args[first]
        node.args = tuple(args)

    return edit


__all__ = ["NearMiss", "of_policy", "other_numbers", "places", "second_users", "swapped_operands"]
