"""Find where a fusion's pattern stands in a graph. Knows nodes and near misses; rewrites nothing."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch import fx

from anychip.graph.trace import OpTracer
from anychip_sdk.fusion import Fusion
from anychip_sdk.ops import Op


class Pattern:
    """A fusion's two functions as graphs; parameters are placeholders."""

    def __init__(self, fusion: Fusion) -> None:
        self.fusion = fusion
        self.before = OpTracer(()).trace(fusion.pattern)
        self.after = OpTracer(()).trace(fusion.replacement)
        parameters = [node.name for node in self.before.nodes if node.op == "placeholder"]
        if parameters != [node.name for node in self.after.nodes if node.op == "placeholder"]:
            message = f"fusion '{fusion.name}': pattern and replacement have different parameters"
            raise ValueError(message)
        if len(self.outputs) != len(outputs_of(self.after)):
            message = f"fusion '{fusion.name}': pattern and replacement return different numbers of results"
            raise ValueError(message)

    @cached_property
    def outputs(self) -> list[fx.Node]:
        return outputs_of(self.before)

    @cached_property
    def ops(self) -> frozenset[str]:
        """The names of the catalogue ops that the pattern is made of."""
        return _ops(self.before)

    @cached_property
    def removes(self) -> frozenset[str]:
        """Those of them that the replacement does without."""
        return self.ops - _ops(self.after)

    @cached_property
    def anchor(self) -> fx.Node:
        """The result from which all other nodes of the pattern are reached backwards."""
        body = [node for node in self.before.nodes if node.op not in ("placeholder", "output")]
        for candidate in self.outputs:
            if _reaches(candidate) >= set(body):
                return candidate
        # results that are views of one op (unpacked tuples): start from the op's last view
        last: fx.Node = body[-1]
        return last


def _ops(graph: fx.Graph) -> frozenset[str]:
    return frozenset(node.target.name for node in graph.nodes if isinstance(node.target, Op))


@dataclass(frozen=True)
class Match:
    """A place where a pattern stands: its nodes there, and what its parameters stand for."""

    nodes: dict[fx.Node, fx.Node]  #: pattern node -> node of the graph
    arguments: dict[str, Any]  #: parameter -> node or literal
    last: fx.Node  #: the matched node that comes last in the graph

    def outputs(self, pattern: Pattern) -> list[fx.Node]:
        return [self.nodes[node] for node in pattern.outputs]


def outputs_of(graph: fx.Graph) -> list[fx.Node]:
    """The nodes that a graph returns."""
    result = next(node for node in reversed(list(graph.nodes)) if node.op == "output").args[0]
    return list(result) if isinstance(result, (tuple, list)) else [result]


def find(pattern: Pattern, node: fx.Node) -> Match | str | None:
    """The match whose anchor is `node`; a reason where only a near-miss rule stands against it; None otherwise."""
    matcher = _Matcher(pattern)
    if not matcher.node(pattern.anchor, node) or not matcher.siblings():
        return None
    matched = set(matcher.nodes.values())
    order = {one: index for index, one in enumerate(node.graph.nodes)}
    last = max(matched, key=order.__getitem__)
    results = {matcher.nodes[one] for one in pattern.outputs}
    for one in matched:
        outside = [user for user in one.users if user not in matched]
        if outside and one not in results:
            return f"{one.name} is also used by {outside[0].name}"
        if any(order[user] < order[last] for user in outside):
            return f"{one.name} is used before the whole pattern is computed"
    return Match(matcher.nodes, matcher.arguments, last)


class _Matcher:
    def __init__(self, pattern: Pattern) -> None:
        self._pattern = pattern
        self.nodes: dict[fx.Node, fx.Node] = {}
        self.arguments: dict[str, Any] = {}

    def node(self, wanted: fx.Node, found: Any) -> bool:
        if wanted.op == "placeholder":
            return self._argument(wanted.name, found)
        if wanted in self.nodes:
            return self.nodes[wanted] is found
        if not isinstance(found, fx.Node) or found.op != wanted.op or found.target != wanted.target:
            return False
        if len(found.args) != len(wanted.args) or found.kwargs or found in self.nodes.values():
            return False
        self.nodes[wanted] = found
        return all(self._value(*pair) for pair in zip(wanted.args, found.args, strict=True))

    def siblings(self) -> bool:
        """Bind the views of a matched tuple that the anchor doesn't depend on."""
        for wanted in self._pattern.before.nodes:
            if wanted.op in ("placeholder", "output") or wanted in self.nodes:
                continue
            source = wanted.args[0]
            owner = self.nodes.get(source) if isinstance(source, fx.Node) else None
            if owner is None or not any(self.node(wanted, user) for user in owner.users):
                return False
        return True

    def _argument(self, name: str, found: Any) -> bool:
        if name in self.arguments:
            known = self.arguments[name]
            return known is found if isinstance(known, fx.Node) else bool(known == found)
        if name in self._pattern.fusion.constants and isinstance(found, fx.Node):
            return False
        self.arguments[name] = found
        return True

    def _value(self, wanted: Any, found: Any) -> bool:
        if isinstance(wanted, fx.Node):
            return self.node(wanted, found)
        if isinstance(wanted, (tuple, list)):
            same = isinstance(found, (tuple, list)) and len(found) == len(wanted)
            return same and all(self._value(*pair) for pair in zip(wanted, found, strict=True))
        return not isinstance(found, fx.Node) and bool(wanted == found)


def _reaches(node: fx.Node) -> set[fx.Node]:
    """The node and everything that it is computed from, without parameters."""
    seen: set[fx.Node] = set()
    open_nodes = [node]
    while open_nodes:
        one = open_nodes.pop()
        if one.op != "placeholder" and one not in seen:
            seen.add(one)
            open_nodes.extend(one.all_input_nodes)
    return seen


__all__ = ["Match", "Pattern", "find", "outputs_of"]
