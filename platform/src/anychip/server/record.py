"""What the log will say of one request, filled in on its way. Knows names and numbers; holds no text of a prompt."""

from __future__ import annotations

import time
from contextvars import ContextVar
from dataclasses import dataclass, field


@dataclass
class Record:
    """One request over HTTP.

    Attributes:
        request_id: the client's X-Request-Id where it sent a good one, else ours.
        status: of the reply; 499 where the client left before there was one.
        key: the name of the API key, where one was used.
        generation: the id of the completion, as the reply has it.
        finish: why its choices ended, each reason once; "abort" where the client left or the service ended them.
        error: a code for what was refused or failed.
        param: the request's field that is to blame.
    """

    request_id: str = ""
    client: str = ""
    method: str = ""
    path: str = ""
    status: int = 499
    key: str | None = None
    generation: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    finish: str | None = None
    error: str | None = None
    param: str | None = None
    started_s: float = field(default_factory=time.monotonic)

    def fail(self, error: str, param: str | None = None) -> None:
        """Note what was wrong: a code, and the name of the field at fault. Values are the client's own affair."""
        self.error, self.param = error[:100], param and param[:100]

    def to_log(self) -> dict[str, object]:
        """What is known, in the order of the line."""
        known = {name: value for name, value in vars(self).items() if name != "started_s" and value is not None}
        return {**known, "duration_s": round(time.monotonic() - self.started_s, 4)}


_CURRENT: ContextVar[Record | None] = ContextVar("record", default=None)


def current() -> Record:
    """The record of the request that is being handled; outside of one, a record that nobody will read."""
    return _CURRENT.get() or Record()


def begin(record: Record) -> None:
    """Make it the current one, for this task and what it starts."""
    _CURRENT.set(record)


__all__ = ["Record", "begin", "current"]
