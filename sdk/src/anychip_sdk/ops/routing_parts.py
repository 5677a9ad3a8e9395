"""Scores of experts, ways of routing that families have, and random cases of them. Knows no op."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from anychip_sdk.ops.cases import Args, Case

#: two scores nearer than that, as a share of the larger, are as good as equal: kernels may sum in another order
NEAR = 1e-4


class Routing(NamedTuple):
    """The plain arguments of one way of routing, and whether there is a bias for the choice."""

    score: str
    renormalise: str
    is_biased: bool = False
    groups: int = 1
    top_groups: int = 1
    group_score: str = "max"
    floor: float = 0.0
    factor: float = 1.0


#: one for each family of models that there is
ROUTINGS = (
    Routing("softmax", "none"),
    Routing("softmax", "sum"),
    Routing("softmax", "none", groups=4, top_groups=2, factor=16.0),
    Routing("sigmoid", "sum", is_biased=True, groups=4, top_groups=2, group_score="sum2", floor=1e-20, factor=2.5),
    Routing("softmax", "max", is_biased=True, floor=1e-12),
    Routing("logits", "softmax"),
    Routing("sigmoid", "sum", is_biased=True),
)


def scores(logits: torch.Tensor, score: str) -> torch.Tensor:
    if score == "softmax":
        return logits.softmax(dim=-1)
    return logits.sigmoid() if score == "sigmoid" else logits


def ranked(scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Falling scores and whose they are, lower ids first among equals."""
    ordered = scores.sort(dim=-1, descending=True, stable=True)
    return ordered.values, ordered.indices


def group_scores(choice: torch.Tensor, groups: int, group_score: str) -> torch.Tensor:
    members = choice.unflatten(-1, (groups, -1))
    best: torch.Tensor = members.topk(1 if group_score == "max" else 2, dim=-1).values
    return best.sum(dim=-1)


def within_groups(choice: torch.Tensor, groups: int, top_groups: int, group_score: str) -> torch.Tensor:
    """The scores of experts in the best groups; -infinity for the others."""
    if top_groups == groups:
        return choice
    best = ranked(group_scores(choice, groups, group_score))[1][..., :top_groups]
    chosen = torch.zeros((*choice.shape[:-1], groups), dtype=torch.bool, device=choice.device).scatter_(-1, best, True)
    return choice.masked_fill(~chosen.repeat_interleave(choice.shape[-1] // groups, dim=-1), -torch.inf)


def renormalised(chosen: torch.Tensor, renormalise: str, floor: float) -> torch.Tensor:
    if renormalise == "softmax":
        return chosen.softmax(dim=-1)
    total = chosen.sum(dim=-1, keepdim=True)
    if renormalise == "sum":
        return chosen / (total + floor)
    return chosen / total.clamp(min=floor) if renormalise == "max" else chosen


def routing_case(case: Case) -> Args:
    """Rows whose choice hangs on a rounding are drawn anew: of two near scores a kernel may take either."""
    one = ROUTINGS[case["routing"] - 1 if case["routing"] else int(case.integers(1, below=len(ROUTINGS)))]
    experts = case["experts"]
    if experts % one.groups or experts < 2 * one.groups:
        one = one._replace(groups=1, top_groups=1, group_score="max")
    top_k = min(case["top_k"], experts // one.groups * one.top_groups)
    weight = case.weight(experts, case["hidden"])
    logit_bias = case.vector(experts)
    selection_bias = case.uniform(experts, low=6.8, high=7.1, dtype=torch.float32) if one.is_biased else None
    x = case.floats(case["tokens"], case["hidden"], scale=2.0)
    shared = int(case.integers(1, below=3))
    gate = case.weight(1, case["hidden"]) if shared and case.bias else None
    args = (weight, logit_bias, selection_bias, top_k, *_plain(one), gate, shared)
    for _ in range(100):
        near = torch.nonzero(near_ties(x, *args)).flatten()
        if not len(near):
            break
        x[near] = case.floats(len(near), case["hidden"], scale=2.0)
    return (x, *args)


def _plain(one: Routing) -> Args:
    return one.score, one.groups, one.top_groups, one.group_score, one.renormalise, one.floor, one.factor


def near_ties(
    x: torch.Tensor,
    weight: torch.Tensor,
    logit_bias: torch.Tensor | None,
    selection_bias: torch.Tensor | None,
    top_k: int,
    score: str,
    groups: int,
    top_groups: int,
    group_score: str,
    *rest: Any,
) -> torch.Tensor:
    """Rows of which a kernel may choose other experts, or others first: bool [tokens]."""
    wide = [None if one is None else one.double() for one in (weight, logit_bias, selection_bias)]
    logits = torch.nn.functional.linear(x.double(), *wide[:2])  # type: ignore[arg-type]
    rated = scores(logits, score)
    choice = rated if wide[2] is None else rated + wide[2]
    least = 1.0 if score == "logits" else 0.0  # logits are off by a share of their terms, however small they are
    near = _is_near(ranked(within_groups(choice, groups, top_groups, group_score))[0], top_k, least)
    if top_groups < groups:
        near |= _is_near(ranked(group_scores(choice, groups, group_score))[0], top_groups, least)
    return near


def _is_near(falling: torch.Tensor, count: int, least: float) -> torch.Tensor:
    """Whether two neighbours among the first `count` and the one behind are near."""
    first = falling[..., : count + 1]
    gaps = first[..., :-1] - first[..., 1:]
    return (gaps < NEAR * first[..., :-1].abs().clamp(min=least)).any(dim=-1)


__all__ = [
    "NEAR",
    "ROUTINGS",
    "Routing",
    "group_scores",
    "near_ties",
    "ranked",
    "renormalised",
    "routing_case",
    "scores",
    "within_groups",
]
