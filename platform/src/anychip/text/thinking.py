"""What a chat template does about thinking, and what a prompt's end says of it. Knows the markers; renders nothing."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple

OPEN = "<think>"
CLOSE = "</think>"
Begins = Literal["thinking", "answer", "either"]


class TemplateThinking(NamedTuple):
    """What a template does about thinking.

    Attributes:
        kind: none: it has no switch and opens nothing; switch: a variable decides; always: every reply begins inside
            the thinking, whatever the variables say.
        switch: that variable, for kind switch.
        default: for kind switch, whether it thinks where the variable isn't given; None where it does neither.
        is_marked: a reply may hold a block of thinking, which is told apart.
    """

    kind: Literal["none", "switch", "always"] = "none"
    switch: str | None = None
    default: bool | None = None
    is_marked: bool = False


NO_THINKING = TemplateThinking()


def fixed_variables(policy: str, thinking: TemplateThinking) -> dict[str, object]:
    """The template's variables by which a policy of the recipe is kept; none where nothing is to be switched."""
    return {} if thinking.switch is None or policy == "auto" else {thinking.switch: policy == "on"}


def reply_begins(prompt: str) -> Begins:
    """Where in its reply a model stands behind this prompt, by the prompt's last words."""
    end = prompt.rstrip()
    if end.endswith(OPEN):
        return "thinking"
    return "answer" if end.endswith(CLOSE) else "either"


def ends_like_a_marker(texts: Iterable[object]) -> bool:
    """Whether one of the texts could be taken for a marker that the template wrote."""
    return any(isinstance(text, str) and reply_begins(text) != "either" for text in texts)


__all__ = [
    "CLOSE",
    "NO_THINKING",
    "OPEN",
    "Begins",
    "TemplateThinking",
    "ends_like_a_marker",
    "fixed_variables",
    "reply_begins",
]
