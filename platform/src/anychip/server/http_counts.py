"""Count requests over HTTP, and tell when none is being answered. Knows metrics; knows no endpoint's work."""

from __future__ import annotations

from anychip.server.access import PROBES
from anychip.server.record import Record
from anychip.server.service import Service


class HttpCounts:
    """An observer of the access log.

    Args:
        service: whose metrics count, and whose `is_idle` follows.
        paths: those that have a label of their own; others share one, since their number is up to the clients.
    """

    def __init__(self, service: Service, paths: frozenset[str]) -> None:
        self._service = service
        self._paths = paths
        self._open = 0

    def request_began(self, record: Record) -> None:
        if record.path not in PROBES:
            self._open += 1
            self._service.is_idle.clear()

    def request_ended(self, record: Record) -> None:
        if record.path not in PROBES:
            self._open -= 1
            if not self._open:
                self._service.is_idle.set()
        endpoint = record.path if record.path in self._paths else "other"
        metrics = self._service.metrics
        metrics.http_requests.labels(endpoint, record.method if record.method.isalpha() else "other").inc()
        metrics.http_responses.labels(endpoint, str(record.status)).inc()


__all__ = ["HttpCounts"]
