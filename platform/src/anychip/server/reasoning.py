"""Tell a model's thinking from its answer while the text arrives. Knows the markers; knows no tokens and no template.

Rules, the same for streams and whole replies:
* Text before the closing marker is reasoning, text after it is content; newlines next to a marker belong to neither.
* Without an opening marker (in the prompt, or first in the reply) everything is content.
* A reply that ends before the closing marker is all reasoning and its content is empty, whether it ended by length or
  by a stop: a stream has shown that text as reasoning already, and showing it twice, or differently without a stream,
  would be worse than an empty answer.
"""

from __future__ import annotations

from anychip.engine.outputs import Split
from anychip.text.thinking import CLOSE, OPEN


class ReasoningSplitter:
    """Splits one choice.

    Args:
        is_opened: the prompt ended with the opening marker, so that the reply begins inside.
    """

    def __init__(self, *, is_opened: bool) -> None:
        self._held = ""
        self._state = "thinking" if is_opened else "before"
        self._at_start = True  # of the reasoning or the content: newlines there are dropped

    @property
    def is_thinking(self) -> bool:
        return self._state == "thinking"

    def push(self, text: str) -> Split:
        """Add text; what can be told apart now comes back."""
        self._held += text
        reasoning = ""
        if self._state == "before":
            self._look_for_opening()
        if self._state == "thinking":
            reasoning = self._take_reasoning()
        return Split(reasoning, self._take_content() if self._state == "content" else "")

    def finish(self) -> Split:
        """The held-back rest, when the reply has ended."""
        held, self._held = self._held, ""
        if self._state == "thinking":
            return Split(held.strip("\n") if self._at_start else held.rstrip("\n"), "")
        return Split("", held)

    def _look_for_opening(self) -> None:
        rest = self._held.lstrip()
        if rest.startswith(OPEN):
            self._state, self._held = "thinking", rest[len(OPEN) :]
        elif not OPEN.startswith(rest):
            self._state, self._at_start = "content", False

    def _take_reasoning(self) -> str:
        text, closer, rest = self._held.partition(CLOSE)
        if closer:
            self._held, self._state = rest, "content"
            shown = text.rstrip("\n")
        else:
            shown = text[: len(text) - _partial_closing(text)].rstrip("\n")
            self._held = text[len(shown) :]
        if self._at_start:
            kept = shown.lstrip("\n")
            self._at_start = not kept
            shown = kept
        if closer:
            self._at_start = True
        return shown

    def _take_content(self) -> str:
        text, self._held = self._held, ""
        if self._at_start:
            text = text.lstrip("\n")
            self._at_start = not text
        return text


def _partial_closing(text: str) -> int:
    """Length of the end of `text` that may become the closing marker."""
    for length in range(min(len(text), len(CLOSE) - 1), 0, -1):
        if CLOSE.startswith(text[-length:]):
            return length
    return 0


__all__ = ["ReasoningSplitter"]
