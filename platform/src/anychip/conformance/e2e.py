"""Requirements of serving: tokens are the exact model's, whatever the engine does on the way. Knows no kernel."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from anychip.conformance.graph import model_dtypes
from anychip.conformance.service import (
    Answer,
    Model,
    allowed_error,
    finish,
    forced_logits,
    greedy,
    loaded,
    make_model,
    make_prompts,
    note,
    run,
    serving,
)
from anychip.conformance.tokens import judge, logit_bound
from anychip_sdk.conformance.claims import Claims
from anychip_sdk.conformance.context import Context
from anychip_sdk.conformance.requirements import Case, Level, expect, requirement
from anychip_sdk.fusion import POLICIES

NEEDS = ("serving",)
LENGTHS = (33, 5, 40, 18, 1, 64)
MAX_TOKENS = 16
WHOLE = 2048  #: a chunk that takes any prompt of the suite
CHUNKS = (1, 7, 16, WHOLE)
TEXT = 70  #: tokens of the text that logits are measured on: longer than four pages of 16
#: short remainders are expected in full; only a longer one makes the admission guess too low
LONG, SMALL_POOL = 120, 352


def _dtypes(claims: Claims, level: Level) -> Iterable[Case]:
    return [Case(dtype, {"dtype": dtype}) for dtype in model_dtypes(claims)]


def _variants(values: Mapping[str, Any], more: Mapping[str, Any] | None = None) -> Any:
    """Cases for each value in the sharpest dtype, and from std on in every dtype and with further values."""

    def cases(claims: Claims, level: Level) -> Iterable[Case]:
        is_quick = level == "smoke"
        dtypes = model_dtypes(claims)[: 1 if is_quick else None]
        for name, value in {**values, **({} if is_quick else more or {})}.items():
            for dtype in dtypes:
                yield Case(f"{name}-{dtype}", {"dtype": dtype, "value": value})

    return cases


def model_of(context: Context, case: Case) -> Model:
    return make_model(context, getattr(torch, case.params["dtype"]))


@requirement(
    "AC-E2E-001",
    level="MUST",
    text="The logits behind every token of a given text MUST be those of the exact model within rounding, for each "
    "page size and each division into chunks.",
    needs=NEEDS,
    covers=("hook:anychip_create_kv_pool", "hook:anychip_prepare_weight", "hook:anychip_compile"),
    cases=_dtypes,
)
def logits_are_right(context: Context, case: Case) -> None:
    model = model_of(context, case)
    [text] = make_prompts(context, model.config, [TEXT])
    exact, allowed = model.exact.logits(text), allowed_error(model, text)
    for page_size in (1, 16):
        with loaded(context, model, memory={"page_size": page_size}) as served:
            for chunk in CHUNKS:
                got = forced_logits(served, text, chunk)
                error = float((got - exact).abs().nan_to_num(nan=torch.inf).max())
                context.measured["headroom"] = max(context.measured.get("headroom", 0.0), error / allowed)
                expect(
                    error <= allowed,
                    f"in chunks of {chunk}, page size {page_size}: a logit is off by {error:.3g}, rounding explains "
                    f"{allowed:.3g}",
                    text=text,
                    got=got,
                    expected=exact,
                    bound=allowed,
                )


@requirement(
    "AC-E2E-002",
    level="MUST",
    text="Greedy tokens MUST be the exact model's wherever its margin is above twice the measured logit bound.",
    needs=NEEDS,
    covers=("capability:dtypes",),
    cases=_dtypes,
)
def greedy_tokens_are_right(context: Context, case: Case) -> None:
    _serve(context, case, "greedy")


@requirement(
    "AC-E2E-003",
    level="MUST",
    text="Greedy tokens MUST be the same for every chunked prefill size.",
    needs=NEEDS,
    cases=_variants({str(chunk) if chunk < WHOLE else "all": chunk for chunk in CHUNKS}),
)
def chunks_change_nothing(context: Context, case: Case) -> None:
    chunk = case.params["value"]
    _serve(context, case, f"chunks of {chunk}", scheduler={"chunked_prefill_size": chunk})


@requirement(
    "AC-E2E-004",
    level="MUST",
    text="Greedy tokens MUST be the same with the prefix cache on and off, also where prompts share a beginning and "
    "differ in their end, as thinking on and off makes them.",
    needs=NEEDS,
    cases=_variants({"on": True, "off": False}),
)
def the_prefix_cache_changes_nothing(context: Context, case: Case) -> None:
    is_on, model = case.params["value"], model_of(context, case)
    heads = make_prompts(context, model.config, (48, 33))
    tails = make_prompts(context, model.config, (1, 4, 9))
    prompts = [[*head, *tail] for head in heads for tail in tails]
    sections = {"scheduler": {"prefix_cache": is_on, "chunked_prefill_size": 16}}
    with serving(context, model, **sections) as served:
        bound = logit_bound(model, served, prompts[0])
        for turn in ("the first time", "again"):
            judge(context, model, bound, prompts, run(served.core, greedy(prompts, MAX_TOKENS)), turn)
        cached = served.core.stats()["cached_tokens"]
    expect((cached > 0) == is_on, f"the prefix cache is {'on' if is_on else 'off'}; {cached:.0f} tokens were cached")


@requirement(
    "AC-E2E-005",
    level="MUST",
    text="Greedy tokens MUST be the same alone, in a batch, and in a batch that grows while it runs.",
    needs=NEEDS,
    cases=_variants({"alone": "alone", "staggered": "staggered"}),
)
def company_changes_nothing(context: Context, case: Case) -> None:
    model = model_of(context, case)
    prompts = make_prompts(context, model.config, LENGTHS)
    waiting = greedy(prompts, MAX_TOKENS)
    answers: dict[tuple[str, int], Answer] = {}
    with serving(context, model, scheduler={"prefix_cache": False, "chunked_prefill_size": 16}) as served:
        bound = logit_bound(model, served, prompts[-1])
        while waiting:
            served.core.add(waiting.pop(0))
            if case.params["value"] == "alone":
                answers |= finish(served.core)
            else:
                note(answers, served.core.step())
        for key, answer in finish(served.core).items():
            kept = answers.setdefault(key, Answer())
            kept.tokens += answer.tokens
    judge(context, model, bound, prompts, answers, case.params["value"])


@requirement(
    "AC-E2E-006",
    level="MUST",
    text="Greedy tokens MUST be the same after a request was retracted for want of pages and resumed.",
    needs=NEEDS,
    cases=_variants({"cached": (True, 16), "uncached": (False, 16)}, {"token-pages": (True, 1)}),
)
def retraction_changes_nothing(context: Context, case: Case) -> None:
    prefix_cache, page_size = case.params["value"]
    stats = _serve(
        context,
        case,
        "after retraction",
        max_tokens=LONG,
        memory={"kv_tokens": SMALL_POOL, "page_size": page_size},
        scheduler={"prefix_cache": prefix_cache, "chunked_prefill_size": 16},
    )
    context.measured["retractions"] = stats["retractions"]
    expect(stats["retractions"] > 0, f"a pool of {SMALL_POOL} tokens was enough for requests that need more")


@requirement(
    "AC-E2E-007",
    level="MUST",
    text="Greedy tokens MUST be the same without fusions, with each fusion alone and with all of them.",
    needs=NEEDS,
    covers=tuple(f"fusion:{policy}" for policy in POLICIES),
    cases=_variants({"none": [], "all": "auto"}, {policy: [policy] for policy in POLICIES}),
)
def fusions_change_nothing(context: Context, case: Case) -> None:
    # unverified: what verification would refuse at load is what is looked for
    policies = case.params["value"]
    fusion = {"policies": policies, "verify": False, "on_missing": "ignore"}
    _serve(context, case, f"fusions {policies if policies == 'auto' else ', '.join(policies) or 'off'}", fusion=fusion)


@requirement(
    "AC-E2E-008",
    level="MUST",
    text="Greedy tokens MUST be the same for every page size.",
    needs=NEEDS,
    cases=_variants({"1": 1, "16": 16}, {"64": 64}),
)
def page_sizes_change_nothing(context: Context, case: Case) -> None:
    _serve(context, case, f"page size {case.params['value']}", memory={"page_size": case.params["value"]})


@requirement(
    "AC-E2E-009",
    level="MUST",
    text="Several answers to one prompt MUST each be what the prompt gets alone, whatever page they share and leave.",
    needs=NEEDS,
    cases=_variants({"1": 1, "16": 16}),
)
def forks_change_nothing(context: Context, case: Case) -> None:
    _serve(context, case, "several answers", answers=3, memory={"page_size": case.params["value"]})


def _serve(
    context: Context,
    case: Case,
    what: str,
    *,
    max_tokens: int = MAX_TOKENS,
    lengths: Sequence[int] = LENGTHS,
    answers: int = 1,
    **sections: Mapping[str, Any],
) -> dict[str, float]:
    """All prompts at once under a recipe's sections; raises at a wrong token, returns the engine's numbers."""
    model = model_of(context, case)
    prompts = make_prompts(context, model.config, lengths)
    with serving(context, model, **sections) as served:
        bound = logit_bound(model, served, prompts[-1])
        found = run(served.core, greedy(prompts, max_tokens, n=answers))
        expect(len(found) == answers * len(prompts), f"{what}: {len(found)} answers to {len(prompts)} requests")
        judge(context, model, bound, prompts, found, what)
        return served.core.stats()


__all__ = ["NEEDS", "model_of"]
