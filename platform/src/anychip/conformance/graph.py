"""Requirements of rewriting: fusions compute what they replace, and only where they may. Knows no request."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from anychip.conformance.layer import Layer, Outcome
from anychip.conformance.near_misses import (
    NearMiss,
    of_policy,
    other_numbers,
    places,
    second_users,
    swapped_operands,
)
from anychip.conformance.shapes import SHAPES
from anychip.graph.fold import fold
from anychip.graph.fusions import FUSIONS
from anychip.graph.ir import as_text
from anychip.graph.match import Match, Pattern
from anychip_sdk.conformance.claims import Claims
from anychip_sdk.conformance.context import Context
from anychip_sdk.conformance.requirements import Case, Level, expect, requirement
from anychip_sdk.fusion import POLICIES, policies_with
from anychip_sdk.ops import Op

SERVED = "qwen3"  #: the shape that the end-to-end track serves
QUICK = (SERVED, "llama-gelu")  #: with and without norms of queries and keys, both activations
SAMPLED = 4  #: near misses of a place at the quickest level
DTYPES = ("float32", "bfloat16", "float16")
BUILT_IN = {*POLICIES, *(one.name for one in FUSIONS)}
COVERS = tuple(f"fusion:{name}" for name in sorted(BUILT_IN))
OWN = "own"  #: the case of all policies that the backend itself brings, claimed or not


def model_dtypes(claims: Claims) -> list[str]:
    """Those of the claimed dtypes that a recipe can name."""
    return [name for name in DTYPES if name in claims.dtypes]


def _shapes(claims: Claims, level: Level) -> Iterable[Case]:
    for shape in SHAPES:
        for dtype in model_dtypes(claims):
            yield Case(f"{shape}-{dtype}", {"shape": shape, "dtype": dtype})


def _shapes_of(context: Context) -> Iterable[str]:
    return QUICK if context.level == "smoke" else SHAPES


def _policies(claims: Claims, level: Level) -> Iterable[Case]:
    """The built-in policies, and the claimed fusions that the backend itself brings."""
    for name in (*POLICIES, *(name for name in claims.fusions if name not in BUILT_IN)):
        for dtype in model_dtypes(claims):
            yield Case(f"{name.replace(' ', '-')}-{dtype}", {"fusion": name, "dtype": dtype})


def _sharpest(claims: Claims, level: Level) -> Iterable[Case]:
    """What is about structure needs one dtype, the one whose rounding hides least."""
    dtypes = model_dtypes(claims)[:1]
    return [case for case in _policies(claims, level) if case.params["dtype"] in dtypes]


def _sharpest_and_own(claims: Claims, level: Level) -> Iterable[Case]:
    yield from _sharpest(claims, level)
    for dtype in model_dtypes(claims)[:1]:
        yield Case(f"{OWN}-{dtype}", {"fusion": OWN, "dtype": dtype})


def _claimed(claims: Claims, level: Level) -> Iterable[Case]:
    for name in dict.fromkeys((*POLICIES, *claims.fusions)):
        for dtype in model_dtypes(claims)[:1]:
            yield Case(name.replace(" ", "-"), {"fusion": name, "dtype": dtype}, needs=(f"fusion:{name}",))


def layer(context: Context, case: Case, shape: str | None = None) -> Layer:
    return Layer(context, shape or case.params["shape"], getattr(torch, case.params["dtype"]))


def policy_of(context: Context, case: Case) -> str:
    """The policy of the case's fusion, which a claim names by its policy or by its own name."""
    name: str = case.params["fusion"]
    known = [fusion.policy for fusion in (*context.backend.fusions, *FUSIONS) if name in (fusion.policy, fusion.name)]
    expect(bool(known) or name in POLICIES, f"fusion '{name}' is claimed, but nobody brings it")
    return known[0] if known else name


def judge(context: Context, outcome: Outcome, what: str) -> None:
    """Raise unless the outputs are right; keep the worst headroom."""
    context.measured["headroom"] = max(context.measured.get("headroom", 0.0), outcome.error / outcome.bound)
    expect(
        outcome.passed,
        f"{what}: the outputs are off by {outcome.error:.2e} of the largest value; rounding explains "
        f"{outcome.bound:.2e}",
        got=list(outcome.got),
        expected=list(outcome.expected),
        bound=outcome.bound,
    )


@requirement(
    "AC-GRAPH-001",
    level="MUST",
    text="A layer that runs unfused on the backend's kernels MUST give what the references give, within rounding.",
    covers=("hook:anychip_prepare_weight",),
    cases=_shapes,
)
def unfused_layers_are_right(context: Context, case: Case) -> None:
    judge(context, layer(context, case).compare(()), f"{case.params['shape']} unfused")


@requirement(
    "AC-GRAPH-002",
    level="MUST",
    text="A fusion that applies MUST give the outputs of the ops that it replaces, within rounding, in every shape.",
    covers=(*COVERS, "hook:anychip_fusions"),
    cases=_policies,
)
def each_fusion_is_equivalent(context: Context, case: Case) -> None:
    policy = policy_of(context, case)
    context.measured["places"] = 0
    for shape in _shapes_of(context):
        one = layer(context, case, shape)
        _, [decision] = one.fused((policy,))
        if decision.applied:
            context.measured["places"] += decision.applied
            judge(context, one.compare((policy,)), f"fusion {policy} in {shape}")


@requirement(
    "AC-GRAPH-003",
    level="MUST",
    text="All fusions that apply together MUST give the outputs of the unfused layer, within rounding.",
    covers=("hook:anychip_fusions",),
    cases=_shapes,
)
def all_fusions_together_are_equivalent(context: Context, case: Case) -> None:
    outcome = layer(context, case).compare(policies_with(context.backend.fusions))
    context.measured["places"] = outcome.places
    judge(context, outcome, f"all fusions in {case.params['shape']}")


