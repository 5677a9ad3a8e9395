"""The seed-made model in the real engine, on the backend under test. Knows recipes and requests; judges nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from anychip.conformance.layer import HEAD_DIM, fallbacks
from anychip.conformance.shapes import random_weights, raw_config, write_checkpoint
from anychip.conformance.truth import Truth
from anychip.engine.core import EngineCore
from anychip.engine.loader import LoadedModel, load_model
from anychip.engine.request import GenerateRequest, SamplingParams, TokenEvent
from anychip.graph.verify import MARGIN, ROUNDINGS
from anychip.models.config import ModelConfig
from anychip.models.decoder_config import DecoderConfig
from anychip.models.registry import config_of
from anychip.plan.make import prepare_with
from anychip.recipe.schema import Recipe
from anychip_sdk.conformance.context import Context
from anychip_sdk.conformance.requirements import expect
from anychip_sdk.testing import chunk_step

SHAPE, SEED = "qwen3", 3
KV_TOKENS = 4096
PAGE_SIZE = 16  #: whatever the device prefers: the checks' short prompts must fill pages
FIRST_WORD = 3  #: the words below it begin, end and pad
STEPS_MAX = 4000  #: more than any check needs: an engine that does not come to an end is stopped


class Model(NamedTuple):
    """The checkpoint on disk, and what it computes."""

    source: str
    dtype: torch.dtype
    config: DecoderConfig
    exact: Truth
    rounded: Truth


@dataclass
class Answer:
    """What one request got."""

    tokens: list[int] = field(default_factory=list)  #: the ending one included
    events: list[TokenEvent] = field(default_factory=list)

    @property
    def last(self) -> TokenEvent:
        return self.events[-1]


def make_model(context: Context, dtype: torch.dtype) -> Model:
    """The same model for every check, rounded to the dtype."""
    raw = raw_config(SHAPE, HEAD_DIM, dtype)
    config = config_of(raw)
    assert isinstance(config, DecoderConfig)
    weights = random_weights(config, dtype, SEED)
    source = write_checkpoint(context.scratch / f"model-{config.head_dim}", raw, weights)
    exact, rounded = (Truth(config, weights, one) for one in (torch.float64, dtype))
    return Model(str(source.resolve()), dtype, config, exact, rounded)


def make_recipe(context: Context, model: Model, **sections: Mapping[str, Any]) -> Recipe:
    """A recipe for the model on the context's backend; sections overlay it key by key."""
    said: dict[str, Any] = {
        "version": 1,
        "name": "conformance",
        "model": {"source": model.source, "dtype": str(model.dtype).removeprefix("torch.")},
        "backend": {
            "name": context.backend.name,
            "threads": context.config.threads or 1,
            "emulate": context.config.emulate,
        },
        "memory": {"kv_tokens": KV_TOKENS, "page_size": PAGE_SIZE},
        "scheduler": {"max_running_requests": 32},
    }
    for name, keys in sections.items():
        said[name] = {**said.get(name, {}), **keys}
    return Recipe.model_validate_json(json.dumps(said))


@contextmanager
def loaded(context: Context, model: Model, **sections: Mapping[str, Any]) -> Iterator[LoadedModel]:
    """The model on the device, for the length of a with block."""
    prepared = prepare_with(make_recipe(context, model, **sections), context.backend, context.info)
    found = load_model(prepared, _quiet)
    context.fallbacks |= fallbacks(found.plan.graph)
    context.fallbacks |= {name for name, one in found.plan.engine_ops.items() if one.is_fallback}
    try:
        yield found
    finally:
        found.close()


class Serving(NamedTuple):
    core: EngineCore
    loaded: LoadedModel


@contextmanager
def serving(context: Context, model: Model, **sections: Mapping[str, Any]) -> Iterator[Serving]:
    """An engine over the model, for the length of a with block."""
    with loaded(context, model, **sections) as found:
        yield Serving(EngineCore(found), found)


def run(core: EngineCore, requests: Sequence[GenerateRequest]) -> dict[tuple[str, int], Answer]:
    """All requests together until they end, by (id, index)."""
    for request in requests:
        core.add(request)
    return finish(core)


def finish(core: EngineCore) -> dict[tuple[str, int], Answer]:
    """Step until nothing is left; an error of a request is the backend's."""
    answers: dict[tuple[str, int], Answer] = {}
    for _ in range(STEPS_MAX):
        if not core.has_work:
            return answers
        note(answers, core.step())
    expect(False, f"requests are unfinished after {STEPS_MAX} steps")
    return answers


def note(answers: dict[tuple[str, int], Answer], events: Sequence[TokenEvent]) -> None:
    for event in events:
        expect(event.error is None, f"request {event.request_id} ended with an error: {event.error}")
        answer = answers.setdefault((event.request_id, event.index), Answer())
        answer.events.append(event)
        answer.tokens += event.token_ids
        answer.tokens += [] if event.stop_token_id is None else [event.stop_token_id]


def greedy(prompts: Sequence[Sequence[int]], max_tokens: int, **params: Any) -> list[GenerateRequest]:
    """A request per prompt, r0, r1 ...; each takes the likeliest token and goes on to max_tokens."""
    chosen = SamplingParams(**{"temperature": 0.0, "max_tokens": max_tokens, "ignore_eos": True, **params})
    return [GenerateRequest(f"r{number}", list(prompt), chosen) for number, prompt in enumerate(prompts)]


def make_prompts(context: Context, config: ModelConfig, lengths: Sequence[int]) -> list[list[int]]:
    """Random words; the same for the same case."""
    generator = context.generator("prompts")
    return [torch.randint(FIRST_WORD, config.vocab_size, (length,), generator=generator).tolist() for length in lengths]


def forced_logits(model: LoadedModel, token_ids: Sequence[int], chunk: int) -> torch.Tensor:
    """float64 [tokens, vocab] on the host: the logits behind every token of a given text, read in chunks."""
    size, where = model.pool.layout.page_size, model.device.torch_device
    pages = model.pool.alloc(-(-len(token_ids) // size))[::-1]  # not in rising order
    out = []
    try:
        for start in range(0, len(token_ids), chunk):
            count = min(chunk, len(token_ids) - start)
            step = chunk_step(token_ids, start, count, pages, size, len(model.pool.groups))
            with torch.inference_mode():
                found = model.forward(step.to(where))
            out.append(found.cpu().double())
    finally:
        model.pool.free(pages)
    return torch.cat(out)


def allowed_error(model: Model, token_ids: Sequence[int]) -> float:
    """How far logits may be off: a margin times what rounding alone does to them, and some roundings."""
    exact = model.exact.logits(token_ids)
    rounding = float((model.rounded.logits(token_ids) - exact).abs().max())
    return MARGIN * rounding + ROUNDINGS * torch.finfo(model.dtype).eps * float(exact.abs().max())


def _quiet(*_: object) -> None:
    """A report that nobody reads."""


__all__ = [
    "FIRST_WORD",
    "Answer",
    "Model",
    "Serving",
    "allowed_error",
    "finish",
    "forced_logits",
    "greedy",
    "loaded",
    "make_model",
    "make_prompts",
    "make_recipe",
    "note",
    "run",
    "serving",
]
