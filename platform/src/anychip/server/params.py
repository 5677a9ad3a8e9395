"""Turn a request's checked fields into sampling parameters for one prompt. Knows the model's limits; knows no text."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec

from anychip.engine.messages import ModelFacts
from anychip.engine.request import SamplingParams
from anychip.server.openai.protocol import SamplingBody
from anychip_sdk.errors import RequestInvalid

MAX_LOGIT_BIAS = 100.0


def sampling_params(
    body: SamplingBody,
    max_tokens: int | None,
    prompt_lengths: Sequence[int],
    model: ModelFacts,
    defaults: Mapping[str, float],
) -> list[SamplingParams]:
    """Parameters for each of the prompts; `max_tokens` beyond the context's room is cut to it (finish `length`).

    Args:
        prompt_lengths: in tokens.
        defaults: for fields that the body leaves out, by their names.
    """
    rooms = [room_for(length, _prompt_field(body), model) for length in prompt_lengths]
    limits = [room if max_tokens is None else min(max_tokens, room) for room in rooms]
    if limits and body.min_tokens > min(limits):
        raise RequestInvalid(
            f"min_tokens: {body.min_tokens} is more than the {min(limits)} tokens allowed", param="min_tokens"
        )
    shared = SamplingParams(
        temperature=_default(body.temperature, "temperature", 1.0, defaults),
        top_p=_default(body.top_p, "top_p", 1.0, defaults),
        top_k=_top_k(body.top_k, model.vocab_size, defaults),
        min_p=_default(body.min_p, "min_p", 0.0, defaults),
        seed=None if body.seed is None else body.seed % 2**63,
        min_tokens=body.min_tokens,
        stop_token_ids=checked_ids(body.stop_token_ids, "stop_token_ids", model.vocab_size),
        ignore_eos=body.ignore_eos,
        repetition_penalty=_default(body.repetition_penalty, "repetition_penalty", 1.0, defaults),
        presence_penalty=body.presence_penalty,
        frequency_penalty=body.frequency_penalty,
        logit_bias=_logit_bias(body.logit_bias, model.vocab_size),
        n=body.n,
    )
    return [msgspec.structs.replace(shared, max_tokens=limit) for limit in limits]


def room_for(prompt_tokens: int, param: str, model: ModelFacts, least: str = "") -> int:
    """How many tokens the context has beside a prompt of so many; raises RequestInvalid where there is none.

    Args:
        least: `at least `, where the number is a bound.
    """
    room = model.context_length - prompt_tokens
    if room < 1:
        raise RequestInvalid(
            f"the prompt has {least}{prompt_tokens} tokens; with a context of {model.context_length} tokens at most "
            f"{model.context_length - 1} fit",
            param=param,
            code="context_length_exceeded",
        )
    return room


def checked_ids(ids: list[int], param: str, vocab_size: int) -> tuple[int, ...]:
    """The ids, all of them in the vocabulary."""
    if ids and not 0 <= min(ids) <= max(ids) < vocab_size:
        token = next(token for token in ids if not 0 <= token < vocab_size)
        shown = token if abs(token) < 10**20 else "a number of many digits"
        raise RequestInvalid(f"{param}: {shown} is no token id; they are 0 to {vocab_size - 1}", param=param)
    return tuple(ids)


def _logit_bias(bias: Mapping[str, float], vocab_size: int) -> tuple[tuple[int, float], ...]:
    pairs = []
    for key, value in bias.items():
        if not (key.isascii() and key.isdigit() and len(key) <= 10 and int(key) < vocab_size):
            raise RequestInvalid(
                f"logit_bias: {key[:40]!r} is no token id; they are 0 to {vocab_size - 1}", param="logit_bias"
            )
        if not math.isfinite(value) or abs(value) > MAX_LOGIT_BIAS:
            raise RequestInvalid(f"logit_bias: {value:g} for token {key}; expected -100 to 100", param="logit_bias")
        pairs.append((int(key), float(value)))
    return tuple(pairs)


def _top_k(given: int | None, vocab_size: int, defaults: Mapping[str, float]) -> int:
    """Clamped as the whole number that it is: a float may not hold it."""
    wanted = defaults.get("top_k", 0) if given is None else given
    return int(max(0, min(wanted, vocab_size)))


def _default(value: float | None, name: str, otherwise: float, defaults: Mapping[str, float]) -> float:
    return float(defaults.get(name, otherwise) if value is None else value)


def _prompt_field(body: SamplingBody) -> str:
    names = ("messages", "prompt", "text")
    return next((name for name in names if name in type(body).model_fields), "prompt")


__all__ = ["checked_ids", "room_for", "sampling_params"]
