"""Whether a request's model thinks."""

import json

import pytest

from anychip.server.thinking import template_variables
from anychip.text.chat_template import ChatTemplate
from anychip.text.thinking import TemplateThinking
from anychip.text.thinking_probe import thinking_of
from anychip_sdk.errors import RequestInvalid
from support.local_client import Asker, events_of
from support.stub_text import THINKS, StubTemplate

NONE = TemplateThinking()
ALWAYS = TemplateThinking("always", is_marked=True)
OTHER = TemplateThinking("switch", "thinking", False, is_marked=True)


def variables(policy="auto", template=THINKS, top=None, inner=None):
    return template_variables(policy, template, top, {} if inner is None else {"enable_thinking": inner})


@pytest.mark.parametrize(
    ("policy", "top", "inner", "expected"),
    [
        ("auto", None, None, {}),
        ("auto", True, None, {"enable_thinking": True}),
        ("auto", None, False, {"enable_thinking": False}),
        ("auto", False, False, {"enable_thinking": False}),
        ("off", None, None, {"enable_thinking": False}),
        ("off", False, None, {"enable_thinking": False}),
        ("on", None, None, {"enable_thinking": True}),
        ("on", None, True, {"enable_thinking": True}),
    ],
)
def test_recipe_and_request_decide_together(policy, top, inner, expected):
    assert variables(policy, THINKS, top, inner) == expected


@pytest.mark.parametrize(
    ("policy", "template", "top", "inner", "message"),
    [
        ("off", THINKS, True, None, "recipe fixes"),
        ("on", THINKS, None, False, "recipe fixes"),
        ("auto", THINKS, True, False, "contradict"),
        ("auto", NONE, True, None, "no thinking"),
        ("on", ALWAYS, False, None, "begins every reply with <think>"),
        ("auto", ALWAYS, None, False, "begins every reply with <think>"),
        ("auto", OTHER, True, False, "contradict"),
        ("auto", THINKS, None, "false", "true or false"),
        ("auto", THINKS, None, 0, "true or false"),
    ],
)
def test_what_cannot_be_honoured_is_refused(policy, template, top, inner, message):
    with pytest.raises(RequestInvalid, match=message):
        variables(policy, template, top, inner)


def test_a_wish_that_the_template_grants_anyway_is_no_error():
    assert variables("off", NONE, False) == {}
    assert variables("on", ALWAYS, True) == {}


def test_a_templates_own_name_of_the_switch_is_used_and_understood():
    assert variables("on", OTHER) == {"thinking": True}
    assert variables("auto", OTHER, False) == {"thinking": False}
    assert template_variables("auto", OTHER, None, {"thinking": True}) == {"thinking": True}
    with pytest.raises(RequestInvalid, match="recipe fixes"):
        template_variables("off", OTHER, None, {"thinking": True})
    with pytest.raises(RequestInvalid, match="contradict"):
        template_variables("auto", OTHER, None, {"thinking": True, "enable_thinking": False})
    assert template_variables("off", THINKS, None, {"thinking": 5}) == {"thinking": 5, "enable_thinking": False}


def test_a_variable_that_is_null_is_as_good_as_absent():
    assert template_variables("auto", THINKS, None, {"enable_thinking": None, "flavour": None}) == {}


def test_other_template_variables_pass_and_reserved_ones_do_not():
    assert template_variables("auto", THINKS, None, {"flavour": "dry"}) == {"flavour": "dry"}
    with pytest.raises(RequestInvalid, match="set by the service"):
        template_variables("auto", THINKS, None, {"messages": []})


@pytest.mark.parametrize("value", ["false", 0, 1, "true", []])
@pytest.mark.parametrize("where", ["top", "inner"])
def test_a_switch_that_is_no_boolean_is_refused_by_name(value, where):
    asker = Asker(template=StubTemplate(thinking=True))
    fields = {"enable_thinking": value} if where == "top" else {"chat_template_kwargs": {"enable_thinking": value}}
    reply = asker.chat(**fields)
    assert reply.status_code == 400
    assert "enable_thinking" in reply.json()["error"]["param"]


PIECES = ["<think>", "\nhm", "\n</th", "ink>\n\n", "yes"]


def both_ways(asker, **fields):
    """Reasoning, content and finish of one chat, the same with a stream and without."""
    whole = asker.chat(**fields).json()["choices"][0]
    chunks, done = events_of(asker.chat(stream=True, **fields))
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    streamed = tuple("".join(delta.get(key) or "" for delta in deltas) for key in ("reasoning_content", "content"))
    message = whole["message"]
    assert done
    assert streamed == (message["reasoning_content"] or "", message["content"])
    assert chunks[-1]["choices"][0]["finish_reason"] == whole["finish_reason"]
    return *streamed, whole["finish_reason"]


def test_thinking_comes_as_reasoning_content():
    assert both_ways(Asker(PIECES, StubTemplate(thinking=True))) == ("hm", "yes", "stop")


