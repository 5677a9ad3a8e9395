"""Set up structured logs: one JSON object a line, on standard error.

Knows the format; knows nothing of what is logged.
"""

from __future__ import annotations

import logging
import sys

import structlog


def configure_logs() -> None:
    """To be called once, by a process's entry point."""
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )


__all__ = ["configure_logs"]
