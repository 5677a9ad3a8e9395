"""Looking at services and ending them."""

from types import SimpleNamespace

import pytest

from anychip.deploy import services
from anychip.deploy.apply import ApplyOptions, apply
from anychip.deploy.client import ServiceClient, ServiceError, endpoint
from anychip.deploy.state import Store
from anychip.deploy.status import status_of
from anychip_sdk.errors import PreconditionFailed, UsageError
from support.deploying import Recorder, fake_launch, write_recipe


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A home with one service that runs, one that was stopped and one that is damaged."""
    folder = tmp_path_factory.mktemp("world")
    store = Store(folder / "home")

    def bring_up(name):
        path = write_recipe(folder, name=name)
        return apply(path, ApplyOptions(timeout_s=20), store=store, reporter=Recorder(), launch=fake_launch())

    running, stopped = bring_up("good"), bring_up("over")
    services.down(store, "over")
    yield SimpleNamespace(store=store, running=running, stopped=stopped)
    services.down(store, "good")


def test_a_running_service_shows_its_numbers(world):
    status = status_of(world.store, "good")
    assert (status.condition, status.model, status.url) == ("running", "tiny", world.running.url)
    assert (status.requests_running, status.requests_waiting, status.kv_use) == (2, 1, 0.4)
    assert status.engine_restarts == 0
    assert status.uptime_s < 60
    assert status.pid == world.running.state.process.pid
    assert status.to_json()["condition"] == "running"


def test_a_stopped_service_is_shown_without_numbers(world):
    status = status_of(world.store, "over")
    assert (status.condition, status.requests_running, status.uptime_s) == ("stopped", None, None)


def test_a_damaged_state_is_a_condition(tmp_path):
    store = Store(tmp_path)
    path = store.files("bad").state
    path.parent.mkdir(parents=True)
    path.write_text("{")
    status = status_of(store, "bad")
    assert status.condition == "damaged"
    assert "state.json is damaged" in status.detail


def test_the_only_living_service_needs_no_name(world):
    assert services.pick(world.store, None) == "good"
    assert services.pick(world.store, "over") == "over"


def test_an_unknown_service_names_the_nearest(world):
    with pytest.raises(UsageError, match=r"no service 'goood'; known: good, over\. Did you mean 'good'\?"):
        services.pick(world.store, "goood")


def test_without_services_the_way_to_one_is_told(tmp_path):
    with pytest.raises(UsageError, match="platform apply RECIPE"):
        services.pick(Store(tmp_path), None)


def test_a_stopped_service_cannot_be_talked_to(world):
    with pytest.raises(PreconditionFailed, match="service 'over' does not run"):
        services.require_living(world.store, "over")


def test_chat_gives_reasoning_and_content(world):
    with ServiceClient("127.0.0.1", world.running.state.port) as client:
        deltas = list(client.chat("tiny", [{"role": "user", "content": "hi"}]))
    assert "".join(delta.reasoning for delta in deltas) == "Hm."
    assert "".join(delta.content for delta in deltas) == "You said hi"


@pytest.mark.parametrize(("said", "message"), [("fail", "answered 400: no"), ("break", "the engine died")])
def test_chat_tells_the_services_errors(world, said, message):
    with ServiceClient("127.0.0.1", world.running.state.port) as client, pytest.raises(ServiceError, match=message):
        list(client.chat("tiny", [{"role": "user", "content": said}]))


def test_nobody_answering_is_unreachable(world):
    with ServiceClient("127.0.0.1", world.stopped.state.port) as client:
        assert client.health().state == "unreachable"
        with pytest.raises(ServiceError, match="does not answer"):
            client.info()


def test_endpoints_can_be_reached_from_this_machine():
    assert endpoint("0.0.0.0", 80) == "http://127.0.0.1:80"
    assert endpoint("::", 80) == "http://[::1]:80"
    assert endpoint("host", 80) == "http://host:80"
