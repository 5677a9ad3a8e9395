"""How many prompt tokens may join running decodes in a step. Knows seconds and counts; knows no request and no page.

A step with decodes is taken to last as long as one of decodes alone, plus a time per prompt token. Both are measured,
from the warm-up on, and follow what the device does now. The promise is about a request's mean time per token: where
even a few prompt tokens make a step too long, the steps after it take none until the mean is in time again.
"""

from __future__ import annotations

import math


class Pace:
    """Bounds the prompt tokens of a step so that decodes keep their time per output token.

    Args:
        limit_s: the time per output token that is promised; None: nothing is, and steps take whole chunks.
        chunk: the most prompt tokens of a step, with or without decodes.
    """

    WEIGHT = 0.25  #: of the newest measurement
    SAFETY = 0.9  #: of the limit is given out; the rest is for steps that last longer than expected
    LEAST = 16  #: prompt tokens of a step that has any
    RESTS = 16  #: steps without prompt tokens that follow one with them, at most: a prompt must end some day

    def __init__(self, limit_s: float | None, chunk: int) -> None:
        self._chunk = chunk
        self._budget_s = math.inf if limit_s is None else self.SAFETY * limit_s
        self._late_s = 0.0  #: what steps took beyond the budget and later ones have not made good
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
        if decodes:
            most_s = self.RESTS * max(0.0, self._budget_s - self.decode_s)
            self._late_s = min(max(0.0, self._late_s + seconds - self._budget_s), most_s)

    def prompt_tokens(self, decodes: int) -> int:
        """The most prompt tokens of a step with so many decodes."""
        if math.isinf(self._budget_s) or decodes == 0 or self.token_s == 0.0:
            return self._chunk
        left_s = self._budget_s - self.decode_s
        affordable = int(left_s / self.token_s)
        if affordable < self.LEAST and left_s > 0 and self._late_s > 0:
            return 0
        return min(self._chunk, max(self.LEAST, affordable))

    def _smoothed(self, before: float, now: float) -> float:
        return before + self.WEIGHT * (now - before) if before else now


__all__ = ["Pace"]
