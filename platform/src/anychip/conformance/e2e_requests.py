"""Requirements of serving many: requests are never mixed, counts are true, memory comes back. Knows no kernel."""

from __future__ import annotations

from collections.abc import Iterable

from anychip.conformance.e2e import NEEDS, model_of
from anychip.conformance.graph import model_dtypes
from anychip.conformance.service import (
    FIRST_WORD,
    Answer,
    Serving,
    finish,
    greedy,
    make_prompts,
    note,
    run,
    serving,
)
from anychip.conformance.tokens import judge, logit_bound
from anychip.engine.request import GenerateRequest, SamplingParams
from anychip_sdk.conformance.claims import Claims
from anychip_sdk.conformance.context import Context
from anychip_sdk.conformance.requirements import Case, Level, expect, requirement

REQUESTS, AT_ONCE = 100, 5
CANARY = 1e4  #: a bias that no logit outdoes
TOKENS = 12
UNCACHED = {"prefix_cache": False, "chunked_prefill_size": 16}


def _sharpest(claims: Claims, level: Level) -> Iterable[Case]:
    return [Case(dtype, {"dtype": dtype}) for dtype in model_dtypes(claims)[:1]]


@requirement(
    "AC-E2E-010",
    level="MUST",
    text="Of 100 interleaved requests each MUST get its own tokens: those of its prompt, or its own canary alone.",
    needs=NEEDS,
    cases=_sharpest,
)
def requests_are_not_mixed(context: Context, case: Case) -> None:
    model = model_of(context, case)
    prompts = make_prompts(context, model.config, [1 + 7 * number % 40 for number in range(REQUESTS)])
    waiting = [
        _canary(request, number) if number % 2 else request for number, request in enumerate(greedy(prompts, TOKENS))
    ]
    answers: dict[tuple[str, int], Answer] = {}
    with serving(context, model, scheduler={"chunked_prefill_size": 64}) as served:
        bound = logit_bound(model, served, prompts[5])
        while waiting:
            for request in waiting[:AT_ONCE]:
                served.core.add(request)
            del waiting[:AT_ONCE]
            note(answers, served.core.step())
        _join(answers, finish(served.core))
    expect(len(answers) == REQUESTS, f"{len(answers)} of {REQUESTS} requests were answered")
    numbered = {int(name.removeprefix("r")): answer.tokens for (name, _), answer in answers.items()}
    for number, tokens in sorted(numbered.items()):
        if number % 2:
            own = FIRST_WORD + number
            expect(tokens == [own] * TOKENS, f"request r{number} must say {own} alone, got {tokens}", got=tokens)
    plain = {key: answer for key, answer in answers.items() if int(key[0].removeprefix("r")) % 2 == 0}
    judge(context, model, bound, prompts, plain, "interleaved")


