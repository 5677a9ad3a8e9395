"""What recipe and template decide together about thinking."""

from pathlib import Path

import pytest

from anychip.plan.thinking import decide_thinking
from anychip.text.thinking import TemplateThinking
from anychip_sdk.errors import PreconditionFailed

PATH = Path("/models/m")
ALWAYS = TemplateThinking("always", is_marked=True)
SWITCH = TemplateThinking("switch", "enable_thinking", True, is_marked=True)
DEFAULT_OFF = TemplateThinking("switch", "thinking", False, is_marked=True)


@pytest.mark.parametrize(
    ("policy", "template", "value", "reason"),
    [
        ("auto", TemplateThinking(), "off", "no switch"),
        ("off", TemplateThinking(), "off", "no switch"),
        ("auto", ALWAYS, "on", "begins every reply with <think>"),
        ("on", ALWAYS, "on", "begins every reply with <think>"),
        ("off", SWITCH, "off", "the chat template's switch is enable_thinking"),
        ("on", DEFAULT_OFF, "on", "the chat template's switch is thinking"),
        ("auto", SWITCH, "auto", "by itself the template switches it on"),
        ("auto", DEFAULT_OFF, "auto", "by itself the template switches it off"),
        ("auto", TemplateThinking("switch", "enable_thinking"), "auto", "leaves it to the model"),
    ],
)
def test_what_holds_is_said_with_its_reason(policy, template, value, reason):
    decision = decide_thinking(policy, template, PATH)
    assert decision.value == value
    assert reason in decision.reason


def test_thinking_on_needs_a_template_that_knows_it():
    with pytest.raises(PreconditionFailed) as refused:
        decide_thinking("on", TemplateThinking(), PATH)
    assert refused.value.message == "model.thinking is on, but the chat template of /models/m knows no thinking"


def test_thinking_off_needs_a_template_that_does_not_open_it_itself():
    with pytest.raises(PreconditionFailed) as refused:
        decide_thinking("off", ALWAYS, PATH)
    assert "model.thinking is off, but the chat template of /models/m begins every reply" in refused.value.message
    assert "on or auto" in refused.value.hint
