"""Count what the service does and show it to Prometheus. Knows names and values; measures nothing itself.

Gauges come from what the engine told last of itself, everything else from the server's side.
"""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

PREFIX = "anychip:"
#: How the engine's statistics are called on the outside, where the names differ.
GAUGE_NAMES = {
    "running": "num_running_reqs",
    "waiting": "num_queue_reqs",
    "pages_evicted": "evicted_pages",
    "retractions": "num_retracted_requests",
}
#: Shown from the start, also while the engine can't be asked.
ALWAYS = ("num_running_reqs", "num_queue_reqs", "token_usage", "cache_hit_rate", "startup_time_seconds", "emulated")
SECONDS = (
    0.001,
    0.005,
    0.01,
    0.02,
    0.03,
    0.04,
    0.06,
    0.08,
    0.1,
    0.2,
    0.3,
    0.5,
    0.75,
    1,
    2,
    3,
    5,
    7.5,
    10,
    20,
    40,
    60,
    120,
)
TOKENS = (1, 4, 16, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)


class Metrics:
    """One registry of one service; nothing is global."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.prompt_tokens = self._counter("prompt_tokens", "Prompt tokens of accepted requests")
        self.generation_tokens = self._counter("generation_tokens", "Tokens generated")
        self.cached_tokens = self._counter("cached_tokens", "Prompt tokens found in the prefix cache")
        self.requests = self._counter("num_requests", "Requests accepted by the engine")
        self.aborted = self._counter("num_aborted_requests", "Requests given up before their end")
        self.finished = self._counter("finished_choices", "Choices that ended, by how", ("reason",))
        self.ignored_fields = self._counter("ignored_fields", "Unknown fields that were ignored", ("endpoint",))
        self.http_requests = self._counter("http_requests", "HTTP requests", ("endpoint", "method"))
        self.http_responses = self._counter("http_responses", "HTTP responses", ("endpoint", "status_code"))
        self.ttft_s = self._histogram("time_to_first_token_seconds", "From arrival to the first token", SECONDS)
        self.inter_token_s = self._histogram("inter_token_latency_seconds", "Between tokens of one choice", SECONDS)
        self.e2e_s = self._histogram("e2e_request_latency_seconds", "From arrival to the end", SECONDS)
        self.prompt_sizes = self._histogram("prompt_tokens_histogram", "Prompt tokens per request", TOKENS)
        self.generation_sizes = self._histogram("generation_tokens_histogram", "Generated tokens per request", TOKENS)
        self._gauges: dict[str, Gauge] = {}
        self._rate = TokenRate()

    def count_tokens(self, tokens: int) -> None:
        self.generation_tokens.inc(tokens)
        self._rate.add(tokens, time.monotonic())

    def render(self, stats: Mapping[str, float]) -> bytes:
        """The page for a scrape; each of the engine's `stats` becomes a gauge, under SGLang's name or engine_<name>."""
        shown = dict.fromkeys(ALWAYS, 0.0)
        shown |= {shown_name(name): value for name, value in stats.items()}
        shown |= kv_gauges(stats)
        shown["gen_throughput"] = self._rate.per_second(time.monotonic())
        for name in self._gauges.keys() - shown.keys():  # what isn't told any more isn't shown any more
            self.registry.unregister(self._gauges.pop(name))
        for name, value in shown.items():
            self._set_gauge(name, value)
        return generate_latest(self.registry)

    def _set_gauge(self, name: str, value: float) -> None:
        gauge = self._gauges.get(name)
        if gauge is None:
            clean = re.sub(r"[^a-zA-Z0-9_:]", "_", name)
            gauge = self._gauges[name] = Gauge(PREFIX + clean, clean.replace("_", " "), registry=self.registry)
        gauge.set(value)

    def _counter(self, name: str, text: str, labels: tuple[str, ...] = ()) -> Counter:
        return Counter(PREFIX + name, text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(PREFIX + name, text, buckets=buckets, registry=self.registry)


def shown_name(name: str) -> str:
    """What one of the engine's numbers is called outside."""
    return GAUGE_NAMES.get(name) or (name if name in ALWAYS else f"engine_{name}")


def kv_gauges(stats: Mapping[str, float]) -> dict[str, float]:
    """The pool's pages as tokens; nothing of what the engine doesn't tell."""
    gauges = {}
    total, size = stats.get("pages_total", 0.0), stats.get("page_size", 1.0)
    if total:
        free, evictable = stats.get("pages_free", 0.0), stats.get("pages_evictable", 0.0)
        used = total - free - evictable
        gauges = {
            "max_total_num_tokens": total * size,
            "kv_available_tokens": free * size,
            "kv_evictable_tokens": evictable * size,
            "kv_used_tokens": used * size,
            "num_used_tokens": used * size,
            "token_usage": used / total,
        }
    if stats.get("prompt_tokens"):
        gauges["cache_hit_rate"] = stats.get("cached_tokens", 0.0) / stats["prompt_tokens"]
    return gauges


class TokenRate:
    """Tokens per second over the last whole seconds."""

    WINDOW_S = 10

    def __init__(self) -> None:
        self._seconds: deque[tuple[int, int]] = deque()

    def add(self, tokens: int, now_s: float) -> None:
        second = int(now_s)
        if self._seconds and self._seconds[-1][0] == second:
            self._seconds[-1] = (second, self._seconds[-1][1] + tokens)
        else:
            self._seconds.append((second, tokens))
            while len(self._seconds) > self.WINDOW_S + 1:
                self._seconds.popleft()

    def per_second(self, now_s: float) -> float:
        since = int(now_s) - self.WINDOW_S
        return sum(tokens for second, tokens in self._seconds if since <= second < int(now_s)) / self.WINDOW_S


__all__ = ["Metrics", "TokenRate", "kv_gauges"]
