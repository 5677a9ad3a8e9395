"""The engine of one checkout in a process of its own, for revisions.py: a command a line in, its result a line out.

Nothing here is imported before the process runs: its sources are those of the checkout that PYTHONPATH names.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

SKIPPED = 20  #: steps before those whose time counts, in which prompts are computed and buffers made


def serve() -> None:
    """Read a command a line, write its result as a line."""
    core: Any = None
    for line in sys.stdin:
        said = json.loads(line)
        if core is None or said.get("recipe"):
            if core is not None:
                core.close()
            core = open_core(said)
        found = overhead(core, said) if "drawn" in said else run(core, said["prompts"], said["out"], said["at_once"])
        print(json.dumps(found), flush=True)


def open_core(said: Mapping[str, Any]) -> Any:
    from anychip.engine.core import build_core
    from anychip.recipe import load
    from anychip.recipe.schema import Recipe

    recipe = said["recipe"]
    if isinstance(recipe, str):
        return build_core(load(recipe, sets=said["sets"], env=said["env"]).recipe, lambda *_: None)
    return build_core(Recipe.model_validate_json(json.dumps(recipe)), lambda *_: None)


def run(core: Any, prompts: Sequence[Sequence[int]], out: int, at_once: int) -> dict[str, Any]:
    """Tokens of each request, seconds to its first one, and seconds of the whole."""
    from anychip.engine.request import GenerateRequest, SamplingParams

    params = SamplingParams(temperature=0.0, max_tokens=out, ignore_eos=True)
    waiting = [GenerateRequest(f"r{number}", list(prompt), params) for number, prompt in enumerate(prompts)]
    tokens: dict[str, list[int]] = {request.id: [] for request in waiting}
    began_s: dict[str, float] = {}
    first_s: dict[str, float] = {}
    running = 0
    started_s = time.perf_counter()
    while waiting or core.has_work:
        while waiting and running < at_once:
            request = waiting.pop(0)
            began_s[request.id] = time.perf_counter()
            core.add(request)
            running += 1
        for event in core.step():
            assert event.error is None, event.error
            tokens[event.request_id] += event.token_ids
            first_s.setdefault(event.request_id, time.perf_counter() - began_s[event.request_id])
            running -= event.finish_reason is not None
    took_s = time.perf_counter() - started_s
    core.flush_cache()
    return {"tokens": list(tokens.values()), "first_s": list(first_s.values()), "seconds": took_s}


def overhead(core: Any, said: Mapping[str, Any]) -> dict[str, Any]:
    """Microseconds of processor time of each decode step, with logits that are there already in the forward's place."""
    import torch

    from anychip.engine.request import GenerateRequest, SamplingParams

    torch.set_num_threads(1)
    rows, drawn = len(said["prompts"]), said["drawn"]
    logits = torch.randn(rows, core.plan.model.config.vocab_size, generator=torch.Generator().manual_seed(0))
    object.__setattr__(core._model, "forward", lambda *_: logits)
    chosen = {"temperature": 0.8, "top_p": 0.9, "seed": 1} if drawn else {"temperature": 0.0}
    params = SamplingParams(max_tokens=said["out"], ignore_eos=True, **chosen)
    for number, prompt in enumerate(said["prompts"]):
        core.add(GenerateRequest(f"r{number}", list(prompt), params))
    took_us = []
    while core.has_work:
        before_ns = time.thread_time_ns()
        core.step()
        took_us.append((time.thread_time_ns() - before_ns) / 1e3)
    core.flush_cache()
    return {"steps_us": took_us[SKIPPED : said["out"] - SKIPPED]}


if __name__ == "__main__":
    serve()
