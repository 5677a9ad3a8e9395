"""Step 3: fusions of the recipe's policies, where the backend has the fused kernel. Knows patterns and reasons."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from torch import fx

from anychip.graph.fusions import FUSIONS
from anychip.graph.ir import ModelGraph, WeightSpec, resolution, shape_of
from anychip.graph.match import Match, Pattern, find, outputs_of
from anychip.graph.replace import Binding, bind
from anychip.graph.slots import slot_problem, with_slots
from anychip_sdk.fusion import Fusion, concat_rows, policies_with, slot_count, slots_down, slots_gate_up, split_rows
from anychip_sdk.ops import Op


@dataclass(frozen=True)
class FusionDecision:
    """The outcome of one policy."""

    policy: str
    applied: int  #: places rewritten
    reason: str
    refused: bool  #: asked for and not done (not: absorbed by a larger fusion)


@dataclass
class _Outcome:
    applied: int = 0
    reasons: list[str] = field(default_factory=list)
    removed: set[str] = field(default_factory=set)  #: names of the ops that its matches had and their replacements lack


def fold(
    model: ModelGraph, binding: Binding, policies: Sequence[str], extra: Iterable[Fusion] = ()
) -> tuple[FusionDecision, ...]:
    """Rewrite the graph in place; returns a decision per policy, in the order of application."""
    outcomes: dict[str, _Outcome] = {}
    own = tuple(extra)
    fusions = [*own, *FUSIONS]
    for policy in sorted(policies, key=policies_with(own).index):
        outcome = outcomes[policy] = _Outcome()
        for fusion in fusions:
            if fusion.policy == policy:
                _apply(model, _pattern(fusion), binding, outcome)
    drop_unused(model)
    model.graph.lint()
    return tuple(_decision(policy, outcomes, fusions) for policy in outcomes)


@cache
def _pattern(fusion: Fusion) -> Pattern:
    return Pattern(fusion)


def _decision(policy: str, outcomes: dict[str, _Outcome], fusions: Sequence[Fusion]) -> FusionDecision:
    outcome = outcomes[policy]
    if outcome.applied:
        return FusionDecision(policy, outcome.applied, "matched, and the backend has what it needs", refused=False)
    parts = [_pattern(fusion).ops for fusion in fusions if fusion.policy == policy]
    for larger, other in outcomes.items():
        if any(part <= other.removed for part in parts):
            return FusionDecision(policy, 0, f"part of {larger} already", refused=False)
    reason = outcome.reasons[0] if outcome.reasons else "nothing in this model matches"
    return FusionDecision(policy, 0, reason, refused=True)


def _apply(model: ModelGraph, pattern: Pattern, binding: Binding, outcome: _Outcome) -> None:
    for node in list(model.graph.nodes):
        if node._erased:
            continue
        found = find(pattern, node)
        if isinstance(found, Match):
            found = _rewrite(model, pattern, found, binding)
            if found is None:
                outcome.applied += 1
                outcome.removed |= pattern.removes
        if isinstance(found, str):
            outcome.reasons.append(found)


def _rewrite(model: ModelGraph, pattern: Pattern, match: Match, binding: Binding) -> str | None:
    """Put the replacement behind the match's last node and erase the match; a reason where it can't be."""
    missing = _no_own_kernel(pattern.fusion, binding)
    if missing:
        return missing
    builder = _Builder(model, match)
    results = builder.build(pattern.after)
    problem = builder.problem or _bind_all(model, builder.created, pattern.fusion, binding)
    if problem is not None or results is None:
        builder.undo()
        return problem
    for old, new in zip(match.outputs(pattern), results, strict=True):
        old.replace_all_uses_with(new)
    for node in sorted(match.nodes.values(), reverse=True):
        model.graph.erase_node(node)
    return None


def _no_own_kernel(fusion: Fusion, binding: Binding) -> str | None:
    """Whether the backend registered anything at all for the ops that the fusion needs."""
    for name in fusion.needs:
        kernels = binding.registry.kernels(name)
        if all(kernel.provider == "reference" for kernel in kernels):
            return f"the backend has no kernel for {name}"
    return None


def _bind_all(model: ModelGraph, created: Sequence[fx.Node], fusion: Fusion, binding: Binding) -> str | None:
    for node in created:
        if not isinstance(node.target, Op):
            continue
        problem = bind(model, node, node.target, binding)
        if problem is not None:
            return problem
        bound = resolution(node)
        if node.target.name in fusion.needs and bound.is_fallback:
            reasons = "; ".join(f"{one.kernel}: {one.reason}" for one in bound.rejected)
            return f"no kernel of the backend for {node.target.name} fits: {reasons}"
    return None


class _Builder:
    """Copies a replacement into the graph, with weights joined and splits filled in."""

    def __init__(self, model: ModelGraph, match: Match) -> None:
        self.model = model
        self.match = match
        self.created: list[fx.Node] = []
        self.problem: str | None = None

    def build(self, after: fx.Graph) -> list[fx.Node] | None:
        """The results of the replacement, or None with `problem` set."""
        values: dict[fx.Node, Any] = {}
        self._cursor = self.match.last
        for node in after.nodes:
            if node.op == "placeholder":
                values[node] = self.match.arguments[node.name]
            elif node.op != "output":
                values[node] = self._node(node, values)
            if self.problem is not None:
                return None
        return [values[one] for one in outputs_of(after)]

    def undo(self) -> None:
        for node in reversed(self.created):
            self.model.graph.erase_node(node)
            if node.op == "get_attr" and not _read(self.model, str(node.target)):
                self.model.weights.pop(str(node.target), None)

    def _node(self, node: fx.Node, values: dict[fx.Node, Any]) -> Any:
        args = fx.node.map_aggregate(node.args, lambda one: values[one] if isinstance(one, fx.Node) else one)
        if node.target is concat_rows:
            return self._concat(args)
        if node.target is split_rows:
            weights = [weight for weight in args[1:] if isinstance(weight, fx.Node)]
            sizes = [shape_of(self.model, weight)[0] for weight in weights]
            return self._create("call_method", "split", (args[0], sizes, -1))
        if node.target in (slot_count, slots_down, slots_gate_up):
            return self._slots(node.target, args)
        return self._create(node.op, node.target, args)

    def _slots(self, kind: object, args: Any) -> Any:
        specs = self._parameters(args)
        if not specs:
            return None
        experts, *shared = specs
        if kind is slot_count:
            self.problem = slot_problem(experts, shared[0])
            return -(-shared[0].shape[1] // experts.shape[2])
        spec = with_slots(experts, shared, is_down=kind is slots_down)
        self.model.weights[spec.name] = spec
        return self._create("get_attr", spec.name, ())

    def _parameters(self, args: Any) -> list[WeightSpec]:
        """What the operands are; empty, with the problem set, where they aren't all parameters."""
        if all(isinstance(one, fx.Node) and one.target in self.model.weights for one in args):
            return [self.model.weights[str(one.target)] for one in args]
        self.problem = "the operands to be joined are not all parameters of the model"
        return []

    def _concat(self, args: Any) -> fx.Node | None:
        if all(one is None for one in args):
            return None
        specs = self._parameters(args)
        if not specs:
            return None
        if len({spec.shape[1:] for spec in specs}) > 1:
            self.problem = "the weights to be joined differ in more than their rows"
            return None
        spec = _joined(specs)
        self.model.weights[spec.name] = spec
        return self._create("get_attr", spec.name, ())

    def _create(self, kind: str, target: Any, args: Any) -> fx.Node:
        with self.model.graph.inserting_after(self._cursor):
            node = self.model.graph.create_node(kind, target, tuple(args), {})
        self._cursor = node
        self.created.append(node)
        return node


def _joined(specs: Sequence[WeightSpec]) -> WeightSpec:
    """`layers.0.q_proj.weight` and `layers.0.k_proj.weight` become `layers.0.q_proj+k_proj.weight`."""
    parts = [spec.name.split(".") for spec in specs]
    owner, leaf = parts[0][:-2], parts[0][-1]
    name = ".".join((*owner, "+".join(part[-2] for part in parts), leaf))
    rows = sum(spec.shape[0] for spec in specs)
    sources = tuple(source for spec in specs for source in spec.sources)
    return WeightSpec(name, (rows, *specs[0].shape[1:]), sources, dtype=specs[0].dtype)


def drop_unused(model: ModelGraph) -> None:
    """Erase parameters that nothing reads any more; ops are never dropped, they may write."""
    for node in reversed(list(model.graph.nodes)):
        if node.op == "get_attr" and not node.users:
            model.graph.erase_node(node)
            if node.target in model.weights and not _read(model, str(node.target)):
                del model.weights[str(node.target)]


def _read(model: ModelGraph, target: str) -> bool:
    return any(node.op == "get_attr" and node.target == target for node in model.graph.nodes)


__all__ = ["FusionDecision", "drop_unused", "fold"]
