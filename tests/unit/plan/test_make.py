"""What a plan is made of is read from the checkpoint itself."""

import pytest

from anychip.plan.explain import as_text
from anychip.plan.make import make_plan
from anychip_sdk.errors import PreconditionFailed
from support.engines import make_recipe
from support.tiny_models import make_tiny


@pytest.fixture(scope="module")
def always(tmp_path_factory):
    path = make_tiny(tmp_path_factory.mktemp("m") / "always", "llama", tokenizer=True)
    template = path / "chat_template.jinja"
    template.write_text(template.read_text() + "<think>\n")
    return path


def test_a_template_that_always_opens_its_thinking_is_found_and_told(always):
    text = as_text(make_plan(make_recipe(always, model={"thinking": "auto"})))
    assert "thinking   on (the chat template begins every reply with <think>)" in text


def test_thinking_off_is_refused_where_the_template_always_opens_it(always):
    with pytest.raises(PreconditionFailed, match="begins every reply with <think>"):
        make_plan(make_recipe(always, model={"thinking": "off"}))
