"""The endpoints: where each is, what it takes and what it answers. Routes and API document are both made of this table.

Knows no wire format and no socket.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from anychip.server import answers, documents, info, native
from anychip.server.fields import Body
from anychip.server.openai import chat, completions, replies
from anychip.server.openai.protocol import ChatRequest, CompletionRequest
from anychip.server.unknown import Handle


@dataclass(frozen=True)
class Endpoint:
    """One method of one path.

    Attributes:
        summary: a line for readers.
        body: what a POST takes.
        reply: the type of a whole answer; None where it is text.
        chunk: the type of a stream's events, for those that stream.
        media_type: of a whole answer.
        refusals: the statuses beside 200 that it has answers of its own for.
    """

    method: str
    path: str
    handle: Handle
    summary: str
    body: type[Body] | None = None
    reply: object = None
    chunk: object = None
    media_type: str = "application/json"
    refusals: tuple[int, ...] = ()


GENERATING = (400, 404, 413, 415, 429, 500, 503)
READING = (400, 404, 413, 415, 503)

ENDPOINTS = (
    Endpoint(
        "POST",
        "/v1/chat/completions",
        chat.chat_completions,
        "Continue a conversation",
        ChatRequest,
        replies.ChatReply,
        replies.ChatChunk,
        refusals=GENERATING,
    ),
    Endpoint(
        "POST",
        "/v1/completions",
        completions.completions,
        "Continue a text",
        CompletionRequest,
        replies.TextReply,
        replies.TextReply,
        refusals=GENERATING,
    ),
    Endpoint(
        "POST",
        "/generate",
        native.generate,
        "Continue a text, in SGLang's form",
        native.GenerateBody,
        answers.Generated | list[answers.Generated],
        answers.Generated,
        refusals=GENERATING,
    ),
    Endpoint(
        "GET", "/v1/models", info.models, "The names of the served model", reply=answers.ModelList, refusals=(503,)
    ),
    Endpoint("GET", "/v1/models/{name:path}", info.model, "One of them", reply=answers.ModelCard, refusals=(404, 503)),
    Endpoint(
        "POST",
        "/tokenize",
        info.tokenize,
        "The tokens of a text",
        info.TokenizeBody,
        answers.Tokenized,
        refusals=READING,
    ),
    Endpoint(
        "POST",
        "/detokenize",
        info.detokenize,
        "The text of tokens",
        info.DetokenizeBody,
        answers.Detokenized,
        refusals=READING,
    ),
    Endpoint("GET", "/health", info.health, "200 only while requests are taken", reply=answers.Health, refusals=(503,)),
    Endpoint("GET", "/ready", info.health, "The same", reply=answers.Health, refusals=(503,)),
    Endpoint("GET", "/metrics", info.metrics, "Numbers for Prometheus", media_type="text/plain", refusals=(503,)),
    Endpoint(
        "GET",
        "/server_info",
        info.server_info,
        "What runs: version, plan, and the engine's numbers",
        reply=answers.ServerInfo,
        refusals=(503,),
    ),
    Endpoint(
        "POST",
        "/flush_cache",
        info.flush_cache,
        "Empty the prefix cache; refused while requests run",
        reply=answers.Flushed,
        refusals=(400, 503),
    ),
    Endpoint("GET", "/openapi.json", documents.openapi, "This document", reply=dict[str, Any]),
    Endpoint("GET", "/docs", documents.page, "This document as a page", media_type="text/html"),
)

__all__ = ["ENDPOINTS", "Endpoint"]
