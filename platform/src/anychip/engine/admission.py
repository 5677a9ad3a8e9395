"""Which requests are refused at once, and what the admitted ones may still need. Knows counts; knows no queue."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from anychip.engine.request import GenerateRequest, SamplingParams
from anychip.engine.sequence import Sequence
from anychip_sdk.errors import QueueFull, RequestInvalid
from anychip_sdk.kv import KVPool

PolicyName = Literal["lpm", "fcfs"]

FLOAT32_MAX, FLOAT32_LEAST = 3.4028234e38, 1.1754944e-38  #: the largest, and the least with full precision
TOP_K_MAX = 2**31 - 1
TOP_MAX = 20  #: of the likeliest tokens whose log-probabilities a request may ask for


@dataclass(frozen=True)
class SchedulerConfig:
    """What the plan decided about scheduling."""

    chunked_prefill_size: int  #: tokens of prompts in one step
    max_running_requests: int  #: sequences in one step: a request counts n times
    max_queued_requests: int  #: while no place is free; 0: none waits
    policy: PolicyName
    prefix_cache: bool
    context_length: int  #: tokens of prompt and output
    page_size: int
    vocab_size: int
    eos_token_ids: tuple[int, ...] = ()
    overlap: bool = False  #: a step may be scheduled while the one before it runs
    shared_prefix_tokens: int = 32  #: lpm: wait for a running prefill only where it saves so many tokens

    def __post_init__(self) -> None:
        for name in (
            "chunked_prefill_size",
            "max_running_requests",
            "context_length",
            "page_size",
            "vocab_size",
            "shared_prefix_tokens",
        ):
            value = getattr(self, name)
            if value < 1:
                message = f"SchedulerConfig.{name} is {value}, at least 1 is expected"
                raise ValueError(message)
        if self.max_queued_requests < 0:
            message = f"SchedulerConfig.max_queued_requests is {self.max_queued_requests}, at least 0 is expected"
            raise ValueError(message)
        if self.policy not in ("lpm", "fcfs"):
            message = f"SchedulerConfig.policy is {self.policy!r}, expected 'lpm' or 'fcfs'"
            raise ValueError(message)


class OutputEstimate:
    """How many tokens running sequences will still write, neither hopeful nor wasteful.

    A sequence is expected to use `ratio` of what it may still write. The ratio starts careful, falls step by step while
    memory suffices, and jumps up when a retraction shows that it was too low. Short remainders count in full, and no
    remainder counts more than LONGEST: the guess for "until the context is full" is of no use beyond that.
    """

    START = 0.7
    FLOOR = 0.1
    DECAY = 0.001  # a step
    AFTER_RETRACTION = 0.3
    EXACT = 64  # tokens
    LONGEST = 4096  # tokens

    def __init__(self, max_length: int) -> None:
        self._max_length = max_length
        self.ratio = self.START

    def step(self) -> None:
        self.ratio = max(self.FLOOR, self.ratio - self.DECAY)

    def retracted(self) -> None:
        self.ratio = min(1.0, self.ratio + self.AFTER_RETRACTION)

    def idle(self) -> None:
        self.ratio = self.START

    def tokens(self, sequence: Sequence) -> int:
        """How many more tokens the sequence is expected to get before it ends."""
        remaining = self._max_length - len(sequence.tokens)
        limit = sequence.output_limit
        if limit is not None:
            remaining = min(remaining, limit - sequence.output_count)
        if remaining <= self.EXACT:
            return remaining
        return max(self.EXACT, int(min(remaining, self.LONGEST) * self.ratio))

    def pages(self, sequence: Sequence, pages_held: int, page_size: int) -> int:
        """Pages that a sequence and its forks are expected to take beyond those held; forks copy one page each."""
        growth = -(-(len(sequence.tokens) + self.tokens(sequence)) // page_size) - pages_held
        return sequence.width * growth + sequence.width - 1


def running_limit(config: SchedulerConfig, pool: KVPool) -> int:
    """How many sequences run at once: as many as are configured and, where the model keeps slot states, have a slot.

    Raises:
        ValueError: the pool has no slots at all for such a model.
    """
    if all(group.spec.kind != "slot" for group in pool.groups):
        return config.max_running_requests
    if pool.layout.slots < 1:
        message = "the model keeps a state per sequence and the pool has no slots: expected one per running sequence"
        raise ValueError(message)
    return min(config.max_running_requests, pool.layout.slots)


def validate(request: GenerateRequest, config: SchedulerConfig, pages_total: int) -> None:
    """Refuse what can never run.

    Raises:
        RequestInvalid: with the parameter's name, what it is and what it may be.
    """
    _check_prompt(request, config, pages_total)
    _check_numbers(request.params)
    _check_ids(request.params, config.vocab_size)
    if request.params.n > config.max_running_requests:
        message = f"n is {request.params.n}, but at most {config.max_running_requests} sequences run at once"
        raise RequestInvalid(message, param="n")


def check_queue(
    request: GenerateRequest,
    running: Iterable[Sequence],
    waiting: Iterable[Sequence],
    places: int,
    queued_max: int,
) -> None:
    """Refuse a request that would have to wait where enough do already; what can begin with the next step doesn't wait.

    Raises:
        QueueFull: with the limit.
    """
    free, queued = places - sum(sequence.width for sequence in running), 0
    for sequence in waiting:
        free -= sequence.width
        queued += free < 0
    if free < request.params.n and queued >= queued_max:
        message = (
            f"all {places} places are taken (scheduler.max_running_requests) and {queued} requests wait already, "
            f"the limit is {queued_max} (server.max_queued_requests)"
        )
        raise QueueFull(message)


def _check_prompt(request: GenerateRequest, config: SchedulerConfig, pages_total: int) -> None:
    ids = request.prompt_ids
    if not ids:
        message = "the prompt is empty, at least one token is expected"
        raise RequestInvalid(message, param="prompt")
    if len(ids) >= config.context_length:
        message = f"the prompt has {len(ids)} tokens, the context {config.context_length}: no room for an answer"
        raise RequestInvalid(message, param="prompt", code="context_length_exceeded")
    pages = -(-(len(ids) + 1) // config.page_size)
    if pages > pages_total:
        message = (
            f"the prompt and one token need {pages} pages of {config.page_size} tokens, the KV pool has {pages_total}"
        )
        raise RequestInvalid(message, param="prompt", code="context_length_exceeded")
    _check_range("prompt", min(ids), config.vocab_size)
    _check_range("prompt", max(ids), config.vocab_size)


def _check_ids(params: SamplingParams, vocab_size: int) -> None:
    for token in params.stop_token_ids:
        _check_range("stop_token_ids", token, vocab_size)
    for token, bias in params.logit_bias:
        _check_range("logit_bias", token, vocab_size)
        _check("logit_bias", bias, abs(bias) <= FLOAT32_MAX, "a number that float32 holds")


def _check_range(param: str, token: int, vocab_size: int) -> None:
    if not 0 <= token < vocab_size:
        message = f"{param}: token id {token} is not one of 0..{vocab_size - 1}"
        raise RequestInvalid(message, param=param)


def _check_numbers(params: SamplingParams) -> None:
    p = params
    _check("n", p.n, p.n >= 1, "at least 1")
    _check("max_tokens", p.max_tokens, p.max_tokens is None or p.max_tokens >= 1, "at least 1")
    limit = p.max_tokens
    _check(
        "min_tokens",
        p.min_tokens,
        p.min_tokens >= 0 and (limit is None or p.min_tokens <= limit),
        f"0 to max_tokens ({'unlimited' if limit is None else limit})",
    )
    _check("temperature", p.temperature, 0 <= p.temperature <= FLOAT32_MAX, "a finite number, at least 0")
    _check("top_p", p.top_p, 0 < p.top_p <= 1, "more than 0 and at most 1")
    _check("top_k", p.top_k, 0 <= p.top_k <= TOP_K_MAX, f"0 (off) to {TOP_K_MAX}")
    _check("min_p", p.min_p, 0 <= p.min_p <= 1, "0 to 1")
    repetition = p.repetition_penalty
    _check("repetition_penalty", repetition, FLOAT32_LEAST <= repetition <= FLOAT32_MAX, "more than 0, and finite")
    _check("presence_penalty", p.presence_penalty, abs(p.presence_penalty) <= FLOAT32_MAX, "a finite number")
    _check("logprobs", p.logprobs, p.logprobs is None or 0 <= p.logprobs <= TOP_MAX, f"0 to {TOP_MAX}")
    _check("frequency_penalty", p.frequency_penalty, abs(p.frequency_penalty) <= FLOAT32_MAX, "a finite number")


def _check(param: str, value: float | None, is_valid: bool, expected: str) -> None:
    if not is_valid:
        message = f"{param} is {value}, expected {expected}"
        raise RequestInvalid(message, param=param)


__all__ = ["OutputEstimate", "PolicyName", "SchedulerConfig", "check_queue", "running_limit", "validate"]
