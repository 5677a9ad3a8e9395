"""What a service's process hands to the server: port, worker, environment. Starts no process."""

import pytest

from anychip.deploy import service
from anychip.deploy.state import Revision, Store
from anychip.recipe import load
from support.deploying import write_recipe


@pytest.fixture
def served(monkeypatch):
    """Calls of the server, which serves nothing."""
    calls = []
    monkeypatch.setattr(service, "serve", lambda *args, **named: calls.append((args, named)) or 0)
    return calls


def revision(folder, environment):
    recipe = dict(load(str(write_recipe(folder, port=8123))).resolved)
    names = {"name": "svc", "digest": "", "recipe_path": "", "working_folder": ""}
    return Store(folder).add_revision(Revision(**names, revision=1, recipe=recipe, environment=environment))


def test_the_worker_gets_the_backend_s_variables_where_the_user_set_none(tmp_path, served, monkeypatch):
    monkeypatch.setenv("ONE", "the user's")
    monkeypatch.delenv("TWO", raising=False)
    assert service.run(revision(tmp_path, {"ONE": "the backend's", "TWO": "the backend's"})) == 0
    [(_, named)] = served
    assert (named["env"]["ONE"], named["env"]["TWO"]) == ("the user's", "the backend's")


def test_the_recipe_s_port_is_served_and_the_worker_reads_the_resolved_recipe(tmp_path, served):
    service.run(revision(tmp_path, {}))
    [((host, port, (factory, recipe_path), _), _)] = served
    assert (host, port, factory) == ("127.0.0.1", 8123, "anychip.engine.core:from_recipe_file")
    assert load(recipe_path, env={}).recipe.server.port == 8123