@requirement(
    "AC-GRAPH-004",
    level="MUST",
    text="A graph that is rewritten already MUST NOT be changed by the same fusion again.",
    covers=("hook:anychip_fusions",),
    cases=_sharpest,
)
def rewriting_is_idempotent(context: Context, case: Case) -> None:
    policy = policy_of(context, case)
    for shape in _shapes_of(context):
        one = layer(context, case, shape)
        graph, _ = one.fused((policy,))
        before, weights = as_text(graph), dict(graph.weights)
        [again] = fold(graph, one.binding, (policy,), context.backend.fusions)
        expect(
            again.applied == 0 and as_text(graph) == before and graph.weights == weights,
            f"fusion {policy} in {shape}: applied to its own result it changed {again.applied} more places",
            before=before,
            after=as_text(graph),
        )


@requirement(
    "AC-GRAPH-005",
    level="MUST",
    text="A pattern of which something else uses an intermediate value MUST NOT be rewritten, and each of its results "
    "MUST be right for every user.",
    covers=("hook:anychip_fusions",),
    cases=_sharpest,
)
def intermediates_with_a_second_user_stay(context: Context, case: Case) -> None:
    policy = policy_of(context, case)
    for one, number, misses in _near(context, case):
        for miss in _sampled(context, [miss for pattern, match in misses for miss in second_users(pattern, match)]):
            what = f"fusion {policy} in {one.shape}, where {miss.text}"
            _, [decision] = one.fused((policy,), miss.edit)
            expect(miss.is_pattern or decision.applied < number, f"{what}: it was rewritten all the same")
            judge(context, one.compare((policy,), miss.edit), what)


@requirement(
    "AC-GRAPH-006",
    level="MUST",
    text="A graph that differs from a pattern in a number or in the order of operands MUST either stay or stay right.",
    covers=("hook:anychip_fusions",),
    cases=_sharpest,
)
def other_numbers_and_orders_stay_right(context: Context, case: Case) -> None:
    policy = policy_of(context, case)
    for one, _, found in _near(context, case):
        misses = [miss for _, match in found for miss in (*other_numbers(match), *swapped_operands(match))]
        for miss in _sampled(context, misses):
            judge(context, one.compare((policy,), miss.edit), f"fusion {policy} in {one.shape}, where {miss.text}")


@requirement(
    "AC-GRAPH-007",
    level="MUST",
    text="A fusion MUST name in `needs` every op that it introduces, so that no fallback takes kernels' place.",
    covers=("hook:anychip_fusions",),
)
def fusions_name_what_they_need(context: Context) -> None:
    for fusion in context.backend.fusions:
        pattern = Pattern(fusion)
        before, after = (
            {node.target.name for node in graph.nodes if isinstance(node.target, Op)}
            for graph in (pattern.before, pattern.after)
        )
        unnamed = sorted(after - before - set(fusion.needs))
        expect(not unnamed, f"fusion '{fusion.name}' introduces {', '.join(unnamed)}, which its needs do not name")


@requirement(
    "AC-GRAPH-008",
    level="MUST",
    text="A claimed fusion MUST apply to the model that the suite serves; one that stops matching is a failure.",
    covers=COVERS,
    cases=_claimed,
)
def claimed_fusions_apply(context: Context, case: Case) -> None:
    name, policy = case.params["fusion"], policy_of(context, case)
    one = layer(context, case, SERVED)
    _, [decision] = one.fused((policy,))
    context.measured["places"] = decision.applied
    expect(decision.applied > 0, f"fusion '{name}' is claimed and was not applied: {decision.reason}")
    if name != policy:
        known = of_policy(policy, context.backend.fusions)
        stands = places(one.graph(), [fusion for fusion in known if fusion.name == name])
        expect(bool(stands), f"fusion '{name}' is claimed and stands nowhere in the model")


@requirement(
    "AC-GRAPH-009",
    level="SHOULD",
    text="A fusion that applies to the model that the suite serves SHOULD be claimed, so that losing it shows.",
    covers=("hook:anychip_fusions",),
    cases=_sharpest_and_own,
)
def applied_fusions_are_claimed(context: Context, case: Case) -> None:
    own = [policy for policy in policies_with(context.backend.fusions) if policy not in POLICIES]
    for policy in own if case.params["fusion"] == OWN else [policy_of(context, case)]:
        _, [decision] = layer(context, case, SERVED).fused((policy,))
        claimed = {policy, *(fusion.name for fusion in of_policy(policy, context.backend.fusions))}
        expect(
            not decision.applied or bool(claimed & set(context.claims.fusions)),
            f"fusion {policy} applies to {decision.applied} places and is not among the claimed fusions",
        )


def _near(context: Context, case: Case) -> Iterable[tuple[Layer, int, list[tuple[Pattern, Match]]]]:
    """For each shape in which the policy applies: the layer, at how many places, and its patterns there."""
    policy = policy_of(context, case)
    for shape in _shapes_of(context):
        one = layer(context, case, shape)
        _, [decision] = one.fused((policy,))
        if decision.applied:
            yield one, decision.applied, places(one.graph(), of_policy(policy, context.backend.fusions))


def _sampled(context: Context, misses: list[NearMiss]) -> list[NearMiss]:
    """All of them, but a spread few at the quickest level."""
    return misses[:: max(1, -(-len(misses) // context.scaled(SAMPLED, 1000)))]


__all__ = ["DTYPES", "SERVED", "judge", "layer", "model_dtypes"]
