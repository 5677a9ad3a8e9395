"""Which experts a token goes to, and with which weight. Knows scores; knows no expert."""

from __future__ import annotations

from typing import Any

import torch

from anychip_sdk.ops.base import Arg, accumulated, accurate, op
from anychip_sdk.ops.cases import Args
from anychip_sdk.ops.checks import Checks, Terms, plant_in_first_rows
from anychip_sdk.ops.routing_parts import ranked, renormalised, routing_case, scores, within_groups

LOGIT_BIAS = Arg("logit_bias", ("experts",), optional=True, weight=True)
SELECTION_BIAS = Arg(
    "selection_bias", ("experts",), "float32", optional=True, weight=True, doc="counts for the choice, not for weights"
)


def _routing_terms(
    x: torch.Tensor, weight: torch.Tensor, logit_bias: torch.Tensor | None, *rest: Any
) -> list[Terms | None]:
    """A weight moves by at most twice its own share of what the logits, its gate's included, are off."""
    given, given_bias = weight, logit_bias
    if rest[-2] is not None:
        weight = torch.cat((weight, rest[-2]))
        logit_bias = None if logit_bias is None else torch.nn.functional.pad(logit_bias, (0, 1))
    logits = torch.nn.functional.linear(x.abs(), weight.abs(), None if logit_bias is None else logit_bias.abs())
    largest = logits.amax(dim=-1, keepdim=True) * max(1, x.shape[-1]) ** 0.5
    weights = router_topk.reference(x, given, given_bias, *rest)[1]
    return [None, Terms(weights.abs() * (2 * largest + 8))]


