"""Decide whether the model thinks for a request. Knows the recipe's policy and the request's wish; renders nothing."""

from __future__ import annotations

from collections.abc import Mapping

from anychip.engine.messages import ThinkingPolicy
from anychip.server.reasoning import ReasoningSplitter
from anychip.text.thinking import OPEN, Begins, TemplateThinking, fixed_variables
from anychip_sdk.errors import RequestInvalid

#: What requests call the switch, whatever the template calls it.
SWITCH = "enable_thinking"
#: Variables of a template that the service sets itself.
RESERVED = frozenset(
    {"messages", "tools", "documents", "add_generation_prompt", "continue_final_message", "bos_token", "eos_token"}
)


def template_variables(
    policy: ThinkingPolicy, template: TemplateThinking, top_level: bool | None, variables: Mapping[str, object]
) -> dict[str, object]:
    """The variables for the template, with the thinking switch as policy and request decide it.

    off and on are fixed by the recipe; auto leaves it to the request, and to the template where the request is silent.
    A variable that is null is as good as absent.
    """
    reserved = RESERVED & variables.keys()
    if reserved:
        name = min(reserved)
        raise RequestInvalid(
            f"chat_template_kwargs.{name}: set by the service; leave it out", param=f"chat_template_kwargs.{name}"
        )
    switches = {SWITCH, template.switch or SWITCH}
    wanted = _wanted(top_level, variables, switches)
    others = {name: value for name, value in variables.items() if value is not None and name not in switches}
    return {**others, **_decided(policy, template, wanted)}


def _wanted(top_level: bool | None, variables: Mapping[str, object], switches: set[str]) -> bool | None:
    """What the request says in up to three places, which must agree."""
    wanted, said_by = top_level, SWITCH
    for name in sorted(switches & variables.keys()):
        value, path = variables[name], f"chat_template_kwargs.{name}"
        if value is None:
            continue
        if not isinstance(value, bool):
            raise RequestInvalid(f"{path}: expected true or false, got {value!r}"[:200], param=path)
        if wanted not in {None, value}:
            raise RequestInvalid(f"{said_by} and {path} contradict each other", param=said_by)
        wanted, said_by = value, path
    return wanted


def _decided(policy: ThinkingPolicy, template: TemplateThinking, wanted: bool | None) -> dict[str, object]:
    """The switch as a variable, or nothing; raises for a wish that can't be met."""
    if template.kind == "none" and wanted:
        raise RequestInvalid(f"{SWITCH}: this model's chat template has no thinking to switch on", param=SWITCH)
    if template.kind == "always" and wanted is False:
        message = f"{SWITCH}: this model's chat template begins every reply with {OPEN}; it can't be switched off"
        raise RequestInvalid(message, param=SWITCH)
    if template.switch is None:
        return {}
    if policy == "auto":
        return {} if wanted is None else {template.switch: wanted}
    if wanted not in {None, policy == "on"}:
        raise RequestInvalid(
            f"{SWITCH}: the recipe fixes model.thinking to {policy!r}; only 'auto' lets a request decide", param=SWITCH
        )
    return fixed_variables(policy, template)


def splitter_for(begins: Begins, template: TemplateThinking) -> ReasoningSplitter | None:
    """A fresh splitter for one reply that begins there; None where nothing is to be split off."""
    if begins == "thinking":
        return ReasoningSplitter(is_opened=True)
    if begins == "answer" or not template.is_marked:  # a closed block in the prompt switches thinking off
        return None
    return ReasoningSplitter(is_opened=False)


__all__ = ["RESERVED", "SWITCH", "splitter_for", "template_variables"]
