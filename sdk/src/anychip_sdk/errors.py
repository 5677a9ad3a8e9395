"""The tree of errors that a user of anychip can meet. Knows exit codes; knows nothing of who raises them.

AnychipError                    exit 1
├── UsageError                  exit 2   the command line is wrong
├── RecipeInvalid               exit 3   all problems of a recipe at once
├── PreconditionFailed          exit 4   something that the recipe needs is not there
│   ├── BackendNotFound                  no installed distribution offers that backend
│   ├── BackendBroken                    the plugin raised, or broke the hooks' contract
│   ├── BackendIncompatible              API, torch, driver or plugin version does not fit
│   ├── DeviceAbsent                     the backend is installed, its device is not there
│   ├── CheckpointInvalid                missing, truncated, wrong shape, unknown architecture
│   ├── KernelMissing                    no kernel fits and the recipe forbids the fallback
│   ├── FusionRefused                    a fusion asked for by name can't be applied
│   ├── MemoryInsufficient               weights and one request do not fit
│   └── PortTaken
├── NotReady                    exit 5   the service did not become ready in time
├── Regression                  exit 6
├── ConformanceFailed           exit 7
├── IntegrityFailed             exit 8
├── StateLocked                 exit 9
├── Inconclusive                exit 10
├── RequestInvalid              HTTP 4xx a request is wrong; names the parameter
├── QueueFull                   HTTP 429
├── EngineDead                  HTTP 503
├── DeviceLost                  internal: the worker is started again
└── KVPoolExhausted             internal: the scheduler evicts or retracts
"""

from __future__ import annotations

from collections.abc import Sequence


class AnychipError(Exception):
    """Says what is wrong, where, what was expected and what to do.

    Args:
        message: what is wrong and where; one line where possible.
        hint: what to do about it.
    """

    exit_code = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return self.message if self.hint is None else f"{self.message}\n  hint: {self.hint}"


class UsageError(AnychipError):
    exit_code = 2


class RecipeInvalid(AnychipError):
    """Every problem of a recipe, each as `file:line:col  path: what, expected, did you mean`."""

    exit_code = 3

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)


class PreconditionFailed(AnychipError):
    exit_code = 4


class BackendNotFound(PreconditionFailed):
    pass


class BackendBroken(PreconditionFailed):
    pass


class BackendIncompatible(PreconditionFailed):
    pass


class DeviceAbsent(PreconditionFailed):
    pass


class CheckpointInvalid(PreconditionFailed):
    pass


class KernelMissing(PreconditionFailed):
    pass


class FusionRefused(PreconditionFailed):
    pass


class MemoryInsufficient(PreconditionFailed):
    pass


class PortTaken(PreconditionFailed):
    pass


class NotReady(AnychipError):
    exit_code = 5


class Regression(AnychipError):
    exit_code = 6


class ConformanceFailed(AnychipError):
    exit_code = 7


class IntegrityFailed(AnychipError):
    exit_code = 8


class StateLocked(AnychipError):
    exit_code = 9


class Inconclusive(AnychipError):
    exit_code = 10


class RequestInvalid(AnychipError):
    """A request is refused before anything is computed.

    Args:
        message: what is wrong with it.
        param: the request's parameter, in dotted form, or None where no single one is to blame.
        code: OpenAI's error code, e.g. `model_not_found`.
        status: the HTTP status, 400 unless said otherwise.
    """

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None, status: int = 400) -> None:
        super().__init__(message)
        self.param = param
        self.code = code
        self.status = status


class QueueFull(AnychipError):
    """Too many requests wait already.

    Args:
        message: with the limit.
        retry_after_s: when to try again, in seconds.
    """

    def __init__(self, message: str, *, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class EngineDead(AnychipError):
    pass


class DeviceLost(AnychipError):
    """A kernel failed and this process can't use the device any more; a new process can."""


class KVPoolExhausted(AnychipError):
    """The pool has fewer free pages than asked for; nothing was allocated."""

    def __init__(self, wanted: int, free: int) -> None:
        super().__init__(f"KV pool: {wanted} pages wanted, {free} free")
        self.wanted = wanted
        self.free = free


__all__ = [
    "AnychipError",
    "BackendBroken",
    "BackendIncompatible",
    "BackendNotFound",
    "CheckpointInvalid",
    "ConformanceFailed",
    "DeviceAbsent",
    "DeviceLost",
    "EngineDead",
    "FusionRefused",
    "Inconclusive",
    "IntegrityFailed",
    "KVPoolExhausted",
    "KernelMissing",
    "MemoryInsufficient",
    "NotReady",
    "PortTaken",
    "PreconditionFailed",
    "QueueFull",
    "RecipeInvalid",
    "Regression",
    "RequestInvalid",
    "StateLocked",
    "UsageError",
]
