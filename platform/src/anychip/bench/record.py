"""What happened to one request, in seconds since its run began. Knows the definitions of latencies; knows no HTTP."""

from __future__ import annotations

import msgspec


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """One request. docs/bench.md holds the definitions in words."""

    scheduled_s: float  #: when it was due; latencies count from here, also where the client was late
    sent_s: float
    event_s: tuple[float, ...] = ()  #: when each event of the stream that brought tokens arrived
    prompt_tokens: int = 0
    cached_tokens: int | None = None  #: of them, found in the prefix cache; None: the service doesn't tell
    output_tokens: int = 0
    error: str = ""  #: why it doesn't count

    @property
    def is_valid(self) -> bool:
        return not self.error

    @property
    def end_s(self) -> float:
        return self.event_s[-1] if self.event_s else self.sent_s

    @property
    def ttft_s(self) -> float:
        """From the time it was due to the first token."""
        return self.event_s[0] - self.scheduled_s

    @property
    def e2e_s(self) -> float:
        """From the time it was due to the last token."""
        return self.event_s[-1] - self.scheduled_s

    @property
    def tpot_s(self) -> float | None:
        """The mean time per output token after the first; None where there is one only."""
        if self.output_tokens < 2:
            return None
        return (self.event_s[-1] - self.event_s[0]) / (self.output_tokens - 1)

    @property
    def gaps_s(self) -> tuple[float, ...]:
        """Between consecutive events."""
        return tuple(later - earlier for earlier, later in zip(self.event_s, self.event_s[1:], strict=False))


class Slo(msgspec.Struct, frozen=True):
    """Limits that each request is held to; None: no such limit."""

    ttft_s: float | None = None
    tpot_s: float | None = None

    @property
    def is_empty(self) -> bool:
        return self.ttft_s is None and self.tpot_s is None

    def is_met(self, record: Record) -> bool:
        if not record.is_valid:
            return False
        tpot_s = record.tpot_s
        is_slow_to_start = self.ttft_s is not None and record.ttft_s > self.ttft_s
        is_slow_to_go_on = self.tpot_s is not None and tpot_s is not None and tpot_s > self.tpot_s
        return not (is_slow_to_start or is_slow_to_go_on)


NO_SLO = Slo()

__all__ = ["NO_SLO", "Record", "Slo"]
