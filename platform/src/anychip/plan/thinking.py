"""Decide whether the model thinks, from what the recipe says and what its template can do. Renders nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from anychip.plan.plan import Decision
from anychip.text.thinking import OPEN, TemplateThinking
from anychip_sdk.errors import PreconditionFailed

Policy = Literal["off", "on", "auto"]


def decide_thinking(policy: Policy, template: TemplateThinking, path: Path) -> Decision[Policy]:
    """What holds for every request; auto leaves it to each.

    Raises:
        PreconditionFailed: the recipe asks for what the template can't do.
    """
    if template.kind == "none":
        if policy == "on":
            message = f"model.thinking is on, but the chat template of {path} knows no thinking"
            raise PreconditionFailed(message, hint="set model.thinking to off or auto")
        return Decision("off", "the chat template has no switch for it")
    if template.kind == "always":
        if policy == "off":
            message = f"model.thinking is off, but the chat template of {path} begins every reply with {OPEN}"
            hint = "set model.thinking to on or auto, or give the checkpoint a template that has a switch"
            raise PreconditionFailed(message, hint=hint)
        return Decision("on", f"the chat template begins every reply with {OPEN}")
    if policy != "auto":
        return Decision(policy, f"model.thinking; the chat template's switch is {template.switch}")
    return Decision("auto", f"each request decides with enable_thinking; by itself the template {_default(template)}")


def _default(template: TemplateThinking) -> str:
    if template.default is None:
        return "leaves it to the model"
    return "switches it on" if template.default else "switches it off"


__all__ = ["Policy", "decide_thinking"]
