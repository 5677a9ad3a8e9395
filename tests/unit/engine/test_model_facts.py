"""What a worker tells of its plan: enough for a service, plain data, and of the plan that runs."""

import json

import pytest

from anychip.engine import messages
from anychip.engine.model_facts import model_facts
from anychip.plan import make
from anychip.plan.explain import as_json
from anychip.recipe import load
from anychip.server.app import create_app
from anychip.server.settings import ServerSettings
from anychip.text.thinking import TemplateThinking
from support.engines import core_of, make_recipe, prepare_on
from support.local_client import Asker
from support.plans import GIB, GOLDEN_CASES, plan_of, references, stub_backend, tiny_config
from support.tiny_models import make_tiny


class VendorText(str):
    """A text of a class of its own, as torch's version is one."""

    __slots__ = ()


def silu_mul_swapped(gate, up):
    return references()["silu_mul"](up, gate)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return make_tiny(tmp_path_factory.mktemp("tiny") / "llama", "llama", num_hidden_layers=2)


@pytest.mark.parametrize("case", GOLDEN_CASES, ids=lambda case: case.recipe)
def test_the_plan_arrives_in_the_service_as_it_is_explained(case):
    plan = case.plan()
    told = messages.decode_from_worker(messages.encode(messages.Ready(1.0, model_facts(plan))))
    assert told.model.plan == json.loads(json.dumps(as_json(plan)))
    assert told.model.warnings == plan.warnings
    assert told.model.served_name == plan.model.served_name


def test_texts_of_a_vendors_own_class_arrive_as_texts():
    backend = stub_backend(versions={"driver": VendorText("5.1.0")})
    plan = plan_of(make_recipe("/models/m", backend={"name": "stub"}), tiny_config(), backend)
    told = messages.decode_from_worker(messages.encode(messages.Ready(1.0, model_facts(plan))))
    assert told.model.plan["backend"]["device"]["versions"] == {"driver": "5.1.0"}


@pytest.mark.parametrize(("kind", "said"), [("switch", "auto"), ("none", "off"), ("always", "on")])
def test_what_a_model_does_about_thinking_is_told(kind, said):
    recipe = make_recipe("/models/m", backend={"name": "stub"})
    assert model_facts(plan_of(recipe, tiny_config(), stub_backend(), thinking=TemplateThinking(kind))).thinking == said


def test_server_info_shows_that_a_refused_fusion_does_not_run(tiny):
    backend = stub_backend(kernels={**references(), "silu_mul": silu_mul_swapped}, capacity=4 * GIB)
    recipe = make_recipe(tiny, backend={"name": "stub"}, fusion={"policies": ["silu_mul", "add_rms_norm"]})
    before = {one.policy: one.applied for one in prepare_and_close(recipe, backend).fusions}
    assert before["silu_mul"] == 2  # what a plan says that nobody verified
    asker = Asker()
    with core_of(recipe, backend) as core:
        asker.client.model = core.model
        asker.app = create_app(ServerSettings(), asker.client, asker.tokenizer)
        info = asker.ask("GET", "/server_info").json()
    shown = {one["policy"]: (one["applied"] > 0, one["refused"]) for one in info["plan"]["fusions"]}
    assert shown == {"silu_mul": (False, True), "add_rms_norm": (True, False)}
    assert info["plan"]["warnings"] == ["fusion silu_mul: refused: its outputs differ from the unfused graph's"]


def prepare_and_close(recipe, backend):
    prepared = prepare_on(recipe, backend)
    prepared.checkpoint.close()
    return prepared.plan


@pytest.mark.parametrize(("kernel", "plans"), [("right", 1), ("wrong", 2)])
def test_a_worker_plans_again_only_where_a_fusion_was_refused(tiny, kernel, plans, monkeypatch):
    resolved = counted(monkeypatch)
    wrong = {} if kernel == "right" else {"silu_mul": silu_mul_swapped}
    backend = stub_backend(kernels={**references(), **wrong}, capacity=4 * GIB)
    with core_of(make_recipe(tiny, backend={"name": "stub"}, fusion={"policies": ["silu_mul"]}), backend):
        pass
    assert len(resolved) == plans


def test_the_command_plans_once_the_service_never_and_the_worker_once(tmp_path, monkeypatch):
    from anychip.deploy.launch import plan_recipe
    from anychip.deploy.served import prepare
    from anychip.engine.core import from_recipe_file

    make_tiny(tmp_path / "model", "llama", tokenizer=True, num_hidden_layers=2)
    path = tmp_path / "recipe.json"
    path.write_text(make_recipe(tmp_path / "model").model_dump_json(exclude_unset=True))
    resolved = counted(monkeypatch)
    loaded = load(path, env={})
    plan_recipe(loaded)
    assert len(resolved) == 1
    prepare(loaded.recipe)
    assert len(resolved) == 1
    from_recipe_file(str(path), lambda _: None).close()
    assert len(resolved) == 2


def counted(monkeypatch):
    """A list that grows with each plan that is made."""
    found, real = [], make.resolve

    def resolve(*args):
        found.append(real(*args))
        return found[-1]

    monkeypatch.setattr(make, "resolve", resolve)
    return found
