"""What a plan's steps cost, and what they would without its fusions. Knows graphs and speeds; measures nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from anychip.forecast.costs import Costs, costs_of
from anychip.forecast.speeds import Known, Subject, find_speeds
from anychip.forecast.work import OpWork
from anychip.plan.make import facts_of, prepare
from anychip.plan.plan import Plan
from anychip.plan.resolve import CheckpointFacts, resolve, wanted_policies
from anychip.recipe.schema import Recipe
from anychip_sdk.backend import Backend

FEW_LAYERS = (2, 3)  #: a layer of a model is what the second of these costs more


@dataclass(frozen=True)
class Price:
    """What steps cost.

    Attributes:
        costs: with the plan's fusions.
        known: the device's speeds, or why there are none.
        without: applied policy -> what steps would cost without it alone, larger fusions making room for smaller ones.
        unfused: what they would cost with no fusion at all; None where none is applied.
    """

    costs: Costs
    known: Known
    without: Mapping[str, Costs]
    unfused: Costs | None


def make_priced(recipe: Recipe) -> tuple[Plan, Price]:
    """The plan of a recipe on this machine, and what its steps cost."""
    prepared = prepare(recipe)
    plan, backend = prepared.plan, prepared.backend
    try:
        subject = Subject(backend, plan.backend.device, recipe.backend.threads, recipe.backend.plugin_path)
        return plan, price(recipe, plan, facts_of(prepared.checkpoint), backend, find_speeds(subject))
    finally:
        prepared.checkpoint.close()


def price(recipe: Recipe, plan: Plan, checkpoint: CheckpointFacts, backend: Backend, known: Known) -> Price:
    """Pure; plans the recipe anew, with few layers of the model, for each applied fusion."""
    wanted = wanted_policies(recipe, backend)
    applied = [one.policy for one in plan.fusions if one.applied]

    def costs(policies: Sequence[str]) -> Costs:
        return _costs(_with_fusions(recipe, policies), plan, checkpoint, backend)

    without = {policy: costs([one for one in wanted if one != policy]) for policy in applied}
    return Price(costs_of(plan), known, without, costs(()) if applied else None)


def _with_fusions(recipe: Recipe, policies: Sequence[str]) -> Recipe:
    fusion = recipe.fusion.model_copy(update={"policies": list(policies), "on_missing": "ignore"})
    return recipe.model_copy(update={"fusion": fusion})


def _costs(recipe: Recipe, plan: Plan, checkpoint: CheckpointFacts, backend: Backend) -> Costs:
    """Of the whole model under another recipe on the plan's device, from models of few layers."""
    config = checkpoint.config

    def of(layers: int) -> Costs:
        facts = replace(checkpoint, config=config.with_layers(layers, config.vocab_size))
        held = plan.backend
        return costs_of(resolve(recipe, facts, backend, held.device, held.reason, certificate=held.certificate))

    if config.num_layers <= FEW_LAYERS[1]:
        return of(config.num_layers)
    fewer, more = map(of, FEW_LAYERS)
    others = config.num_layers - FEW_LAYERS[0]
    uses = dict.fromkeys((*fewer.uses, *more.uses), OpWork())
    for use in uses:
        few, many = fewer.uses.get(use, OpWork()), more.uses.get(use, OpWork())
        uses[use] = few + (many - few).times(others)
    return Costs(uses)


__all__ = ["Price", "make_priced", "price"]
