"""What the endpoints that generate nothing answer, and SGLang's /generate, as readers of the API are told.

Knows fields; the endpoints fill them. Tests compare the two.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec


class LoadProgress(msgspec.Struct, frozen=True):
    stage: str
    done: int
    total: int  #: 0: not known
    detail: str


class Health(msgspec.Struct, frozen=True):
    status: str
    progress: LoadProgress | msgspec.UnsetType = msgspec.UNSET


class ModelCard(msgspec.Struct, frozen=True):
    id: str
    created: int
    root: str
    max_model_len: int
    object: Literal["model"] = "model"
    owned_by: str = "anychip"


class ModelList(msgspec.Struct, frozen=True):
    data: list[ModelCard]
    object: Literal["list"] = "list"


class ServerInfo(msgspec.Struct, frozen=True):
    version: str
    model: str
    aliases: list[str]
    context_length: int
    thinking: Literal["off", "on", "auto"]
    emulated: bool
    state: str
    reason: str | None
    restarts: int
    hangs: int
    plan: dict[str, Any]
    stats: dict[str, float]
    time: float


class Tokenized(msgspec.Struct, frozen=True):
    tokens: list[int]
    count: int
    max_model_len: int


class Detokenized(msgspec.Struct, frozen=True):
    text: str


class Flushed(msgspec.Struct, frozen=True):
    flushed: bool


class Finish(msgspec.Struct, frozen=True):
    type: Literal["stop", "length"]
    matched: str | int | msgspec.UnsetType = msgspec.UNSET  #: the stop string or token


class MetaInfo(msgspec.Struct, frozen=True):
    id: str
    finish_reason: Finish | None
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    e2e_latency: float


class Generated(msgspec.Struct, frozen=True):
    text: str
    meta_info: MetaInfo
    index: int | msgspec.UnsetType = msgspec.UNSET  #: where several were asked for


__all__ = [
    "Detokenized",
    "Finish",
    "Flushed",
    "Generated",
    "Health",
    "LoadProgress",
    "MetaInfo",
    "ModelCard",
    "ModelList",
    "ServerInfo",
    "Tokenized",
]
