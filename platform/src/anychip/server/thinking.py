"""Decide whether the model thinks for a request. Knows the recipe's policy and the request's wish; renders nothing."""

from __future__ import annotations

from collections.abc import Mapping

from anychip.engine.messages import ThinkingPolicy
from anychip.server.reasoning import CLOSE, OPEN, ReasoningSplitter
from anychip_sdk.errors import RequestInvalid

SWITCH = "enable_thinking"
#: Variables of a template that the service sets itself.
RESERVED = frozenset(
    {"messages", "tools", "documents", "add_generation_prompt", "continue_final_message", "bos_token", "eos_token"}
)


def template_variables(
    policy: ThinkingPolicy, supported: bool, top_level: bool | None, variables: Mapping[str, object]
) -> dict[str, object]:
    """The variables for the template, with the thinking switch as policy and request decide it.

    off and on are fixed by the recipe; auto leaves it to the request, and to the template where the request is silent.
    """
    reserved = RESERVED & variables.keys()
    if reserved:
        name = min(reserved)
        raise RequestInvalid(
            f"chat_template_kwargs.{name}: set by the service; leave it out", param=f"chat_template_kwargs.{name}"
        )
    chosen = _decide(policy, supported, _wanted(top_level, variables))
    others = {name: value for name, value in variables.items() if name != SWITCH}
    return others if chosen is None else {**others, SWITCH: chosen}


def _wanted(top_level: bool | None, variables: Mapping[str, object]) -> bool | None:
    inner = variables.get(SWITCH)
    if inner is not None and not isinstance(inner, bool):
        path = f"chat_template_kwargs.{SWITCH}"
        raise RequestInvalid(f"{path}: expected true or false, got {inner!r}"[:200], param=path)
    if None not in {top_level, inner} and top_level != inner:
        raise RequestInvalid(f"{SWITCH} and chat_template_kwargs.{SWITCH} contradict each other", param=SWITCH)
    return inner if top_level is None else top_level


def _decide(policy: ThinkingPolicy, supported: bool, wanted: bool | None) -> bool | None:
    if not supported:
        if wanted:
            raise RequestInvalid(f"{SWITCH}: this model's chat template has no thinking to switch on", param=SWITCH)
        return None
    if policy == "auto":
        return wanted
    fixed = policy == "on"
    if wanted not in {None, fixed}:
        raise RequestInvalid(
            f"{SWITCH}: the recipe fixes model.thinking to {policy!r}; only 'auto' lets a request decide", param=SWITCH
        )
    return fixed


def splitter_for(prompt: str, supported: bool) -> ReasoningSplitter | None:
    """A fresh splitter for one reply to this rendered prompt; None where nothing is to be split off."""
    end = prompt.rstrip()
    if end.endswith(OPEN):
        return ReasoningSplitter(is_opened=True)
    if end.endswith(CLOSE) or not supported:  # a closed block in the prompt is how templates switch thinking off
        return None
    return ReasoningSplitter(is_opened=False)


__all__ = ["RESERVED", "SWITCH", "splitter_for", "template_variables"]
