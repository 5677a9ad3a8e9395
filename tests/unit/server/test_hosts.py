"""Only names of the service's own are served, so that no page of another name reaches it."""

import pytest

from anychip.server.hosts import host_of, hosts_served
from anychip.server.lobby import Lobby
from support.local_client import Asker

OWN = ["localhost", "LOCALHOST:8000", "localhost.", "127.0.0.1", "127.0.0.1:80", "127.8.9.1", "[::1]", "[::1]:8000"]
FOREIGN = [
    "evil.example",
    "evil.example:8000",
    "localhost.evil.example",
    "127.0.0.1.evil.example",
    "localhost@evil.example",
    "evil.example:80:80",
    "10.0.0.1",
    "[::2]",
    "[::1",
    "",
    "a b",
    "localhost:80x",
    "localhost/",
]


@pytest.mark.parametrize("host", OWN)
@pytest.mark.parametrize("bound", ["127.0.0.1", "localhost", "::1", "127.0.0.5"])
def test_a_service_of_this_machine_answers_for_loopbacks_names(bound, host):
    assert Asker(network={"host": bound}).ask("GET", "/v1/models", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize("host", FOREIGN)
def test_a_service_of_this_machine_answers_for_no_other_name(host):
    for path in ("/v1/models", "/health", "/metrics", "/nowhere"):
        reply = Asker(network={}).ask("GET", path, headers={"Host": host})
        assert (reply.status_code, reply.json()["error"]["code"]) == (421, "unknown_host")
        assert "server.allowed_hosts" in reply.json()["error"]["message"]


def test_listed_names_are_answered_for_too():
    asker = Asker(network={"allowed_hosts": ["API.example", "10.0.0.1", "[fd00::1]"]})
    for host in ("api.example", "Api.Example.:8000", "10.0.0.1:8000", "[fd00::1]:8000", "localhost", "127.0.0.1"):
        assert asker.ask("GET", "/v1/models", headers={"Host": host}).status_code == 200
    for host in ("x.api.example", "10.0.0.2"):
        assert asker.ask("GET", "/v1/models", headers={"Host": host}).status_code == 421


def test_a_service_for_other_machines_answers_for_every_name_unless_some_are_listed():
    assert Asker(network={"host": "0.0.0.0"}).ask("GET", "/v1/models", headers={"Host": "any.thing"}).status_code == 200
    listed = Asker(network={"host": "0.0.0.0", "allowed_hosts": ["api.example"]})
    assert listed.ask("GET", "/v1/models", headers={"Host": "any.thing"}).status_code == 421
    assert listed.ask("GET", "/v1/models", headers={"Host": "127.0.0.1:8000"}).status_code == 200


def test_a_star_is_any_name():
    assert hosts_served("127.0.0.1", ["*"]) is None
    assert Asker(network={"allowed_hosts": ["*"]}).ask("GET", "/v1/models", headers={"Host": "x"}).status_code == 200


def test_a_request_has_one_host():
    two = [("Host", "localhost"), ("Host", "evil.example")]
    reply = Asker(network={}).ask("GET", "/v1/models", headers=two)
    assert (reply.status_code, reply.json()["error"]["code"]) == (400, "invalid_host")


def test_the_check_comes_before_the_model_is_loaded():
    asker = Asker(network={})
    asker.app = Lobby(asker.client, asker.network)
    assert asker.ask("GET", "/health", headers={"Host": "evil.example"}).status_code == 421
    assert asker.ask("GET", "/health", headers={"Host": "localhost"}).status_code == 503


def test_hosts_are_told_from_ports():
    assert host_of("A.b:1") == "a.b"
    assert host_of("[FD00::1]:1") == "fd00::1"
    assert host_of("a:b") is None
