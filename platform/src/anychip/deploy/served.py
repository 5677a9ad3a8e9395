"""What a service's process knows of its model: plan, tokenizer, template, defaults. Knows no process and no socket."""

from __future__ import annotations

import time
from collections.abc import Mapping

import structlog

import anychip
from anychip.deploy.secrets import read_secret
from anychip.engine.request import namespace_of
from anychip.plan.explain import as_json
from anychip.plan.make import make_plan
from anychip.plan.plan import Plan
from anychip.recipe import Recipe
from anychip.server.settings import Served, ServerSettings
from anychip.text.chat_template import ChatTemplate
from anychip.text.tokenizer import Tokenizer
from anychip.weights.checkpoint import open_checkpoint

#: What a model's generation_config may choose for requests that don't.
SAMPLING_FIELDS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")

log = structlog.get_logger("anychip.service")


def prepare(recipe: Recipe) -> Served:
    """Plan a recipe whose worker is being started, and read its texts."""
    plan = make_plan(recipe, in_use=True)
    for warning in plan.warnings:
        log.warning(warning)
    with open_checkpoint(plan.model.path) as checkpoint:
        tokenizer = Tokenizer.from_checkpoint(checkpoint)
        template = ChatTemplate.from_checkpoint(checkpoint, tokenizer.special_tokens)
        defaults = sampling_defaults(checkpoint.generation_config)
    return Served(_settings(recipe, plan, defaults), tokenizer, template)


def sampling_defaults(generation_config: Mapping[str, object]) -> dict[str, float]:
    """The numbers of a generation_config that apply to requests which name none."""
    found = {name: generation_config.get(name) for name in SAMPLING_FIELDS}
    return {name: float(value) for name, value in found.items() if isinstance(value, (int, float))}


def _settings(recipe: Recipe, plan: Plan, defaults: Mapping[str, float]) -> ServerSettings:
    return ServerSettings(
        served_name=plan.model.served_name,
        context_length=plan.model.context_length.value,
        vocab_size=plan.model.config.vocab_size,
        api_key=read_secret(recipe.server.api_key, "server.api_key"),
        thinking=recipe.model.thinking,
        namespace=namespace_of(model=str(plan.model.path), revision=recipe.model.revision or ""),
        sampling_defaults=defaults,
        plan=as_json(plan),
        emulated=plan.backend.emulated,
        version=anychip.__version__,
        created_s=int(time.time()),
    )


__all__ = ["prepare", "sampling_defaults"]
