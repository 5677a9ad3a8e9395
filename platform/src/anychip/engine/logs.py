"""Set up structured logs, on standard error: one JSON object a line in processes of our own.

Knows the format; knows nothing of what is logged.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
from types import TracebackType
from typing import TextIO

import structlog


class _Lines:
    """Standard error as it is just then, for whole lines. A log that can't be written fails nobody."""

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError, ValueError):  # nobody reads it, the disk is full, or it is closed
            sys.stderr.write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.flush()


def configure_logs() -> None:
    """To be called by a process's entry point: its logs, those of libraries, warnings and uncaught exceptions."""
    stream: TextIO = _Lines()  # type: ignore[assignment]  # as much of a stream as is used
    before: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    end: list[structlog.typing.Processor] = [
        structlog.processors.format_exc_info,
        structlog.processors.JSONRenderer(),
    ]
    structlog.configure(
        processors=[*before, *end],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.WriteLoggerFactory(stream),  # a line is one write, so that processes can share a pipe
    )
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*before, structlog.stdlib.add_logger_name],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *end],
        )
    )
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    logging.captureWarnings(True)
    sys.excepthook = _log_uncaught
    threading.excepthook = _log_uncaught_in_thread


def default_logs() -> None:
    """For somebody else's process: what it has configured stays, else logs go to what is standard error just then."""
    if not structlog.is_configured():
        structlog.configure(logger_factory=lambda *_: structlog.PrintLogger(sys.stderr))


def _log_uncaught(kind: type[BaseException], error: BaseException, at: TracebackType | None) -> None:
    structlog.get_logger("anychip").critical("uncaught exception", exc_info=(kind, error, at))


def _log_uncaught_in_thread(caught: threading.ExceptHookArgs) -> None:
    name = caught.thread.name if caught.thread is not None else ""
    error = caught.exc_value or caught.exc_type()
    structlog.get_logger("anychip").critical("uncaught exception in a thread", thread=name, exc_info=error)


__all__ = ["configure_logs", "default_logs"]
