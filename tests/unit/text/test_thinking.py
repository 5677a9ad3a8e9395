"""What a prompt's end says of thinking, and how a policy is kept."""

import pytest

from anychip.text.thinking import TemplateThinking, ends_like_a_marker, fixed_variables, reply_begins


@pytest.mark.parametrize(
    ("policy", "variables"), [("auto", {}), ("on", {"thinking": True}), ("off", {"thinking": False})]
)
def test_a_policy_is_kept_by_the_templates_own_switch(policy, variables):
    assert fixed_variables(policy, TemplateThinking("switch", "thinking")) == variables
    assert fixed_variables(policy, TemplateThinking("always")) == {}


@pytest.mark.parametrize(
    ("prompt", "begins"),
    [("a<think>\n", "thinking"), ("a<think>\n\n</think>\n\n", "answer"), ("<think>a", "either"), ("", "either")],
)
def test_the_last_words_of_a_prompt_say_where_the_reply_begins(prompt, begins):
    assert reply_begins(prompt) == begins


def test_only_texts_that_end_like_a_marker_are_suspicious():
    assert ends_like_a_marker(["a", None, "why <think> "])
    assert ends_like_a_marker(["</think>\n"])
    assert not ends_like_a_marker(["<think> why", 5, None, ["<think>"]])
