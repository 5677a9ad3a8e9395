"""Variables for the chat template are data, whatever their names: over HTTP, with a real template."""

import pytest

from anychip.text.chat_template import ChatTemplate
from anychip.text.thinking import TemplateThinking
from support.local_client import Asker

SOURCE = "{% for m in messages %}{{ m.content }}{% endfor %}{{ mode }}"
NAMES = [
    "self", "caller", "loop", "context", "environment", "range", "namespace", "class", "def", "__class__", "name",
    "anychip_tick", "source", "variables", "render", "args", "kwargs", "", "0", "a b", "é",
]  # fmt: skip
RESERVED = ["messages", "tools", "documents", "add_generation_prompt", "bos_token", "eos_token"]


@pytest.fixture(scope="module")
def asker():
    template = ChatTemplate(SOURCE, {"bos_token": "<s>"})
    template.thinking = TemplateThinking()
    yield Asker(template=template)
    template.close()


@pytest.mark.parametrize("value", [1, None, [1], {"a": {"b": 1}}, "x" * 1000, True, 10**30])
@pytest.mark.parametrize("name", NAMES)
def test_any_name_of_a_template_variable_is_data(asker, name, value):
    reply = asker.chat("hi", chat_template_kwargs={name: value}, max_tokens=2)
    assert reply.status_code == 200, reply.text
    assert reply.json()["choices"][0]["message"]["content"] == "hi"


@pytest.mark.parametrize("name", RESERVED)
def test_what_the_service_sets_itself_is_refused_by_name(asker, name):
    reply = asker.chat("hi", chat_template_kwargs={name: 1})
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == f"chat_template_kwargs.{name}"


def test_a_variable_reaches_the_template(asker):
    assert asker.chat("hi", chat_template_kwargs={"mode": "!"}).json()["usage"]["prompt_tokens"] == len("hi!")
