"""The messages between the server's process and the worker's.

Knows their fields; knows neither sockets nor what they cause.

Each direction is one tagged union, encoded as msgpack; one message is one frame.
"""

from __future__ import annotations

from typing import Literal, Union

import msgspec

from anychip.engine.request import GenerateRequest, TokenEvent

RefusalKind = Literal["invalid", "queue_full", "internal"]
ThinkingPolicy = Literal["off", "on", "auto"]


class Submit(msgspec.Struct, frozen=True, tag=True):
    request: GenerateRequest


class Abort(msgspec.Struct, frozen=True, tag=True):
    request_id: str


class Stop(msgspec.Struct, frozen=True, tag=True):
    """One completion is whole: its text reached a stop string, of which the worker knows nothing."""

    request_id: str
    index: int


class Flush(msgspec.Struct, frozen=True, tag=True):
    """Empty the prefix cache; answered by Flushed with the same call."""

    call: int


class AskStats(msgspec.Struct, frozen=True, tag=True):
    """Answered by Stats with the same call."""

    call: int


class Shutdown(msgspec.Struct, frozen=True, tag=True):
    pass


class Progress(msgspec.Struct, frozen=True, tag=True):
    """How far loading is: `done` of `total` units of a stage; total 0 where it is not known."""

    stage: str
    done: int = 0
    total: int = 0
    detail: str = ""


class ModelFacts(msgspec.Struct, frozen=True):
    """What a service shows of the model that its worker runs, and goes by: plain data, made of the worker's plan."""

    served_name: str
    path: str  #: of the checkpoint
    context_length: int  #: tokens, prompt and completion together
    vocab_size: int  #: ids below it are valid
    thinking: ThinkingPolicy = "auto"  #: off and on are fixed; auto lets each request decide
    emulated: bool = False  #: the device is an emulator
    warnings: tuple[str, ...] = ()  #: the plan's
    plan: dict[str, object] = {}  #: as JSON


class Ready(msgspec.Struct, frozen=True, tag=True):
    load_s: float
    model: ModelFacts


class Failed(msgspec.Struct, frozen=True, tag=True):
    """The worker ends because of this."""

    message: str
    hint: str | None = None
    exit_code: int = 1


class Accepted(msgspec.Struct, frozen=True, tag=True):
    request_id: str


class Refused(msgspec.Struct, frozen=True, tag=True):
    request_id: str
    kind: RefusalKind
    message: str
    param: str | None = None
    code: str | None = None
    status: int = 400
    retry_after_s: float = 1.0


class Events(msgspec.Struct, frozen=True, tag=True):
    """What one step brought, for all requests."""

    events: list[TokenEvent]


class Flushed(msgspec.Struct, frozen=True, tag=True):
    call: int
    done: bool


class Stats(msgspec.Struct, frozen=True, tag=True):
    call: int
    values: dict[str, float]


ToWorker = Union[Submit, Abort, Stop, Flush, AskStats, Shutdown]
FromWorker = Union[Progress, Ready, Failed, Accepted, Refused, Events, Flushed, Stats]

encode = msgspec.msgpack.Encoder().encode
decode_to_worker = msgspec.msgpack.Decoder(ToWorker).decode
decode_from_worker = msgspec.msgpack.Decoder(FromWorker).decode

__all__ = [
    "Abort",
    "Accepted",
    "AskStats",
    "Events",
    "Failed",
    "Flush",
    "Flushed",
    "FromWorker",
    "ModelFacts",
    "Progress",
    "Ready",
    "Refused",
    "Shutdown",
    "Stats",
    "Stop",
    "Submit",
    "ThinkingPolicy",
    "ToWorker",
    "decode_from_worker",
    "decode_to_worker",
    "encode",
]
