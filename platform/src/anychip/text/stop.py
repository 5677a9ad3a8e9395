"""Find stop strings in text that arrives in pieces. Knows characters; knows no tokens.

The result doesn't depend on where the pieces are cut: of several matches the one that is complete first wins, of those
that end together the longest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Match(NamedTuple):
    text: str  #: what may be shown now
    stop: str | None  #: the stop string found after it


class StopMatcher:
    """Holds back the end of the text while it may still become a stop string."""

    def __init__(self, stops: Sequence[str]) -> None:
        if "" in stops:
            raise ValueError("an empty stop string would match everywhere")
        self._stops = tuple(dict.fromkeys(stops))
        self._longest = max((len(stop) for stop in self._stops), default=0)
        self._held = ""

    def push(self, piece: str) -> Match:
        """Add a piece; nothing may be pushed after a match."""
        if not self._stops or not piece:
            return Match(piece, None)
        text = self._held + piece
        first_end, start, found = len(text) + 1, 0, None
        for stop in self._stops:
            at = text.find(stop)
            if at < 0:
                continue
            end = at + len(stop)
            if (end, at) < (first_end, start):
                first_end, start, found = end, at, stop
        if found is not None:
            self._held = ""
            return Match(text[:start], found)
        keep = self._possible_start(text)
        self._held = text[len(text) - keep :]
        return Match(text[: len(text) - keep], None)

    def flush(self) -> str:
        """What is still held back, when no more text comes."""
        held, self._held = self._held, ""
        return held

    def _possible_start(self, text: str) -> int:
        """Length of the longest end of `text` that begins a stop string."""
        for length in range(min(len(text), self._longest - 1), 0, -1):
            tail = text[-length:]
            if any(stop.startswith(tail) for stop in self._stops):
                return length
        return 0


__all__ = ["Match", "StopMatcher"]
