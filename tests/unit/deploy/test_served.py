"""What a service's process reads itself, without a plan."""

import json
import subprocess
import sys

import pytest

from anychip.deploy.served import prepare, sampling_defaults
from anychip_sdk.errors import PreconditionFailed
from support.engines import make_recipe
from support.processes import child_env
from support.tiny_models import make_tiny


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return make_tiny(tmp_path_factory.mktemp("tiny") / "llama", "llama", tokenizer=True)


def test_texts_defaults_and_namespace_are_the_checkpoints(tiny):
    served = prepare(make_recipe(tiny))
    assert served.tokenizer.decode(served.tokenizer.encode("hello")) == "hello"
    assert served.template is not None
    assert str(tiny) in served.settings.namespace
    assert served.thinking.switch == "enable_thinking"


def test_what_the_recipe_says_of_requests_reaches_the_server(tiny):
    assert prepare(make_recipe(tiny, server={"unknown_fields": "lenient"})).settings.unknown_fields == "lenient"


def test_a_model_that_is_not_there_is_told(tmp_path):
    with pytest.raises(PreconditionFailed, match="does not exist"):
        prepare(make_recipe(tmp_path / "gone"))


def test_only_numbers_for_fields_of_requests_are_defaults():
    config = {"temperature": 0.6, "top_k": 20, "eos_token_id": 2, "top_p": None, "min_p": "0.1"}
    assert sampling_defaults(config) == {"temperature": 0.6, "top_k": 20.0}


def test_the_services_process_loads_nothing_that_plans(tiny):
    code = (
        "import json, sys; import anychip.deploy.service; from anychip.deploy.served import prepare; "
        "from anychip.recipe.schema import Recipe; prepare(Recipe.model_validate_json(sys.argv[1])); "
        "sys.stdout.write(json.dumps([name for name in sys.modules if name.startswith('anychip')]))"
    )
    recipe = make_recipe(tiny).model_dump_json(exclude_unset=True)
    done = subprocess.run(
        [sys.executable, "-c", code, recipe], env=child_env(), capture_output=True, text=True, check=True
    )
    loaded = json.loads(done.stdout)
    assert "anychip.server.app" in loaded
    planning = ("anychip.plan", "anychip.graph", "anychip.backends", "anychip_sdk.backend")
    assert [name for name in loaded if name.startswith(planning)] == []
