"""Turn a request's checked fields into sampling parameters for one prompt. Knows the model's limits; knows no text."""

from __future__ import annotations

import math
from collections.abc import Mapping

from anychip.engine.messages import ModelFacts
from anychip.engine.request import SamplingParams
from anychip.server.openai.protocol import SamplingBody
from anychip_sdk.errors import RequestInvalid

MAX_LOGIT_BIAS = 100.0


def sampling_params(
    body: SamplingBody, max_tokens: int | None, prompt_tokens: int, model: ModelFacts, defaults: Mapping[str, float]
) -> SamplingParams:
    """Parameters for a prompt of that length; `max_tokens` beyond the context's room is cut to it (finish `length`).

    Args:
        defaults: for fields that the body leaves out, by their names.
    """
    room = model.context_length - prompt_tokens
    if room < 1:
        raise RequestInvalid(
            f"the prompt has {prompt_tokens} tokens; with a context of {model.context_length} tokens at most "
            f"{model.context_length - 1} fit",
            param=_prompt_field(body),
            code="context_length_exceeded",
        )
    limit = room if max_tokens is None else min(max_tokens, room)
    if body.min_tokens > limit:
        raise RequestInvalid(
            f"min_tokens: {body.min_tokens} is more than the {limit} tokens allowed", param="min_tokens"
        )
    return SamplingParams(
        temperature=_default(body.temperature, "temperature", 1.0, defaults),
        top_p=_default(body.top_p, "top_p", 1.0, defaults),
        top_k=max(0, min(int(_default(body.top_k, "top_k", 0, defaults)), model.vocab_size)),
        min_p=_default(body.min_p, "min_p", 0.0, defaults),
        seed=None if body.seed is None else body.seed % 2**63,
        max_tokens=limit,
        min_tokens=body.min_tokens,
        stop_token_ids=checked_ids(body.stop_token_ids, "stop_token_ids", model.vocab_size),
        ignore_eos=body.ignore_eos,
        repetition_penalty=_default(body.repetition_penalty, "repetition_penalty", 1.0, defaults),
        presence_penalty=body.presence_penalty,
        frequency_penalty=body.frequency_penalty,
        logit_bias=_logit_bias(body.logit_bias, model.vocab_size),
        n=body.n,
    )


def checked_ids(ids: list[int], param: str, vocab_size: int) -> tuple[int, ...]:
    """The ids, all of them in the vocabulary."""
    for token in ids:
        if not 0 <= token < vocab_size:
            raise RequestInvalid(f"{param}: {token} is no token id; they are 0 to {vocab_size - 1}", param=param)
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


def _default(value: float | None, name: str, otherwise: float, defaults: Mapping[str, float]) -> float:
    return float(defaults.get(name, otherwise) if value is None else value)


def _prompt_field(body: SamplingBody) -> str:
    names = ("messages", "prompt", "text")
    return next((name for name in names if name in type(body).model_fields), "prompt")


__all__ = ["checked_ids", "sampling_params"]
