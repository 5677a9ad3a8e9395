"""The service as a process: engines that die, parents that die, signals with open streams, floods."""

import json
import signal
import socket
import threading
import time

import httpx
import psutil
import pytest

from anychip.server.serve import bind
from anychip_sdk.errors import CheckpointInvalid, PortTaken
from support.processes import stub_service, wait_until

ENDLESS = {"reply": [[65]], "endless": True, "step_s": 0.005}


def last_frame(lines):
    """The last event of a stream, read to its end."""
    frames = [line.removeprefix("data: ") for line in lines]
    return json.loads(frames[-1])


def test_a_worker_killed_while_idle_is_replaced():
    with stub_service(core=ENDLESS) as service:
        worker = service.wait_for("ready").worker()
        worker.kill()
        wait_until(lambda: service.health() != "ready", 5, "503")
        refused = service.complete()
        if refused.status_code != 200:  # it may be back already
            assert refused.status_code == 503
            assert refused.json()["error"]["code"] == "engine_unavailable"
        service.wait_for("ready")
        assert service.complete(max_tokens=2).json()["choices"][0]["text"] == "AA"
        assert service.client.get("/server_info").json()["restarts"] == 1


def test_what_is_served_follows_the_worker_that_took_the_place_of_another(tmp_path):
    models = [
        {"plan": {"fusions": ["mha"]}, "context_length": 100},
        {"plan": {"fusions": []}, "context_length": 50, "warnings": ["fusion mha: refused"]},
    ]
    with stub_service(core={**ENDLESS, "models": models, "loads": str(tmp_path / "loads")}) as service:
        for fusions, context in ((["mha"], 100), ([], 50)):
            service.wait_for("ready")
            info = service.client.get("/server_info").json()
            assert (info["plan"], info["context_length"]) == ({"fusions": fusions}, context)
            assert service.client.get("/v1/models").json()["data"][0]["max_model_len"] == context
            assert f"with a context of {context} tokens" in service.complete(prompt=[1] * 200).text
            service.worker().kill()
            wait_until(lambda: service.health() != "ready", 5, "503")
        assert service.log.read_text().count("fusion mha: refused") == 1


def test_a_worker_killed_while_busy_ends_streams_with_an_error():
    with stub_service(core=ENDLESS) as service:
        service.wait_for("ready")
        with service.streaming() as lines:
            service.worker().kill()
            assert "signal 9" in last_frame(lines)["error"]["message"]
        service.wait_for("ready")
        assert service.complete(max_tokens=1).status_code == 200


def test_a_worker_that_dies_before_the_first_token_is_no_success():
    with stub_service(core={**ENDLESS, "die_at_step": 1}) as service:
        service.wait_for("ready")
        assert service.complete().status_code == 503
        service.wait_for("ready")
        frames = service.complete(stream=True).text.split("\n\n")
        assert "error" in json.loads(frames[-2].removeprefix("data: "))


@pytest.mark.parametrize("moment", ["loading", "idle", "busy"])
def test_a_killed_server_leaves_no_worker_no_port_and_no_file(moment):
    core = {**ENDLESS, "load_s": 60} if moment == "loading" else ENDLESS
    with stub_service(core=core) as service:
        if moment == "loading":
            wait_until(lambda: service.client.get("/health").json().get("progress", {}).get("stage") == "weights")
        else:
            service.wait_for("ready")
        worker = service.worker()
        if moment == "busy":
            with service.streaming() as lines:
                service.process.kill()
                with pytest.raises(httpx.TransportError):
                    list(lines)
        else:
            service.process.kill()
        service.process.wait(5)
        wait_until(lambda: not psutil.pid_exists(worker.pid) or worker.status() == "zombie", 5, "the worker's end")
        assert service.left_files() == []
        port = int(service.url.rpartition(":")[2])
        bind("127.0.0.1", port).close()


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_one_signal_drains_and_streams_end_with_an_error_at_the_limit(sent, code):
    with stub_service(core=ENDLESS, settings={"drain_s": 0.5}) as service:
        worker = service.wait_for("ready").worker()
        with service.streaming() as lines:
            service.process.send_signal(sent)
            started_s = time.monotonic()
            assert "shutting down" in last_frame(lines)["error"]["message"]
            assert 0.3 < time.monotonic() - started_s < 5
        assert service.process.wait(10) == code
        assert not psutil.pid_exists(worker.pid)
        assert service.left_files() == []


def test_short_streams_finish_while_draining():
    with stub_service(core={**ENDLESS, "step_s": 0.02}, settings={"drain_s": 30}) as service:
        service.wait_for("ready")
        with service.streaming(max_tokens=20) as lines:
            service.process.send_signal(signal.SIGTERM)
            assert list(lines)[-1] == "data: [DONE]"
        assert service.process.wait(10) == 0


