"""Render a conversation into a prompt as the model's own template says. Knows messages; knows no token ids.

Templates come with checkpoints, and their inputs with requests. So they are rendered with bounded work in a process
that can be ended: `anychip.text.renderer`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from anychip.text.messages_text import plain_messages
from anychip.text.renderer import TemplateRenderer
from anychip.text.sandbox import TemplateBroken, TemplateRefused
from anychip.weights.checkpoint import Checkpoint
from anychip.weights.template import template_source
from anychip_sdk.errors import CheckpointInvalid, RequestInvalid


class ChatTemplate:
    """One compiled template.

    `special_tokens` (bos_token, eos_token ...) are variables that templates may use.
    """

    def __init__(self, source: str, special_tokens: Mapping[str, str], where: str = "chat template") -> None:
        self.source = source
        self._special_tokens = dict(special_tokens)
        try:
            self._renderer = TemplateRenderer(source)
        except TemplateBroken as error:
            raise CheckpointInvalid(f"{where}: the chat template {error}") from error

    @classmethod
    def from_checkpoint(cls, checkpoint: Checkpoint, special_tokens: Mapping[str, str]) -> ChatTemplate | None:
        """The checkpoint's template, None where it has none (completions still work then)."""
        source = template_source(checkpoint)
        return None if source is None else cls(source, special_tokens, f"checkpoint {checkpoint.path}")

    def render(
        self, messages: Sequence[Mapping[str, object]], /, *, add_generation_prompt: bool = True, **variables: object
    ) -> str:
        """The prompt of a conversation; blocks while another process renders it.

        `variables` go to the template (tools, documents, enable_thinking ...). Content that is a list of text
        parts is joined with newlines first.

        Raises:
            RequestInvalid: the messages are malformed, or the template refuses them; with its own words.
        """
        given = self._variables(messages, add_generation_prompt, variables)
        try:
            return self._renderer.render(given)
        except TemplateRefused as error:
            raise RequestInvalid(str(error), param="messages") from error

    async def render_soon(
        self, messages: Sequence[Mapping[str, object]], /, *, add_generation_prompt: bool = True, **variables: object
    ) -> str:
        """`render`, without keeping the event loop."""
        return await self._renderer.soon(
            lambda: self.render(messages, add_generation_prompt=add_generation_prompt, **variables)
        )

    def close(self) -> None:
        """End the processes that render; without it they end with the last reference to this."""
        self._renderer.close()

    def _variables(
        self, messages: Sequence[Mapping[str, object]], add_generation_prompt: bool, variables: Mapping[str, object]
    ) -> dict[str, object]:
        return {
            "tools": None,
            "documents": None,
            **self._special_tokens,
            **variables,
            "messages": plain_messages(messages),
            "add_generation_prompt": add_generation_prompt,
        }


__all__ = ["ChatTemplate"]
