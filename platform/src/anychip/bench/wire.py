"""The two wire formats in which prompts go out as token ids and tokens come back. Knows JSON; knows no connection."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from enum import Enum
from typing import NamedTuple

from anychip.bench.prompts import Prompt


class Api(str, Enum):
    """An endpoint that takes token ids."""

    completions = "completions"  #: OpenAI's /v1/completions
    generate = "generate"  #: SGLang's /generate

    @property
    def path(self) -> str:
        return "/v1/completions" if self is Api.completions else "/generate"


class Chunk(NamedTuple):
    """Bytes of a stream and when they came."""

    at_s: float
    data: bytes


class Answer(NamedTuple):
    """A stream, read."""

    event_s: tuple[float, ...]  #: of the events that brought tokens
    output_tokens: int
    prompt_tokens: int | None
    cached_tokens: int | None
    error: str


def request_body(api: Api, model: str, prompt: Prompt) -> dict[str, object]:
    """Greedy, streamed, and exactly as long as asked for: the end-of-sequence token doesn't end it."""
    ids, count = list(prompt.ids), prompt.output_tokens
    if api is Api.generate:
        sampling = {"max_new_tokens": count, "temperature": 0, "ignore_eos": True}
        return {"input_ids": ids, "sampling_params": sampling, "stream": True}
    return {
        "model": model,
        "prompt": ids,
        "max_tokens": count,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def read_answer(api: Api, chunks: Sequence[Chunk]) -> Answer:
    """What a stream said; an event counts at the time when its last byte came."""
    reader = _Completions() if api is Api.completions else _Generate()
    for at_s, data in _events(chunks):
        if data == b"[DONE]":
            break
        try:
            event = json.loads(data)
        except ValueError:
            return reader.answer(f"an event is no JSON: {data[:200]!r}")
        if not isinstance(event, dict):
            return reader.answer(f"an event is no JSON object: {data[:200]!r}")
        if event.get("error"):
            return reader.answer(f"the stream ended with an error: {json.dumps(event['error'])[:500]}")
        reader.take(at_s, event)
    return reader.answer("" if reader.event_s else "the stream brought no token")


def _events(chunks: Sequence[Chunk]) -> Iterable[tuple[float, bytes]]:
    rest = b""
    for at_s, data in chunks:
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                yield at_s, line[5:].strip()


class _Completions:
    """Counts come once, at the end, in `usage`."""

    def __init__(self) -> None:
        self.event_s: list[float] = []
        self._usage: dict[str, object] = {}

    def take(self, at_s: float, event: dict[str, object]) -> None:
        if event.get("choices"):
            self.event_s.append(at_s)
        if isinstance(usage := event.get("usage"), dict):
            self._usage = usage

    def answer(self, error: str) -> Answer:
        details = self._usage.get("prompt_tokens_details")
        cached = _count(details, "cached_tokens") if isinstance(details, dict) else None
        output = _count(self._usage, "completion_tokens")
        if not error and output is None:
            error = "the stream brought no usage, so its tokens can't be counted"
        return Answer(tuple(self.event_s), output or 0, _count(self._usage, "prompt_tokens"), cached, error)


class _Generate:
    """Each event holds the counts so far."""

    def __init__(self) -> None:
        self.event_s: list[float] = []
        self._meta: dict[str, object] = {}

    def take(self, at_s: float, event: dict[str, object]) -> None:
        if isinstance(meta := event.get("meta_info"), dict):
            self.event_s.append(at_s)
            self._meta = meta

    def answer(self, error: str) -> Answer:
        output, prompt = _count(self._meta, "completion_tokens"), _count(self._meta, "prompt_tokens")
        return Answer(tuple(self.event_s), output or 0, prompt, _count(self._meta, "cached_tokens"), error)


def _count(counts: dict[str, object], name: str) -> int | None:
    value = counts.get(name)
    return value if isinstance(value, int) else None


__all__ = ["Answer", "Api", "Chunk", "read_answer", "request_body"]
