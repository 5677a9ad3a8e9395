"""Gather what a plan is made of: the checkpoint's header, the backend, its probe. Decides nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from anychip import backends
from anychip.plan.certificate import find_certificate
from anychip.plan.plan import HeldCertificate, Plan
from anychip.plan.resolve import CheckpointFacts, resolve
from anychip.recipe.schema import Recipe
from anychip.text.thinking_probe import checkpoint_thinking
from anychip.weights.checkpoint import Checkpoint, open_checkpoint
from anychip.weights.sources import locate
from anychip_sdk.backend import Backend
from anychip_sdk.device import DeviceInfo
from anychip_sdk.errors import AnychipError, PreconditionFailed


@dataclass(frozen=True)
class Prepared:
    """A plan with what an engine needs beside it.

    Attributes:
        checkpoint: open.
        without: plans again, without some fusion policies: those that verification refused.
    """

    plan: Plan
    backend: Backend
    checkpoint: Checkpoint
    without: Callable[[frozenset[str]], Plan]


def make_plan(recipe: Recipe) -> Plan:
    """The plan of a recipe on this machine.

    Raises:
        PreconditionFailed: what is missing; a missing checkpoint and a missing device are both told.
    """
    prepared = prepare(recipe)
    prepared.checkpoint.close()
    return prepared.plan


def prepare(recipe: Recipe) -> Prepared:
    """`make_plan`, with the checkpoint left open and the backend loaded."""
    wanted = recipe.backend
    problems: list[AnychipError] = []
    checkpoint = choice = device = None
    try:
        checkpoint = open_checkpoint(locate(recipe.model.source, revision=recipe.model.revision))
    except PreconditionFailed as error:
        problems.append(error)
    try:
        choice = backends.choose(wanted.name, wanted.plugin_path, emulate=wanted.emulate)
        device = choice.backend.find_device(wanted.device)
    except PreconditionFailed as error:
        problems.append(error)
    if checkpoint is None or choice is None or device is None or problems:
        if checkpoint is not None:
            checkpoint.close()
        raise _together(problems)
    certificate = find_certificate(choice.backend, device, emulate=choice.backend.emulated, library=wanted.plugin_path)
    return _resolved(recipe, checkpoint, choice.backend, device, choice.reason, certificate)


def prepare_with(recipe: Recipe, backend: Backend, device: DeviceInfo) -> Prepared:
    """`prepare` on a loaded backend and a probed device, whatever the recipe's backend section names."""
    checkpoint = open_checkpoint(locate(recipe.model.source, revision=recipe.model.revision))
    return _resolved(recipe, checkpoint, backend, device, "given by the caller")


def _resolved(
    recipe: Recipe,
    checkpoint: Checkpoint,
    backend: Backend,
    device: DeviceInfo,
    reason: str,
    certificate: HeldCertificate | None = None,
) -> Prepared:
    try:
        facts = facts_of(checkpoint)

        def without(policies: frozenset[str]) -> Plan:
            return resolve(recipe, facts, backend, device, reason, policies, certificate)

        plan = without(frozenset())
    except BaseException:
        checkpoint.close()
        raise
    return Prepared(plan, backend, checkpoint, without)


def facts_of(checkpoint: Checkpoint) -> CheckpointFacts:
    return CheckpointFacts(
        checkpoint.path,
        checkpoint.format,
        checkpoint.config,
        checkpoint_thinking(checkpoint),
        checkpoint.notes,
        {name: info.storage for name, info in checkpoint.tensors.items()},
    )


def _together(problems: list[AnychipError]) -> AnychipError:
    if len(problems) == 1:
        return problems[0]
    return PreconditionFailed("\n".join(str(problem) for problem in problems))


__all__ = ["Prepared", "facts_of", "make_plan", "prepare", "prepare_with"]
