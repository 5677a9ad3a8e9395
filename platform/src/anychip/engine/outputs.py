"""Turn token events into text, choice by choice.

Knows decoding, stop strings and counting; knows no HTTP and no process.

Text goes through three stages: the decoder holds back incomplete characters, the splitter (if any) tells thinking from
the answer, the stop matcher holds back what may become a stop string of the answer. Thinking is never searched for stop
strings, and none reaches over its end. The result does not depend on how tokens were grouped into events.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from anychip.engine.request import FinishReason, TokenEvent
from anychip.text.stop import StopMatcher


class Decoder(Protocol):
    """Incremental detokenisation of one choice."""

    def push(self, ids: Sequence[int], /) -> str: ...
    def flush(self) -> str: ...


class Split(NamedTuple):
    reasoning: str
    content: str


class Splitter(Protocol):
    """Tells thinking from the answer, in one choice's text."""

    @property
    def is_thinking(self) -> bool: ...
    def push(self, text: str, /) -> Split: ...
    def finish(self) -> Split: ...


class TextDelta(NamedTuple):
    """What one event adds to one choice."""

    choice: int  #: its number in the call
    text: str
    reasoning: str
    finish_reason: FinishReason | None
    stop: str | int | None  #: the stop string or stop token that ended the text
    completion_tokens: int  #: so far
    reasoning_tokens: int  #: of them


class ChoiceAssembler:
    """One choice. After a delta with a finish_reason, further events bring empty deltas and change nothing.

    Args:
        decoder: a fresh one.
        stops: stop strings, which end the answer; none of them empty.
        splitter: a fresh one, or None where all text is the answer.
        min_tokens: a stop string counts only in what can be shown after so many tokens.
    """

    def __init__(
        self,
        decoder: Decoder,
        stops: Sequence[str] = (),
        splitter: Splitter | None = None,
        min_tokens: int = 0,
    ) -> None:
        self._decoder = decoder
        self._matcher = StopMatcher(stops)
        self._splitter = splitter
        self._min_tokens = min_tokens
        self._finished: FinishReason | None = None
        self._stop: str | int | None = None
        self._tokens = 0
        self._reasoning_tokens = 0

    @property
    def is_finished(self) -> bool:
        return self._finished is not None

    def push(self, event: TokenEvent) -> TextDelta:
        """Take the choice's next event."""
        if self.is_finished:
            return self._delta(event.index, "", "", None)
        reasoning, content = "", ""
        for token in event.token_ids:
            more = self._push_token(token)
            reasoning, content = reasoning + more.reasoning, content + more.content
            if self._stop is not None:
                return self._delta(event.index, content, reasoning, self._finished)
        if event.finish_reason is not None:
            more = self._finish(event)
            reasoning, content = reasoning + more.reasoning, content + more.content
        return self._delta(event.index, content, reasoning, self._finished)

    def _push_token(self, token: int) -> Split:
        self._tokens += 1
        if self._splitter is not None and self._splitter.is_thinking:
            self._reasoning_tokens += 1
        text = self._decoder.push((token,))
        return self._take(text) if text else Split("", "")

    def _take(self, text: str) -> Split:
        """Text of one or more whole characters, through the splitter and the matcher."""
        if self._splitter is None:
            return Split("", self._search(text))
        split = self._splitter.push(text)
        return Split(split.reasoning, self._search(split.content))

    def _search(self, content: str) -> str:
        """What of the answer may be shown; a stop string in it ends the choice."""
        if self._tokens <= self._min_tokens:
            return content
        match = self._matcher.push(content)
        if match.stop is not None:
            self._finished, self._stop = "stop", match.stop
        return match.text

    def _finish(self, event: TokenEvent) -> Split:
        text = self._decoder.flush()
        before = self._take(text) if text else Split("", "")
        held = Split("", "") if self._splitter is None or self.is_finished else self._splitter.finish()
        content = before.content + self._search(held.content)
        if not self.is_finished:  # otherwise what came last completed a stop string
            self._finished, self._stop = event.finish_reason, event.stop_token_id
            self._tokens = event.completion_tokens or self._tokens
            content += self._matcher.flush()
        return Split(before.reasoning + held.reasoning, content)

    def _delta(self, choice: int, text: str, reasoning: str, finish: FinishReason | None) -> TextDelta:
        return TextDelta(choice, text, reasoning, finish, self._stop, self._tokens, self._reasoning_tokens)


class Usage:
    """Token counts of one call: prompts once each, completions summed over all choices."""

    def __init__(self) -> None:
        self._prompts: dict[str, tuple[int, int]] = {}
        self._completions: dict[tuple[str, int], tuple[int, int]] = {}

    def add(self, event: TokenEvent, delta: TextDelta) -> None:
        self._prompts[event.request_id] = (event.prompt_tokens, event.cached_tokens)
        self._completions[event.request_id, event.index] = (delta.completion_tokens, delta.reasoning_tokens)

    @property
    def prompt_tokens(self) -> int:
        return sum(prompt for prompt, _ in self._prompts.values())

    @property
    def cached_tokens(self) -> int:
        return sum(cached for _, cached in self._prompts.values())

    @property
    def completion_tokens(self) -> int:
        return sum(tokens for tokens, _ in self._completions.values())

    @property
    def reasoning_tokens(self) -> int:
        return sum(reasoning for _, reasoning in self._completions.values())


__all__ = ["ChoiceAssembler", "Decoder", "Split", "Splitter", "TextDelta", "Usage"]