@requirement(
    "AC-E2E-011",
    level="MUST",
    text="The pages of an aborted request MUST be free within one step, and all pages once no request is left.",
    needs=NEEDS,
    covers=("hook:anychip_create_kv_pool",),
    cases=_sharpest,
)
def aborted_requests_free_their_pages(context: Context, case: Case) -> None:
    model = model_of(context, case)
    prompts = make_prompts(context, model.config, (50, 33, 20, 64))
    with serving(context, model, scheduler=UNCACHED) as served:
        for request in greedy(prompts, 64):
            served.core.add(request)
        tokens = [len(prompt) for prompt in prompts]
        for _ in range(20):
            for event in served.core.step():
                tokens[int(event.request_id.removeprefix("r"))] += len(event.token_ids)
        for number in (2, 0, 3, 1):
            served.core.abort(f"r{number}")
            tokens[number] = 0
            for event in served.core.step():
                tokens[int(event.request_id.removeprefix("r"))] += len(event.token_ids)
            size = served.loaded.pool.layout.page_size
            # the last one is not computed yet, unless the step behind is computing it
            computed = [count - 1 + served.core.plan.scheduler.overlap.value for count in tokens if count]
            most = sum(-(-count // size) for count in computed)
            used = served.loaded.pool.stats().pages_used
            expect(used <= most, f"one step after r{number} was aborted {used} pages are in use, {most} are needed")
        expect(not served.core.has_work, "all requests are aborted and the engine still has work")


@requirement(
    "AC-E2E-012",
    level="MUST",
    text="The counts of prompt, cached and completion tokens MUST be the real ones, per request and in total.",
    needs=NEEDS,
    cases=_sharpest,
)
def counts_are_real(context: Context, case: Case) -> None:
    model = model_of(context, case)
    first = make_prompts(context, model.config, (40, 17, 33))
    prompts = [*first, *([*prompt, FIRST_WORD] for prompt in first)]
    with serving(context, model) as served:
        answers: dict[tuple[str, int], Answer] = {}
        for request in greedy(prompts, TOKENS):  # one after the other, so that all that can be cached is
            answers |= run(served.core, [request])
        stats = served.core.stats()
        size = served.loaded.pool.layout.page_size
    for number, prompt in enumerate(prompts):
        answer = answers[f"r{number}", 0]
        cached = 0 if number < len(first) else len(prompts[number - len(first)]) // size * size
        found = (answer.last.prompt_tokens, answer.last.cached_tokens, answer.last.completion_tokens)
        expect(
            found == (len(prompt), cached, len(answer.tokens)) and len(answer.tokens) == TOKENS,
            f"request r{number}: prompt, cached and completion tokens are told as {found}; they are "
            f"{(len(prompt), cached, len(answer.tokens))}",
        )
        expect(answer.last.finish_reason == "length", f"request r{number} ended with {answer.last.finish_reason}")
    totals = (stats["prompt_tokens"], stats["completion_tokens"], stats["finished"], stats["requests"])
    real = (sum(map(len, prompts)), TOKENS * len(prompts), len(prompts), len(prompts))
    expect(totals == real, f"prompt tokens, completion tokens, finished and requests are {totals}, really {real}")


@requirement(
    "AC-E2E-013",
    level="MUST",
    text="A text MUST end at its first end token, with at most one of them, and its first token MUST be the one that "
    "was streamed first.",
    needs=NEEDS,
    cases=_sharpest,
)
def texts_end_once(context: Context, case: Case) -> None:
    model = model_of(context, case)
    [end] = model.config.eos_token_ids
    prompts = make_prompts(context, model.config, (21, 9))
    with serving(context, model, scheduler=UNCACHED) as served:
        streamed = _first_tokens(served, greedy(prompts, TOKENS))
        whole = run(served.core, greedy(prompts, TOKENS))
        stops = {key: answer.tokens[TOKENS // 2] for key, answer in whole.items()}
        for (name, _), answer in whole.items():
            expect(
                answer.tokens[0] == streamed[name], f"{name}: {streamed[name]} was streamed first", got=answer.tokens
            )
            expect(len(answer.events[0].token_ids) == 1, f"{name}: the first event holds {answer.events[0].token_ids}")
        for number, prompt in enumerate(prompts):
            stop = stops[f"r{number}", 0]
            stopped = run(served.core, greedy([prompt], TOKENS, stop_token_ids=(stop,)))["r0", 0]
            at = whole[f"r{number}", 0].tokens.index(stop)
            _ended(stopped, stop, whole[f"r{number}", 0].tokens[: at + 1])
            biased = greedy([prompt], TOKENS, ignore_eos=False, logit_bias=((end, CANARY),))
            _ended(run(served.core, biased)["r0", 0], end, [end])


@requirement(
    "AC-E2E-014",
    level="MUST",
    text="The same requests with the same seeds MUST get the same tokens again.",
    needs=(*NEEDS, "deterministic"),
    covers=("op:sample",),
    cases=_sharpest,
)
def seeds_repeat(context: Context, case: Case) -> None:
    model = model_of(context, case)
    prompts = make_prompts(context, model.config, (33, 5, 18, 40))
    drawn = [
        GenerateRequest(
            f"r{number}",
            prompt,
            SamplingParams(temperature=0.9, top_p=0.95, top_k=50, seed=number, max_tokens=TOKENS, ignore_eos=True),
        )
        for number, prompt in enumerate(prompts)
    ]
    with serving(context, model, scheduler=UNCACHED) as served:
        expected = {key: answer.tokens for key, answer in run(served.core, drawn).items()}
        for turn in range(context.scaled(5, 20)):
            got = {key: answer.tokens for key, answer in run(served.core, drawn).items()}
            expect(got == expected, f"time {turn + 2} differs from the first", got=str(got), expected=str(expected))


def _canary(request: GenerateRequest, number: int) -> GenerateRequest:
    bias = ((FIRST_WORD + number, CANARY),)
    params = SamplingParams(temperature=0.0, max_tokens=TOKENS, ignore_eos=True, logit_bias=bias)
    return GenerateRequest(request.id, request.prompt_ids, params)


def _join(answers: dict[tuple[str, int], Answer], later: dict[tuple[str, int], Answer]) -> None:
    for key, answer in later.items():
        kept = answers.setdefault(key, Answer())
        kept.tokens += answer.tokens
        kept.events += answer.events


def _first_tokens(served: Serving, requests: list[GenerateRequest]) -> dict[str, int]:
    """What each request's first event brought, the rest being aborted."""
    for request in requests:
        served.core.add(request)
    found: dict[str, int] = {}
    while served.core.has_work:
        for event in served.core.step():
            found.setdefault(event.request_id, event.token_ids[0])
            served.core.abort(event.request_id)
    return found


def _ended(answer: Answer, end: int, expected: list[int]) -> None:
    expect(
        answer.tokens == expected and answer.last.stop_token_id == end and answer.last.finish_reason == "stop",
        f"the text must end with token {end}, once: {expected}; got {answer.tokens}, {answer.last.finish_reason}",
    )


__all__ = ["requests_are_not_mixed"]
