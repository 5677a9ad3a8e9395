"""What a worker said of a failure, as the exceptions of this side. Knows messages; knows no process."""

from __future__ import annotations

from anychip.engine import messages
from anychip_sdk.errors import AnychipError, QueueFull, RequestInvalid


class WorkerFailed(AnychipError):
    """The worker's own words, with its exit code."""

    def __init__(self, failure: messages.Failed) -> None:
        super().__init__(failure.message, hint=failure.hint)
        self.exit_code = failure.exit_code


def refused(message: messages.Refused) -> AnychipError:
    """The exception that the core raised, on this side."""
    if message.kind == "queue_full":
        return QueueFull(message.message, retry_after_s=message.retry_after_s)
    if message.kind == "invalid":
        return RequestInvalid(message.message, param=message.param, code=message.code, status=message.status)
    return AnychipError(message.message)


def describe_exit(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"


__all__ = ["WorkerFailed", "describe_exit", "refused"]
