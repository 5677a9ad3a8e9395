"""Models and engines over tiny checkpoints, and greedy runs of them. Knows recipes and cores; knows no server."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from anychip.engine.core import EngineCore
from anychip.engine.loader import LoadedModel, load_model
from anychip.engine.request import GenerateRequest, SamplingParams, TokenEvent
from anychip.plan.make import Prepared, prepare, prepare_with
from anychip.recipe.schema import Recipe
from anychip_sdk.backend import Backend
from anychip_sdk.kv import KVPool
from anychip_sdk.step import Slots, Step
from anychip_sdk.testing import chunk_step

NO_FUSION: Mapping[str, Any] = {"policies": []}
SLOT = 1  #: of sequences that no scheduler has given one


def make_recipe(source: Path | str, **sections: Mapping[str, Any]) -> Recipe:
    """A recipe for a checkpoint: float32, the CPU, one thread, a small pool; sections overlay that key by key."""
    said: dict[str, Any] = {
        "version": 1,
        "name": "test",
        "model": {"source": str(source), "dtype": "float32"},
        "backend": {"name": "cpu", "threads": 1},
        "memory": {"kv_tokens": 4096},
        "scheduler": {"max_running_requests": 32},
    }
    for name, keys in sections.items():
        said[name] = {**said.get(name, {}), **keys}
    return Recipe.model_validate_json(json.dumps(said))


def quiet(*_: object) -> None:
    """A report that nobody reads."""


def prepare_on(recipe: Recipe, backend: Backend) -> Prepared:
    """What `prepare` returns, on a backend that is not installed."""
    return prepare_with(recipe, backend, backend.find_device(None))


@contextmanager
def loaded(recipe: Recipe, backend: Backend | None = None):
    """A LoadedModel for the length of a with block."""
    model = load_model(prepare(recipe) if backend is None else prepare_on(recipe, backend), quiet)
    try:
        yield model
    finally:
        model.close()


@contextmanager
def core_of(recipe: Recipe, backend: Backend | None = None):
    """An EngineCore for the length of a with block, not warmed up."""
    with loaded(recipe, backend) as model:
        yield EngineCore(model)


def logits_of(model: LoadedModel, token_ids: Sequence[int], chunks: Sequence[int] | None = None) -> torch.Tensor:
    """float32 [tokens, vocab]: the logits behind every token, computed in chunks of the given lengths."""
    size = model.pool.layout.page_size
    pages = model.pool.alloc(-(-len(token_ids) // size))[::-1]  # not in rising order
    model.pool.clear_slots([SLOT] if model.pool.layout.slots else [])
    out = []
    start = 0
    for count in chunks or [len(token_ids)]:
        step = sequence_step(model.pool, token_ids, start, count, pages)
        with torch.inference_mode():
            out.append(model.forward(step).clone())
        start += count
    assert start == len(token_ids)
    model.pool.free(pages)
    return torch.cat(out)


def sequence_step(
    pool: KVPool, token_ids: Sequence[int], start: int, count: int, pages: Sequence[int], slot: int = SLOT
) -> Step:
    """A step of some tokens of one sequence, which has these pages and this slot."""
    step = chunk_step(token_ids, start, count, pages, pool.layout.page_size, len(pool.groups))
    slots = Slots(torch.tensor([slot]))
    kinds = [group.spec.kind for group in pool.groups]
    entries = [slots if kind == "slot" else entry for kind, entry in zip(kinds, step.groups, strict=True)]
    return replace(step, groups=tuple(entries))


def run(core: EngineCore, requests: Sequence[GenerateRequest], *, check: bool = True) -> dict[tuple[str, int], Any]:
    """Outputs by (request id, index), all requests together; the invariants hold after each step."""
    for request in requests:
        core.add(request)
    outputs: dict[tuple[str, int], list[int]] = {}
    while core.has_work:
        for event in core.step():
            assert event.error is None
            outputs.setdefault((event.request_id, event.index), []).extend(tokens_of(event))
        if check:
            core.scheduler.check_invariants()
    return outputs


def tokens_of(event: TokenEvent) -> list[int]:
    """What was sampled, the ending token included."""
    return [*event.token_ids, *([] if event.stop_token_id is None else [event.stop_token_id])]


def greedy(prompts: Sequence[Sequence[int]], max_tokens: int, **params: Any) -> list[GenerateRequest]:
    """A greedy request per prompt, with ids r0, r1 ..."""
    chosen = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True, **params)
    return [GenerateRequest(f"r{number}", list(prompt), chosen) for number, prompt in enumerate(prompts)]


def random_prompts(count: int, lengths: Sequence[int], *, vocab: int = 512, seed: int = 0) -> list[list[int]]:
    """Prompts of the given lengths in turn."""
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.randint(3, vocab, (lengths[number % len(lengths)],), generator=generator).tolist()
        for number in range(count)
    ]