@op(
    Arg("x", ("tokens", "hidden")),
    Arg("weight", ("experts", "hidden"), weight=True),
    LOGIT_BIAS,
    SELECTION_BIAS,
    Arg("top_k", dtype="int"),
    Arg("score", dtype="str", choices=("softmax", "sigmoid", "logits")),
    Arg("groups", dtype="int", doc="of neighbouring experts; 1: none"),
    Arg("top_groups", dtype="int", doc="groups that experts are chosen from"),
    Arg("group_score", dtype="str", choices=("max", "sum2"), doc="sum2: the sum of a group's two best"),
    Arg("renormalise", dtype="str", choices=("none", "sum", "max", "softmax"), doc="max: the sum, at least floor"),
    Arg("floor", dtype="float"),
    Arg("factor", dtype="float", doc="of the chosen experts' weights, at last"),
    Arg("shared_gate", ("1", "hidden"), optional=True, weight=True, doc="None: shared experts weigh 1"),
    Arg("shared", dtype="int", doc="columns for shared experts, behind the chosen ones"),
    returns=(
        Arg("ids", ("tokens", "top_k + shared"), "int32"),
        Arg("weights", ("tokens", "top_k + shared"), "float32"),
    ),
    error=accumulated("hidden"),
    checks=Checks(routing_case, plant_in_first_rows, _routing_terms),
)
def router_topk(
    x: torch.Tensor,
    weight: torch.Tensor,
    logit_bias: torch.Tensor | None,
    selection_bias: torch.Tensor | None,
    top_k: int,
    score: str,
    groups: int,
    top_groups: int,
    group_score: str,
    renormalise: str,
    floor: float,
    factor: float,
    shared_gate: torch.Tensor | None = None,
    shared: int = 0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The top_k best experts of each token by falling score, the lower id first among equals, and their weights.

    Logits and all that follows are float32 at least. Scores are the logits', with the selection bias for the choice and
    without it for the weights. With groups, experts outside the top_groups best can't be chosen. The weights of the
    chosen are renormalised, then multiplied with the factor.

    Behind them come columns for shared experts, which every token goes to: ids experts .. experts + shared - 1, each
    with the weight sigmoid(x @ shared_gate), or 1 without a gate, which no factor and no renormalisation reaches.

    A row with logits that are not finite gets ids 0 .. top_k-1 and weights that are not a number, so that what is
    computed with them isn't one either.
    """
    exact = accurate(x.dtype)
    wide_bias = None if logit_bias is None else logit_bias.to(exact)
    logits = torch.nn.functional.linear(x.to(exact), weight.to(exact), wide_bias)
    is_finite = logits.isfinite().all(dim=-1, keepdim=True)
    rated = scores(logits.masked_fill(~is_finite, 0.0), score)
    choice = rated if selection_bias is None else rated + selection_bias.to(exact)
    choice = within_groups(choice, groups, top_groups, group_score).masked_fill(~is_finite, 0.0)
    ids = ranked(choice)[1][..., :top_k]
    weights = renormalised(rated.gather(-1, ids), renormalise, floor) * factor
    weights = weights.masked_fill(~is_finite, torch.nan)
    slots = torch.arange(weight.shape[0], weight.shape[0] + shared, device=x.device).expand(len(x), -1)
    shares = _shares(x, shared_gate).expand(-1, shared)
    return torch.cat((ids, slots), dim=-1).to(torch.int32), torch.cat((weights, shares), dim=-1)


def _shares(x: torch.Tensor, gate: torch.Tensor | None) -> torch.Tensor:
    """What a shared expert's result is multiplied with, [tokens, 1]."""
    exact = accurate(x.dtype)
    if gate is None:
        return torch.ones(len(x), 1, dtype=exact, device=x.device)
    return torch.nn.functional.linear(x.to(exact), gate.to(exact)).sigmoid()


def _changed(args: Args, **values: Any) -> Args:
    names = [arg.name for arg in router_topk.args]
    given = dict(zip(names, args, strict=True))
    return tuple({**given, **values}.values())


@router_topk.mistake
def _factor_is_left_out(*args: Any) -> Any:
    """The factor does not reach the weights."""
    return router_topk.reference(*_changed(args, factor=1.0))


@router_topk.mistake
def _factor_is_applied_twice(*args: Any) -> Any:
    """The weights are multiplied with the factor twice."""
    ids, weights = router_topk.reference(*args)
    return ids, torch.cat((weights[:, : args[4]] * args[11], weights[:, args[4] :]), dim=-1)


@router_topk.mistake
def _bias_is_in_the_weights(*args: Any) -> Any:
    """The selection bias, meant for the choice, is part of the weights."""
    if args[3] is None:
        return router_topk.reference(*args)
    ids, weights = router_topk.reference(*args)
    rated = router_topk.reference(*_changed(args, renormalise="none", factor=1.0))[1][:, : args[4]]
    chosen = rated + args[3][ids[:, : args[4]].long()]
    biased = renormalised(chosen, args[9], args[10]) * args[11]
    return ids, torch.cat((biased.to(weights.dtype), weights[:, args[4] :]), dim=-1)


@router_topk.mistake
def _weights_are_not_renormalised(*args: Any) -> Any:
    """The chosen experts' scores stay as they are."""
    return router_topk.reference(*_changed(args, renormalise="none"))


@router_topk.mistake
def _bias_is_rounded(*args: Any) -> Any:
    """The selection bias is kept in bfloat16, whose steps near 7 are larger than the scores' differences."""
    bias = None if args[3] is None else args[3].bfloat16().float()
    return router_topk.reference(*_changed(args, selection_bias=bias))


@router_topk.mistake
def _groups_are_ignored(*args: Any) -> Any:
    """Experts of all groups can be chosen."""
    return router_topk.reference(*_changed(args, groups=1, top_groups=1))


@router_topk.mistake
def _groups_count_their_best_only(*args: Any) -> Any:
    """A group's score is its best expert's, where it should be the sum of two."""
    return router_topk.reference(*_changed(args, group_score="max"))


@router_topk.mistake
def _experts_come_by_id(*args: Any) -> Any:
    """The chosen experts come by rising id, their weights as they were."""
    ids, weights = router_topk.reference(*args)
    return ids.sort(dim=-1).values, weights


@router_topk.mistake
def _factor_reaches_the_shared(*args: Any) -> Any:
    """The shared experts' weights are multiplied with the factor too."""
    ids, weights = router_topk.reference(*args)
    return ids, torch.cat((weights[:, : args[4]], weights[:, args[4] :] * args[11]), dim=-1)


@router_topk.mistake
def _shared_take_the_last_place(*args: Any) -> Any:
    """A shared expert's id takes a chosen one's place, and is counted once more behind."""
    ids, weights = router_topk.reference(*args)
    if args[-1]:
        ids[:, args[4] - 1] = args[1].shape[0]
    return ids, weights


@router_topk.mistake
def _gate_is_left_out(*args: Any) -> Any:
    """Shared experts weigh 1 though there is a gate."""
    return router_topk.reference(*_changed(args, shared_gate=None))


__all__ = ["router_topk"]
