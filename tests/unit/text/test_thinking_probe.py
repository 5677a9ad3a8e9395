"""What rendering shows of a template's thinking."""

import pytest

from anychip.text.chat_template import ChatTemplate
from anychip.text.thinking import TemplateThinking
from anychip.text.thinking_probe import checkpoint_thinking, thinking_of
from anychip.weights.checkpoint import open_checkpoint
from support.tiny_models import make_tiny

TURNS = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>bot\n"
ALWAYS = TURNS + "<think>\n"
CLOSES = TURNS + "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}"
OPENS = TURNS + "{% if enable_thinking | default(true) %}<think>\n{% else %}<think>\n\n</think>\n\n{% endif %}"
DEFAULT_OFF = TURNS + "{% if enable_thinking %}<think>\n{% else %}</think>{% endif %}"
OTHER_NAME = (
    TURNS
    + "{% if not thinking is defined %}{% set thinking = false %}{% endif %}"
    + ("{{ '<think>' if thinking else '</think>' }}")
)
HINTED = "{% if enable_thinking %}Think hard.{% endif %}" + ALWAYS
THIRD_WAY = TURNS + "{% if enable_thinking is defined %}{{ '/think' if enable_thinking else '/no_think' }}{% endif %}"
STRIPS = TURNS.replace("m.content", "m.content.split('</think>')[-1]")
MENTIONS = "{# enable_thinking is for others #}" + TURNS
IGNORES = "{% set x = enable_thinking %}" + ALWAYS
PICKY = "{% if messages | length < 2 %}{{ raise_exception('two, please') }}{% endif %}" + TURNS


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (TURNS, TemplateThinking()),
        (ALWAYS, TemplateThinking("always", is_marked=True)),
        (CLOSES, TemplateThinking("switch", "enable_thinking", True, is_marked=True)),
        (OPENS, TemplateThinking("switch", "enable_thinking", True, is_marked=True)),
        (DEFAULT_OFF, TemplateThinking("switch", "enable_thinking", False, is_marked=True)),
        (OTHER_NAME, TemplateThinking("switch", "thinking", False, is_marked=True)),
        (HINTED, TemplateThinking("always", is_marked=True)),
        (THIRD_WAY, TemplateThinking("switch", "enable_thinking", None, is_marked=True)),
        (STRIPS, TemplateThinking(is_marked=True)),
        (MENTIONS, TemplateThinking()),
        (IGNORES, TemplateThinking("always", is_marked=True)),
        (PICKY, TemplateThinking()),
        (PICKY + "{{ enable_thinking }}", TemplateThinking("switch", "enable_thinking", None, is_marked=True)),
        ("{{ bos_token + messages[0].content }}", TemplateThinking()),
    ],
)
def test_what_a_template_does_is_found_by_rendering_it(source, expected):
    assert thinking_of(ChatTemplate(source, {"bos_token": ""})) == expected


def test_a_model_without_a_template_has_no_thinking():
    assert thinking_of(None) == TemplateThinking()


def test_a_checkpoint_is_asked_without_its_tokenizer(tmp_path):
    path = make_tiny(tmp_path / "m", "qwen3", tokenizer=True)
    (path / "tokenizer.json").write_text("broken")
    with open_checkpoint(path) as checkpoint:
        assert checkpoint_thinking(checkpoint).switch == "enable_thinking"
    (path / "chat_template.jinja").write_text("{{ bos_token + eos_token }}" + ALWAYS)
    with open_checkpoint(path) as checkpoint:
        assert checkpoint_thinking(checkpoint).kind == "always"
