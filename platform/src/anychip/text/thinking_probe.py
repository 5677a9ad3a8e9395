"""Find out by rendering what a chat template does about thinking. Knows the switch's names; knows no request.

What counts is what the template writes, not which words are in it: some mention a switch and always open the thinking,
some open it and have no switch.
"""

from __future__ import annotations

from anychip.text.chat_template import ChatTemplate
from anychip.text.thinking import CLOSE, NO_THINKING, TemplateThinking, reply_begins
from anychip.weights.checkpoint import Checkpoint
from anychip_sdk.errors import RequestInvalid

#: What templates call the variable that switches thinking.
SWITCHES = ("enable_thinking", "thinking")

_QUESTION = ({"role": "user", "content": "What is the capital of France?"},)
#: Which tokens they are doesn't matter here; that they are texts does.
_TOKENS = {name: "" for name in ("bos_token", "eos_token", "pad_token", "unk_token")}


def thinking_of(template: ChatTemplate | None) -> TemplateThinking:
    """What rendering shows; a template that refuses a lone question is gone by what it mentions."""
    if template is None:
        return NO_THINKING
    plain = _render(template)
    if plain is None:
        return _by_mention(template.source)
    for name in SWITCHES:
        on, off = _render(template, **{name: True}), _render(template, **{name: False})
        if on is None or off is None or on == off:
            continue
        if reply_begins(off) == "thinking":
            return TemplateThinking("always", is_marked=True)
        default = None if plain not in {on, off} else plain == on
        return TemplateThinking("switch", name, default, is_marked=True)
    if reply_begins(plain) == "thinking":
        return TemplateThinking("always", is_marked=True)
    # templates that cut the thinking out of earlier turns belong to models that open it themselves
    return TemplateThinking(is_marked=CLOSE in template.source)


def checkpoint_thinking(checkpoint: Checkpoint) -> TemplateThinking:
    """The same for a checkpoint's template; its tokenizer isn't read."""
    return thinking_of(ChatTemplate.from_checkpoint(checkpoint, _TOKENS))


def _render(template: ChatTemplate, **variables: bool) -> str | None:
    try:
        return template.render(_QUESTION, **variables)
    except RequestInvalid:
        return None


def _by_mention(source: str) -> TemplateThinking:
    name = SWITCHES[0]  # the other one is a word that templates use for much else
    return TemplateThinking("switch", name, is_marked=True) if name in source else NO_THINKING


__all__ = ["SWITCHES", "checkpoint_thinking", "thinking_of"]
