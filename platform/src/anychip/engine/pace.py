"""How many prompt tokens may join running decodes in a step. Knows seconds and counts; knows no request and no page.

A step with decodes is taken to last as long as one of decodes alone, plus a time per prompt token. Both are measured,
from the warm-up on, and follow what the device does now.
"""

from __future__ import annotations


class Pace:
    """Bounds the prompt tokens of a step so that decodes keep their time per output token.

    Args:
        limit_s: the time per output token that is promised; None: nothing is, and steps take whole chunks.
        chunk: the most prompt tokens of a step, with or without decodes.
    """

    WEIGHT = 0.25  #: of the newest measurement
    SAFETY = 0.9  #: of the limit is given out; the rest is for steps that last longer than expected
    LEAST = 16  #: prompt tokens that go along whatever it costs: a prompt must end some day

    def __init__(self, limit_s: float | None, chunk: int) -> None:
        self._limit_s = limit_s
        self._chunk = chunk
        self.decode_s = 0.0  #: of a step without prompts
        self.token_s = 0.0  #: that a prompt token adds

    def observe(self, decodes: int, prompt_tokens: int, seconds: float) -> None:
        """Tell how long a step with so many of both lasted."""
        if prompt_tokens == 0:
            self.decode_s = self._smoothed(self.decode_s, seconds)
        elif prompt_tokens >= self.LEAST:
            now_s = max(0.0, seconds - self.decode_s) / prompt_tokens
            # with each chunk the context grows, and the next one costs more: what costs more is believed at once
            self.token_s = max(now_s, self._smoothed(self.token_s, now_s))

    def prompt_tokens(self, decodes: int) -> int:
        """The most prompt tokens of a step with so many decodes."""
        if self._limit_s is None or decodes == 0 or self.token_s == 0.0:
            return self._chunk
        affordable = int((self.SAFETY * self._limit_s - self.decode_s) / self.token_s)
        return min(self._chunk, max(self.LEAST, affordable))

    def _smoothed(self, before: float, now: float) -> float:
        return before + self.WEIGHT * (now - before) if before else now


__all__ = ["Pace"]
