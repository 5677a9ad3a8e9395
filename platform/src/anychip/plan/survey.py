"""What a checkpoint is, what keeps it from being served, and what it would take here. Loads nothing."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from anychip import backends
from anychip.models.raw import printable
from anychip.plan.estimate import Need, estimate, precisions
from anychip.plan.resolve import CheckpointFacts
from anychip.recipe import Recipe, load_sets
from anychip.text.thinking import NO_THINKING, TemplateThinking
from anychip.text.thinking_probe import checkpoint_thinking
from anychip.text.tokenizer import Tokenizer
from anychip.weights.checkpoint import Checkpoint, Examined, examine
from anychip.weights.sources import locate
from anychip_sdk.backend import Backend
from anychip_sdk.device import DeviceInfo
from anychip_sdk.errors import AnychipError, PreconditionFailed
from anychip_sdk.registry import dtype_name


@dataclass(frozen=True)
class Survey:
    """Everything that is known of a checkpoint without reading its weights.

    Attributes:
        source: as it was named.
        recipe: what was asked about, with the defaults of recipes.
        context: tokens of a request; 0 where nobody said and the model isn't known.
        problems: what keeps it from being served here: of files, config, tensors, text, device and memory.
        backend, device: None where there is none.
        needs: by precision, the checkpoint's own first; empty where the model isn't known or no device is there.
    """

    source: str
    recipe: Recipe
    found: Examined
    context: int
    problems: tuple[str, ...]
    backend: Backend | None
    device: DeviceInfo | None
    needs: tuple[Need, ...]

    @property
    def stored(self) -> Counter[str]:
        """Bytes by how the files hold them."""
        counts: Counter[str] = Counter()
        for info in self.found.opened.tensors.values():
            counts[info.storage] += info.nbytes
        return counts

    @property
    def parameters(self) -> int:
        """Of what the model reads."""
        config = self.found.config
        read = (one for name, one in self.found.opened.tensors.items() if config is None or not config.ignores(name))
        return sum(math.prod(one.shape) for one in read)

    @property
    def best(self) -> Need | None:
        """The precision to start with: the first that has room for the context, else the one with the most."""
        fitting = [need for need in self.needs if need.largest_context]
        whole = [need for need in fitting if need.largest_context >= self.context]
        return whole[0] if whole else max(fitting, key=lambda need: need.largest_context, default=None)


def survey(source: str, sets: Sequence[str] = (), context: int | None = None) -> Survey:
    """Look at a checkpoint, named as recipes do.

    Args:
        source: a path, package:NAME/FILE, hf:ORG/NAME or modelscope:ORG/NAME.
        sets: keys of a recipe, such as `backend.name=cpu` or `memory.static_fraction=0.5`.
        context: tokens of a request; None: the model's own limit.

    Raises:
        CheckpointInvalid: there is nothing there that could be a checkpoint.
        RecipeInvalid, UsageError: `sets` are wrong.
    """
    said = ["version=1", "name=a", f"model.source={json.dumps(source)}", *sets]
    recipe = load_sets(said).recipe
    found = examine(locate(source, revision=recipe.model.revision))
    try:
        return _surveyed(source, recipe, found, context)
    finally:
        found.close()


def _surveyed(source: str, recipe: Recipe, found: Examined, context: int | None) -> Survey:
    config = found.config
    thinking, text_problems = _text(found)
    problems = [*printable(found.problems), *text_problems]
    if config is not None and context is not None and context > config.longest_context:
        problems.append(f"a context of {context} tokens is asked for; the model was made for {config.longest_context}")
    backend = device = None
    try:
        wanted = recipe.backend
        backend = backends.choose(wanted.name, wanted.plugin_path, emulate=wanted.emulate).backend
        device = backend.find_device(wanted.device)
    except PreconditionFailed as error:
        problems.append(str(error))
    needs: tuple[Need, ...] = ()
    if config is not None and backend is not None and device is not None:
        storages = {name: info.storage for name, info in found.opened.tensors.items()}
        facts = CheckpointFacts(found.path, found.format, config, thinking, storages=storages)
        needs = _needs(recipe, facts, backend, device)
        problems += _without_room(needs)
    tokens = context or (0 if config is None else config.max_positions)
    return Survey(source, recipe, found, tokens, tuple(problems), backend, device, needs)


def _needs(recipe: Recipe, facts: CheckpointFacts, backend: Backend, device: DeviceInfo) -> tuple[Need, ...]:
    """The checkpoint's own precision first."""
    own = facts.config.dtype
    offered = precisions(device, facts.storages.values())
    order = sorted(offered, key=lambda one: own is None or one.dtype != dtype_name(own))
    return tuple(estimate(recipe, facts, backend, device, precision) for precision in order)


def _without_room(needs: Sequence[Need]) -> list[str]:
    if any(need.largest_context for need in needs):
        return []
    sized = [(need.needed.weights, need) for need in needs if need.needed is not None]
    least = min(sized, key=lambda pair: pair[0])[1] if sized else needs[0]
    return [f"no precision can be served on this device; {least.precision.name}: {least.problem}"]


def _text(found: Examined) -> tuple[TemplateThinking, list[str]]:
    """What the template does about thinking, and what is wrong with it and with the tokenizer."""
    if found.problems or found.config is None:
        return NO_THINKING, []
    checkpoint = Checkpoint(found.path, found.format, found.config, found.opened)
    problems = []
    try:
        Tokenizer.from_checkpoint(checkpoint)
    except AnychipError as error:
        problems.append(str(error))
    try:
        return checkpoint_thinking(checkpoint), problems
    except AnychipError as error:
        return NO_THINKING, [*problems, str(error)]


__all__ = ["Survey", "survey"]
