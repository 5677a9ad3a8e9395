"""Whom a service answers, as plan and validate tell it."""

import json

import pytest

from anychip.cli.main import main
from anychip.deploy.network import as_json, as_text, client_of, missing, network_of, require, url_of
from anychip.recipe.schema import ServerSection
from anychip_sdk.errors import PreconditionFailed
from support.networks import make_certificate


def section(**server):
    return ServerSection.model_validate(server)


def test_everything_that_is_missing_is_told_at_once(tmp_path):
    gone = str(tmp_path / "gone")
    server = section(api_key={"file": gone}, tls={"certificate": gone, "key": gone})
    told = missing(server)
    assert [problem.split(":")[0] for problem in told] == [
        "server.api_key",
        "server.tls.certificate",
        "server.tls.key",
    ]
    with pytest.raises(PreconditionFailed) as error:
        require(server)
    assert all(problem in str(error.value) for problem in told)
    require(section())


def test_keys_are_told_by_name(tmp_path):
    (tmp_path / "keys").write_text("alice: sk-1\nsk-2\n")
    certificate, key = make_certificate(tmp_path)
    server = section(
        api_key={"file": str(tmp_path / "keys")},
        tls={"certificate": certificate, "key": key},
        cors=["HTTPS://Chat.example.com:443"],
        allowed_hosts=["API.example.com"],
    )
    told = as_json(server)
    assert told["keys"] == ["alice", "line-2"]
    assert told["origins"] == ["https://chat.example.com"]
    assert told["hosts"] == ["127.0.0.1", "::1", "api.example.com", "localhost"]
    text = as_text(server)
    assert "sk-" not in text + json.dumps(told)
    assert "keys     alice, line-2" in text
    assert "TLS, certificate until 20" in text
    assert network_of(server).keys.names == ("alice", "line-2")
    assert url_of(server) == "https://127.0.0.1:8000"
    with client_of(server) as client:
        assert client.url == "https://127.0.0.1:8000"


def test_a_service_that_is_open_says_so():
    assert as_text(section(host="0.0.0.0")).splitlines()[1:] == [
        "  listens  0.0.0.0:8000, plain HTTP",
        "  hosts    any",
        "  origins  none: no web page of another origin may use it",
        "  keys     none: open to all who reach it",
    ]


@pytest.fixture
def recipe(tmp_path):
    path = tmp_path / "svc.yaml"
    path.write_text("version: 1\nname: svc\nmodel: {source: ./gone}\nserver: {api_key: {file: keys.txt}}\n")
    return path


def test_plan_finds_a_missing_key_beside_all_else_that_is_missing(recipe, capsys):
    assert main(["plan", str(recipe)]) == 4
    told = capsys.readouterr().err
    assert f"server.api_key: the file {recipe.parent / 'keys.txt'} cannot be read" in told
    assert "model.source" in told


def test_validate_notes_a_missing_key_which_another_machine_may_have(recipe, capsys):
    assert main(["validate", str(recipe)]) == 0
    assert f"note: server.api_key: the file {recipe.parent / 'keys.txt'}" in capsys.readouterr().err
    (recipe.parent / "keys.txt").write_text("sk-1\n")
    assert main(["validate", str(recipe)]) == 0
    assert "note" not in capsys.readouterr().err


def test_a_host_that_is_a_name_of_this_machine_alone_is_a_loopback_one(monkeypatch):
    address = [(2, 1, 6, "", ("127.0.1.1", 8000))]
    monkeypatch.setattr("anychip.deploy.network.socket.getaddrinfo", lambda *_, **__: address)
    hosts = network_of(section(host="mybox")).hosts
    assert hosts == {"mybox", "127.0.1.1"}
    monkeypatch.setattr("anychip.deploy.network.socket.getaddrinfo", lambda *_, **__: [(2, 1, 6, "", ("10.0.0.1", 1))])
    assert network_of(section(host="mybox")).hosts is None
