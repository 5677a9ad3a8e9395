"""What doctor says of one recipe: model, port, lock and plan, each also where it is missing."""

import socket

import pytest

from anychip.deploy.state import Store
from anychip.doctor import recipe as checks
from anychip.recipe import load
from support.plans import stub_backend
from support.tiny_models import make_tiny


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_tiny(tmp_path_factory.mktemp("model"), "llama")


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "home")


def recipe(folder, source, *sets):
    path = folder / "svc.yaml"
    path.write_text(f"version: 1\nname: svc\nmodel: {{source: '{source}'}}\nbackend: {{name: stub}}\n")
    return load(path, sets=("memory.kv_tokens=512", "server.port=0", *sets), env={}).recipe


def examined(made, store, backend):
    return {one.area: one for one in checks.recipe_findings(made, backend, store)}


def statuses(found):
    return {area: one.status for area, one in found.items()}


def test_a_recipe_that_has_all_it_needs_is_in_order(tmp_path, model, store):
    found = examined(recipe(tmp_path, model), store, stub_backend())
    assert statuses(found) == {"model": "ok", "port": "ok", "lock": "ok", "plan": "ok"}
    assert "512 tokens in the pool" in found["plan"].what


def test_warnings_of_the_plan_are_warnings(tmp_path, model, store):
    backend = stub_backend(kernels={})
    found = checks.recipe_findings(recipe(tmp_path, model, "ops.fallback=warn"), backend, store)
    assert any(one.status == "warn" and "run on the reference" in one.what for one in found if one.area == "plan")


def test_a_plan_that_cannot_be_made_is_a_failure_with_its_reason(tmp_path, model, store):
    found = examined(recipe(tmp_path, model), store, stub_backend(capacity=1 << 20))
    assert found["plan"].status == "fail"
    assert found["plan"].hint


def test_without_model_or_device_or_backend_no_plan_is_tried(tmp_path, model, store):
    absent = examined(recipe(tmp_path, tmp_path / "gone"), store, stub_backend())
    assert (absent["model"].status, absent["plan"].status) == ("fail", "info")
    assert "does not exist" in absent["model"].what
    assert examined(recipe(tmp_path, model), store, stub_backend(present=False))["plan"].status == "info"
    assert examined(recipe(tmp_path, model), store, None)["plan"].status == "info"


@pytest.mark.parametrize(("free", "status"), [(1 << 40, "ok"), (1 << 30, "warn")])
def test_a_hub_s_model_needs_room_and_is_never_fetched(tmp_path, store, monkeypatch, free, status):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(checks.shutil, "disk_usage", lambda path: type("Usage", (), {"free": free}))
    found = examined(recipe(tmp_path, "hf:acme/model"), store, stub_backend())
    assert (found["model"].status, found["disk"].status) == ("warn", status)
    assert str(tmp_path / "hub") in found["disk"].what
    assert not (tmp_path / "hub").exists()


def test_a_taken_port_is_a_failure(tmp_path, model, store):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        found = examined(recipe(tmp_path, model, f"server.port={port}"), store, stub_backend())
    assert found["port"].status == "fail"
    assert f"port {port} on 127.0.0.1 is taken" in found["port"].what


def test_a_locked_service_is_a_failure_that_names_who_holds_it(tmp_path, model, store):
    with store.lock("svc"):
        found = examined(recipe(tmp_path, model), store, stub_backend())
    assert found["lock"].status == "fail"
    assert "is being changed by process" in found["lock"].what
    assert examined(recipe(tmp_path, model), store, stub_backend())["lock"].status == "ok"


def test_keys_and_certificates_that_are_missing_are_failures(tmp_path, model, store):
    keys = tmp_path / "keys"
    keys.write_text("sk-1\n")
    for file, status in ((keys, "ok"), (tmp_path / "gone", "fail")):
        made = recipe(tmp_path, model, f"server.api_key={{file: {file}}}")
        assert examined(made, store, None)["network"].status == status