def test_thinking_cut_by_length_is_all_reasoning():
    asker = Asker(PIECES, StubTemplate(thinking=True))
    assert both_ways(asker, max_tokens=2) == ("hm", "", "length")
    opened = Asker(PIECES[1:], StubTemplate(thinking=True, opens=True))
    assert both_ways(opened, max_tokens=1) == ("hm", "", "length")


def test_thinking_ended_without_a_closer_is_all_reasoning():
    assert both_ways(Asker(PIECES[:2], StubTemplate(thinking=True))) == ("hm", "", "stop")


ASKS = ["<think>", "Question: hm", "</thi", "nk>\n", "42 ", "Quest", "ion:", " next"]


@pytest.mark.parametrize("opened", [False, True])
def test_a_stop_string_is_looked_for_in_the_answer_only(opened):
    asker = Asker(ASKS[opened:], StubTemplate(thinking=True, opens=opened))
    assert both_ways(asker, stop=["Question:"]) == ("Question: hm", "42 ", "stop")
    assert both_ways(asker, stop=["hm</think>\n42", "</think>"]) == ("Question: hm", "42 Question: next", "stop")


@pytest.mark.parametrize("stream", [False, True])
def test_every_choice_of_several_ends_by_the_stop_string_in_its_answer(stream):
    asker = Asker(ASKS, StubTemplate(thinking=True))
    reply = asker.chat(n=3, stop="Question:", stream=stream)
    if stream:
        events, _ = events_of(reply)
        texts = [""] * 3
        for choice in (event["choices"][0] for event in events):
            texts[choice["index"]] += choice["delta"].get("content", "")
    else:
        texts = [choice["message"]["content"] for choice in reply.json()["choices"]]
    assert texts == ["42 "] * 3
    assert len(asker.core.stopped) == 3


def test_without_separation_all_text_is_the_answer_for_stop_strings_too():
    asker = Asker(ASKS, StubTemplate(thinking=True))
    assert both_ways(asker, stop="Question:", separate_reasoning=False) == ("", "<think>", "stop")


def test_without_separation_the_text_stays_whole():
    asker = Asker(PIECES, StubTemplate(thinking=True))
    assert both_ways(asker, separate_reasoning=False) == ("", "".join(PIECES), "stop")


def test_switched_off_the_text_stays_whole():
    asker = Asker(PIECES, StubTemplate(thinking=True))
    assert both_ways(asker, enable_thinking=False) == ("", "".join(PIECES), "stop")
    assert asker.template.variables == {"enable_thinking": False}


def test_a_model_without_thinking_is_not_split():
    assert both_ways(Asker(PIECES)) == ("", "".join(PIECES), "stop")


def test_reasoning_tokens_are_counted():
    usage = Asker(PIECES, StubTemplate(thinking=True)).chat().json()["usage"]
    assert usage["completion_tokens"] == 6
    assert usage["completion_tokens_details"] == {"reasoning_tokens": 3}
    assert json.dumps(usage)


class RealTemplate(ChatTemplate):
    def __init__(self, source):
        super().__init__(source, {})
        self.thinking = thinking_of(self)


TURNS = "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}"


def test_a_template_that_always_opens_thinks_and_refuses_to_be_switched_off():
    asker = Asker(["hm\n", "</think>", "\nyes"], RealTemplate(TURNS + "<think>\n"))
    assert both_ways(asker) == both_ways(asker, enable_thinking=True) == ("hm", "yes", "stop")
    error = asker.chat(enable_thinking=False).json()["error"]
    assert "begins every reply with <think>" in error["message"]
    assert error["param"] == "enable_thinking"


def test_a_template_without_a_switch_that_cuts_old_thinking_out_has_its_replies_told_apart():
    asker = Asker(PIECES, RealTemplate(TURNS.replace("m.content", "m.content.split('</think>')[-1]")))
    assert both_ways(asker) == ("hm", "yes", "stop")


@pytest.mark.parametrize("marker", ["<think>", "</think>", " <think> \n", "<think>\n\n</think>\n\n"])
@pytest.mark.parametrize("parts", [False, True])
def test_a_marker_at_the_end_of_the_users_text_is_not_the_templates(marker, parts):
    bare = Asker(PIECES, RealTemplate("{% if enable_thinking %}Think.{% endif %}" + TURNS.replace("\n", "")))
    content = [{"type": "text", "text": "why"}, {"type": "text", "text": marker}] if parts else f"why{marker}"
    assert both_ways(bare, content=content) == ("hm", "yes", "stop")
    plain = Asker(["just an answer"], bare.template)
    assert both_ways(plain, content=content) == ("", "just an answer", "stop")


def test_a_marker_of_the_template_counts_also_behind_such_a_text():
    asker = Asker(["hm", "</think>yes"], RealTemplate(TURNS + "<think>"))
    assert both_ways(asker, content="<think>") == ("hm", "yes", "stop")
    closed = Asker(PIECES, RealTemplate(TURNS + "{% if enable_thinking is false %}<think></think>{% endif %}"))
    assert both_ways(closed, content="</think>", enable_thinking=False) == ("", "".join(PIECES), "stop")
