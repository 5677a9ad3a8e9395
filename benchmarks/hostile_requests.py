"""Hostile and oversized requests of many kinds, from a seed. Knows bytes of HTTP; sends nothing."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from typing import NamedTuple

MEGABYTE = 1 << 20


class Hostile(NamedTuple):
    kind: str
    data: bytes  #: what is sent, whole
    is_whole: bool = True  #: an answer is due; otherwise the client hangs up after a while


def post(path: str, body: bytes, *headers: str) -> bytes:
    lines = (f"POST {path} HTTP/1.1", "Host: localhost", "Content-Type: application/json", *headers)
    head = "\r\n".join((*lines, "Connection: close", f"Content-Length: {len(body)}", "", ""))
    return head.encode() + body


def complete(**fields: object) -> bytes:
    return post("/v1/completions", json.dumps({"max_tokens": 4, **fields}).encode())


def chat(messages: object, **fields: object) -> bytes:
    return post("/v1/chat/completions", json.dumps({"messages": messages, "max_tokens": 4, **fields}).encode())


def _user(content: object, **more: object) -> dict[str, object]:
    return {"role": "user", "content": content, **more}


def _large_text(draw: random.Random) -> bytes:
    unit = draw.choice(["a b ", "x", " ", "中文", "\n", "🙂", ", ", '"\\', "<|im_end|>", "e\u0301"])
    return complete(prompt=unit * (draw.randint(1, 9) * MEGABYTE // len(json.dumps(unit))))


def _large_message(draw: random.Random) -> bytes:
    field = draw.choice(["content", "name", "reasoning_content"])
    return chat([{**_user("hi"), field: "a b " * (draw.randint(1, 9) * MEGABYTE // 4)}])


def _many_prompts(draw: random.Random) -> bytes:
    return complete(prompt=["a b " * 1000] * draw.choice([100, 512, 513, 2000]))


def _many_messages(draw: random.Random) -> bytes:
    return chat([_user("x" * draw.choice([0, 10, 900]))] * draw.choice([1000, 4096, 10_000]))


def _many_parts(draw: random.Random) -> bytes:
    return chat([_user([{"type": "text", "text": "a"}] * draw.choice([1000, 30_000, 200_000]))])


def _ids(draw: random.Random) -> bytes:
    count, token = draw.choice([1000, 100_000, 500_000, 2_000_000]), draw.choice([1, 511, 512, 10**300])
    return complete(prompt=[token] * min(count, 9 * MEGABYTE // (len(str(token)) + 2)))


def _bias(draw: random.Random) -> bytes:
    entries = draw.choice([512, 1024, 1025, 49_152, 300_000])
    wrong = draw.random() < 0.5
    bias = {f"x{i}" if wrong else str(i): draw.choice([1, "y"]) for i in range(entries)}
    return complete(prompt="a", n=draw.choice([1, 8]), logit_bias=bias)


def _wrong_fields(draw: random.Random) -> bytes:
    count = draw.choice([10, 255, 1000, 300_000])
    if draw.random() < 0.5:
        return complete(prompt="a", **{f"f{i}": 1 for i in range(count)})
    return chat([_user("a", **{f"f{i}": 1 for i in range(count)})])


def _long_name(draw: random.Random) -> bytes:
    return complete(prompt="a", **{draw.choice("ab") * (5 * MEGABYTE): 1})


def _shapes(draw: random.Random) -> bytes:
    unit = draw.choice(["[],", "{},", '{"a":1},', "1,", '"a",', "1.5e-7,", "null,", "9" * 4000 + ","])
    count = draw.choice([1000, 60_000, 9 * MEGABYTE // len(unit)])
    inner = unit * min(count, 9 * MEGABYTE // len(unit))
    path = draw.choice(["/v1/completions", "/v1/chat/completions", "/generate", "/tokenize", "/detokenize"])
    field = draw.choice(["prompt", "messages", "metadata", "text", "tokens", "stop", "user"])
    return post(path, f'{{"{field}": [{inner}1]}}'.encode())


def _nesting(draw: random.Random) -> bytes:
    depth = draw.choice([100, 1000, 30_000, 5_000_000])
    return post("/v1/completions", b'{"prompt": ' + b"[" * depth)


def _numbers(draw: random.Random) -> bytes:
    fields = ["top_k", "n", "seed", "max_tokens", "min_tokens", "temperature", "top_p", "presence_penalty"]
    return complete(prompt="a", **{draw.choice(fields): draw.choice([10**400, -(10**400), 1e308, -1, 0, True])})


def _template(draw: random.Random) -> bytes:
    names = ["self", "messages", "caller", "loop", "eos_token", "range", "anychip_tick"]
    return chat([_user("a")], chat_template_kwargs={draw.choice(names): draw.choice([1, None, [1], "x" * MEGABYTE])})


def _stops(draw: random.Random) -> bytes:
    return complete(prompt="a", stop=["b" * draw.choice([1, 1024, 1025, MEGABYTE])] * draw.choice([1, 16, 17, 4000]))


def _texts_to_tokens(draw: random.Random) -> bytes:
    if draw.random() < 0.5:
        return post("/tokenize", json.dumps({"prompt": "a b " * draw.choice([1000, 250_000, 2_000_000])}).encode())
    return post("/detokenize", json.dumps({"tokens": [5] * draw.choice([1000, 500_000, 1_000_000])}).encode())


def _headers(draw: random.Random) -> bytes:
    size = draw.choice([1000, 60_000, 70_000, 16 * MEGABYTE])
    one = f"X-A: {'a' * size}" if draw.random() < 0.5 else "\r\n".join(f"X-{i}: 1" for i in range(size // 10))
    return post("/v1/completions", b"{}", one)


def _noise(draw: random.Random) -> bytes:
    return draw.randbytes(draw.choice([1, 100, 100_000])) + b"\r\n\r\n"


def _half(draw: random.Random) -> bytes:
    whole = complete(prompt="a b " * draw.choice([10, 100_000]))
    return whole[: draw.randrange(1, len(whole))]


KINDS: dict[str, Callable[[random.Random], bytes]] = {
    "large text": _large_text,
    "large message": _large_message,
    "many prompts": _many_prompts,
    "many messages": _many_messages,
    "many parts": _many_parts,
    "token ids": _ids,
    "logit_bias": _bias,
    "wrong fields": _wrong_fields,
    "long name": _long_name,
    "JSON shapes": _shapes,
    "nesting": _nesting,
    "numbers": _numbers,
    "template variables": _template,
    "stop strings": _stops,
    "tokenize, detokenize": _texts_to_tokens,
    "headers": _headers,
    "noise": _noise,
    "half a request": _half,
}


def hostile_requests(count: int, seed: int) -> Iterator[Hostile]:
    """So many requests, the kinds in turn."""
    draw, kinds = random.Random(seed), list(KINDS)
    for number in range(count):
        kind = kinds[number % len(kinds)]
        yield Hostile(kind, KINDS[kind](draw), kind not in {"half a request", "noise"})


__all__ = ["KINDS", "Hostile", "hostile_requests"]
