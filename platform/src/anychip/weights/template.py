"""Where a checkpoint keeps its chat template. Knows the three places; renders nothing."""

from __future__ import annotations

from anychip.weights.checkpoint import Checkpoint
from anychip_sdk.errors import CheckpointInvalid


def template_source(checkpoint: Checkpoint) -> str | None:
    """The text of the template: chat_template.jinja, then tokenizer_config.json, then a GGUF's metadata."""
    source = checkpoint.tokenizer
    if source.chat_template_file is not None:
        return source.chat_template_file.read_text(encoding="utf-8")
    setting = (source.gguf or {}).get("tokenizer.chat_template") or source.tokenizer_config.get("chat_template")
    if setting is None or isinstance(setting, str):
        return setting
    if isinstance(setting, list):
        named = {item.get("name"): item.get("template") for item in setting if isinstance(item, dict)}
        default = named.get("default")
        if isinstance(default, str):
            return default
        names = ", ".join(str(name) for name in named)
        raise CheckpointInvalid(f"checkpoint {checkpoint.path}: none of the chat templates ({names}) is `default`")
    raise CheckpointInvalid(
        f"checkpoint {checkpoint.path}: chat_template is {type(setting).__name__}, expected text or named templates"
    )


__all__ = ["template_source"]