def test_a_second_signal_stops_at_once():
    with stub_service(core=ENDLESS, settings={"drain_s": 60}) as service:
        worker = service.wait_for("ready").worker()
        with service.streaming() as lines:
            service.process.send_signal(signal.SIGINT)
            wait_until(lambda: "stopping" in service.log.read_text(), 5, "the first signal's effect")
            service.process.send_signal(signal.SIGINT)
            assert "error" in last_frame(lines)
        assert service.process.wait(5) == 130
        assert not psutil.pid_exists(worker.pid)


def test_a_signal_while_loading_ends_the_worker_too():
    with stub_service(core={"load_s": 60}) as service:
        worker = service.worker()
        wait_until(lambda: service.health() == "loading", 10)
        service.process.send_signal(signal.SIGTERM)
        assert service.process.wait(10) == 0
        assert not psutil.pid_exists(worker.pid)


def test_a_signal_while_texts_are_read_ends_the_worker_too():
    with stub_service(core={"load_s": 60.0}, prepare_s=1.0) as service:
        worker = service.worker()
        service.process.send_signal(signal.SIGTERM)
        assert service.process.wait(10) == 0
        assert not psutil.pid_exists(worker.pid) or worker.status() == psutil.STATUS_ZOMBIE


def test_texts_that_cannot_be_read_end_the_worker_and_the_service_with_its_code():
    with stub_service(core={"load_s": 60.0}, prepare_s=0.5, prepare_error="no such tokenizer") as service:
        worker = service.worker()
        assert service.process.wait(10) == CheckpointInvalid("").exit_code
        assert not psutil.pid_exists(worker.pid) or worker.status() == psutil.STATUS_ZOMBIE


def test_the_worker_loads_while_texts_are_read():
    with stub_service(core={"load_s": 0.5}, prepare_s=1.5) as service:
        assert service.worker().is_running()
        service.wait_for("ready", 5.0)


@pytest.mark.parametrize("prepare_s", [0.0, 2.0])
def test_an_engine_that_cannot_load_ends_the_service_with_its_code(prepare_s):
    with stub_service(core={"load_error": "no weights there"}, prepare_s=prepare_s) as service:
        assert service.process.wait(20) == 4
        assert "no weights there" in service.log.read_text()
        assert service.left_files() == []


def test_a_taken_port_is_told_at_once():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(PortTaken, match="in use") as error:
            bind("127.0.0.1", taken.getsockname()[1])
        assert error.value.exit_code == 4


def test_a_client_that_leaves_frees_the_engine():
    with stub_service(core=ENDLESS) as service:
        service.wait_for("ready")
        with service.streaming():
            pass
        with pytest.raises(httpx.ReadTimeout):
            service.client.post("/v1/completions", json={"prompt": "hi", "max_tokens": 3000}, timeout=0.3)

        def freed():
            stats = service.client.get("/server_info").json()["stats"]
            return stats["running"] == 0 and stats["aborted"] == 2

        wait_until(freed, 5, "both aborts")


BAD = [
    {"content": b"{", "headers": {"content-type": "application/json"}},
    {"content": b"x", "headers": {"content-type": "text/plain"}},
    {"content": b"[" * 10_000, "headers": {"content-type": "application/json"}},
    {"json": {"prompt": "hi", "n": 0}},
    {"json": {"prompt": "x" * 5000}},
    {"json": {"prompt": [999_999]}},
    {"json": {"prompt": "hi", "logit_bias": {"AI": 1}}},
]


def test_a_flood_of_bad_requests_does_not_touch_a_good_stream():
    with stub_service(core={**ENDLESS, "step_s": 0.001}) as service:
        service.wait_for("ready")
        found = []

        def good():
            with service.streaming(max_tokens=500) as lines:
                found.extend(lines)

        stream = threading.Thread(target=good)
        stream.start()
        with httpx.Client(base_url=service.url, timeout=30) as client:
            statuses = [client.post("/v1/completions", **BAD[i % len(BAD)]).status_code for i in range(210)]
            huge = client.post("/v1/completions", content=b" " * 11_000_000, headers=BAD[0]["headers"])
        stream.join(30)
        assert set(statuses) == {400, 415}
        assert huge.status_code == 413
        assert found[-1] == "data: [DONE]"
        assert "error" not in "".join(found)
        lines = service.log.read_text().splitlines()
        assert len(lines) <= 213
        assert all(json.loads(line)["event"] == "request" for line in lines)
