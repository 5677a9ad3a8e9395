"""What a service's process reads itself: tokenizer, template, defaults. Plans nothing; the worker does."""

from __future__ import annotations

import time
from collections.abc import Mapping

import anychip
from anychip.engine.request import namespace_of
from anychip.recipe import Recipe
from anychip.server.settings import Served, ServerSettings
from anychip.text.chat_template import ChatTemplate
from anychip.text.thinking_probe import thinking_of
from anychip.text.tokenizer import Tokenizer
from anychip.weights.checkpoint import open_checkpoint
from anychip.weights.sources import locate

#: What a model's generation_config may choose for requests that don't.
SAMPLING_FIELDS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


def prepare(recipe: Recipe) -> Served:
    """Read a model's texts and the service's settings, for which nobody has to know the plan."""
    with open_checkpoint(locate(recipe.model.source, revision=recipe.model.revision)) as checkpoint:
        tokenizer = Tokenizer.from_checkpoint(checkpoint)
        template = ChatTemplate.from_checkpoint(checkpoint, tokenizer.special_tokens)
        settings = ServerSettings(
            namespace=namespace_of(model=str(checkpoint.path), revision=recipe.model.revision or ""),
            sampling_defaults=sampling_defaults(checkpoint.generation_config),
            unknown_fields=recipe.server.unknown_fields,
            version=anychip.__version__,
            created_s=int(time.time()),
            limits=recipe.server.limits,
        )
    return Served(settings, tokenizer, template, thinking_of(template))


def sampling_defaults(generation_config: Mapping[str, object]) -> dict[str, float]:
    """The numbers of a generation_config that apply to requests which name none."""
    found = {name: generation_config.get(name) for name in SAMPLING_FIELDS}
    return {name: float(value) for name, value in found.items() if isinstance(value, (int, float))}


__all__ = ["prepare", "sampling_defaults"]
