"""A service and its clients over real sockets: TLS, keys that change, a port open until the last stream ends."""

import json
import os
import signal

import httpx
import pytest

from anychip.deploy.network import client_of, takes_keys
from anychip.recipe.schema import ServerSection
from support.networks import make_certificate
from support.processes import stub_service, wait_until

ENDLESS = {"reply": [[65]], "endless": True, "step_s": 0.005}


def replace(path, text):
    draft = path.with_name("draft")
    draft.write_text(text)
    os.replace(draft, path)


def lines(service):
    return [json.loads(line) for line in service.log.read_text().splitlines()]


@pytest.fixture
def keys(tmp_path):
    path = tmp_path / "keys"
    path.write_text("alice: sk-1\n")
    return path


def test_a_changed_key_file_counts_without_a_restart_and_a_broken_one_does_not(keys):
    with stub_service(core=ENDLESS, settings={"network": {"api_key": {"file": str(keys)}}}) as service:
        service.wait_for("ready")

        def status(key):
            return service.client.get("/v1/models", headers={"Authorization": f"Bearer {key}"}).status_code

        assert (status("sk-1"), status("sk-2")) == (200, 401)
        replace(keys, "alice: sk-1\nbob: sk-2\n")
        wait_until(lambda: status("sk-2") == 200, 10)
        replace(keys, "bob: sk-2\n")
        wait_until(lambda: status("sk-1") == 401, 10)
        replace(keys, "\n")
        wait_until(lambda: "not taken up" in service.log.read_text(), 10)
        assert status("sk-2") == 200
        keys.unlink()
        assert status("sk-2") == 200
        said = service.log.read_text()
        assert "sk-" not in said
        assert {line.get("key") for line in lines(service)} >= {"alice", "bob"}


def test_commands_see_whether_a_running_service_goes_by_the_recipe_s_keys(keys, monkeypatch):
    monkeypatch.setenv("SVC_KEY", "sk-1")
    for ref in ({"file": str(keys)}, {"env": "SVC_KEY"}):
        with stub_service(core=ENDLESS, settings={"network": {"api_key": ref}}) as service:
            service.wait_for("ready")
            server = ServerSection.model_validate({"api_key": ref, "port": service.client.base_url.port})
            with client_of(server, with_key=False) as client:
                assert takes_keys(client, server)
                if "file" in ref:
                    replace(keys, "carol: sk-3\n")
                    assert takes_keys(client, server)  # read by the service meanwhile
                else:
                    monkeypatch.setenv("SVC_KEY", "sk-9")
                    assert not takes_keys(client, server)


def test_a_service_speaks_tls_and_takes_up_a_renewed_certificate(tmp_path):
    paths = make_certificate(tmp_path, "localhost")
    tls = {"certificate": paths[0], "key": paths[1]}
    with stub_service(core=ENDLESS, settings={"network": {"tls": tls}}) as service:
        server = ServerSection.model_validate({"tls": tls, "port": service.client.base_url.port})

        def is_ready():
            with client_of(server) as client:
                return client.health().is_ready

        wait_until(is_ready, 20)
        with client_of(server) as client:
            assert client.url.startswith("https://")
            client.smoke(client.model(), 10)
            deltas = client.chat(client.model(), [{"role": "user", "content": "hi"}], 3)
            assert "".join(delta.content for delta in deltas) == "AAA"
        with pytest.raises(httpx.TransportError):
            service.client.get("/health")  # plain HTTP
        make_certificate(tmp_path, "localhost", days=99)
        wait_until(is_ready, 10)  # by the new certificate alone
        [taken_up] = [line for line in lines(service) if line["event"] == "certificate taken up anew"]
        assert taken_up["files"] == list(paths)


def test_the_port_stays_open_until_the_last_stream_ends_and_says_stopping():
    with stub_service(core={**ENDLESS, "step_s": 0.02}, settings={"drain_s": 30}) as service:
        service.wait_for("ready")
        with httpx.Client(base_url=service.url, timeout=10) as other, service.streaming(max_tokens=200) as stream:
            service.process.send_signal(signal.SIGTERM)
            wait_until(lambda: other.get("/health").status_code == 503, 5)
            fresh = httpx.get(f"{service.url}/health")  # a new connection
            assert (fresh.status_code, fresh.json()) == (503, {"status": "stopping"})
            assert 'endpoint="/health"' in httpx.get(f"{service.url}/metrics").text
            refused = httpx.post(f"{service.url}/v1/completions", json={"prompt": "hi"})
            assert refused.status_code == 503
            assert int(refused.headers["retry-after"]) >= 1
            assert "shutting down" in refused.json()["error"]["message"]
            assert list(stream)[-1] == "data: [DONE]"
        assert service.process.wait(10) == 0


def test_a_service_without_streams_stops_at_once():
    with stub_service(core=ENDLESS, settings={"drain_s": 30}) as service:
        service.wait_for("ready")
        service.client.get("/health")  # an idle connection
        service.process.send_signal(signal.SIGTERM)
        assert service.process.wait(8) == 0
