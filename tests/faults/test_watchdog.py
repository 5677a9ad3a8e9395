"""Workers that are stopped, hang or die: what clients, /health, /metrics and the log tell, and what comes after."""

import json
import os
import signal
import time

import httpx
import psutil
import pytest

from support.machines import until
from support.processes import stub_service, wait_until, workers

ENDLESS = {"reply": [[65]], "endless": True, "step_s": 0.005}
QUICK = {"floor_s": 1.0, "factor": 1.0}
PATIENT = {"floor_s": 600.0}
SLACK_S = 10.0  #: for a machine that is busy


def last_frame(lines):
    return json.loads([line.removeprefix("data: ") for line in lines][-1])


def health(service):
    return service.client.get("/health").json()


def logged(service, event):
    lines = [json.loads(line) for line in service.log.read_text().splitlines() if line.startswith("{")]
    return [line for line in lines if line["event"] == event]


def metrics(service):
    page = service.client.get("/metrics").text.splitlines()
    samples = [line.split(" ") for line in page if line.startswith("anychip:") and "{" not in line]
    return {name.removeprefix("anychip:"): float(value) for name, value in samples}


def stop(process):
    process.send_signal(signal.SIGSTOP)
    wait_until(lambda: process.status() == psutil.STATUS_STOPPED, what="the stop")


def has_ended(pid):
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_a_stopped_worker_is_told_within_the_deadline_and_replaced():
    with stub_service(core=ENDLESS, limits=QUICK) as service:
        worker = service.wait_for("ready").worker()
        with service.streaming() as lines:
            stop(worker)
            started_s = time.monotonic()
            error = last_frame(lines)["error"]
            assert time.monotonic() - started_s < QUICK["floor_s"] + SLACK_S
            assert "the engine hangs: its process has been stopped for 1" in error["message"]
        service.wait_for("ready")
        assert has_ended(worker.pid)
        assert service.complete(max_tokens=2).json()["choices"][0]["text"] == "AA"
        info = service.client.get("/server_info").json()
        assert (info["restarts"], info["hangs"]) == (1, 1)
        (told,) = logged(service, "worker hangs")
        assert "its process has been stopped" in told["reason"]
        assert "step" in told["stacks"]
        assert "pulse" in told["stacks"] or told["stacks"].count("Thread 0x") >= 2


@pytest.mark.parametrize("keeps_lock", [False, True], ids=["without-the-lock", "with-the-lock"])
def test_a_step_without_end_is_told_and_every_request_with_it(keeps_lock):
    core = {**ENDLESS, "hang": (3, keeps_lock)}
    with stub_service(core=core, limits=QUICK) as service:
        worker = service.wait_for("ready").worker()
        refused = service.complete(max_tokens=10)
        assert refused.status_code == 503
        assert refused.json()["error"]["code"] == "engine_unavailable"
        assert "a step has been running for 1" in refused.json()["error"]["message"]
        wait_until(lambda: has_ended(worker.pid), what="the worker's end")
        service.wait_for("ready")
        assert service.complete(max_tokens=1).status_code == 200
        (told,) = logged(service, "worker hangs")
        assert "stub_core.py" in told["stacks"]


def test_a_hang_is_only_reported_where_that_is_wanted_and_forgotten_when_the_worker_goes_on():
    with stub_service(core=ENDLESS, limits={**QUICK, "on_hang": "report"}) as service:
        worker = service.wait_for("ready").worker()
        with service.streaming() as lines:
            stop(worker)
            assert "the engine hangs" in last_frame(lines)["error"]["message"]
        told = health(service)
        assert told["status"] == "hung"
        assert told["reason"].startswith("the engine hangs: its process has been stopped for")
        started_s = time.monotonic()
        assert service.complete().status_code == 503
        assert time.monotonic() - started_s < SLACK_S
        assert worker.status() == psutil.STATUS_STOPPED
        worker.send_signal(signal.SIGCONT)
        service.wait_for("ready")
        assert service.worker() == worker
        assert service.complete(max_tokens=2).json()["choices"][0]["text"] == "AA"
        info = service.client.get("/server_info").json()
        assert (info["restarts"], info["hangs"], info["stats"]["running"]) == (0, 1, 0)


def test_an_idle_worker_that_is_stopped_is_told_too():
    with stub_service(core=ENDLESS, limits={**QUICK, "on_hang": "report"}) as service:
        stop(service.wait_for("ready").worker())
        wait_until(lambda: health(service)["status"] == "hung", QUICK["floor_s"] + SLACK_S, "hung")


def test_a_load_that_hangs_ends_the_service_with_the_reason():
    limits = {**QUICK, "load_s": 1.0}
    with stub_service(core={"load_s": 600}, limits=limits) as service:
        worker = service.worker()
        assert service.process.wait(60) == 5
        assert has_ended(worker.pid)
        (told,) = logged(service, "worker ended")
        assert "its load has made no progress for 1.0 s, at weights 2/2" in told["reason"]


def test_a_worker_that_dies_again_and_again_is_given_up():
    with stub_service(core=ENDLESS, limits={**PATIENT, "max_restarts": 1}) as service:
        service.wait_for("ready").worker().kill()
        wait_until(lambda: service.health() != "ready", what="the death")
        service.wait_for("ready").worker().kill()
        assert service.process.wait(60) == 1
        (told,) = logged(service, "there is no engine any more")
        assert "ended 2 times without a healthy minute between" in told["reason"]
        assert "signal 9" in told["reason"]


def test_a_worker_that_crashes_says_where():
    with stub_service(core=ENDLESS, limits=PATIENT) as service:
        service.wait_for("ready").worker().send_signal(signal.SIGSEGV)
        (told,) = wait_until(lambda: logged(service, "worker ended"), what="the death")
        assert told["exit"] == "signal 11"
        assert "Fatal Python error: Segmentation fault" in told["stacks"]


@pytest.mark.parametrize("ending", ["killed", "hung", "stopped"])
def test_what_a_worker_has_started_ends_with_it(ending, tmp_path):
    pid_file = tmp_path / "child"
    with stub_service(core={**ENDLESS, "child": str(pid_file)}, limits=QUICK) as service:
        worker = service.wait_for("ready").worker()
        child = int(pid_file.read_text())
        assert not has_ended(child)
        if ending == "killed":
            worker.kill()
        elif ending == "hung":
            stop(worker)
        else:
            service.process.send_signal(signal.SIGTERM)
        wait_until(lambda: has_ended(child), 60, "the child's end")


def test_a_scrape_waits_for_no_worker_and_says_how_old_its_numbers_are():
    with stub_service(core=ENDLESS, limits=PATIENT) as service:
        worker = service.wait_for("ready").worker()
        with service.streaming():
            wait_until(lambda: metrics(service)["num_running_reqs"] == 1, what="a request in the metrics")
            stop(worker)
            started_s = time.monotonic()
            before = metrics(service)
            assert time.monotonic() - started_s < 1
            assert before["num_running_reqs"] == 1
            wait_until(lambda: metrics(service)["engine_stats_age_seconds"] > 1.5, what="age")
            worker.send_signal(signal.SIGCONT)
            wait_until(lambda: metrics(service)["engine_stats_age_seconds"] < 1.5, what="new numbers")


def test_metrics_and_progress_of_a_worker_that_died_go_with_it(tmp_path):
    core = {**ENDLESS, "reload_s": 3.0, "loads": str(tmp_path / "loads")}
    with stub_service(core=core, limits=PATIENT) as service:
        worker = service.wait_for("ready").worker()
        with service.streaming():
            wait_until(lambda: metrics(service)["num_running_reqs"] == 1, what="a request in the metrics")
            steps = metrics(service)["engine_steps"]
            worker.kill()
        wait_until(lambda: health(service)["status"] != "ready", what="the death")
        dead = metrics(service)
        assert (dead["num_running_reqs"], dead["num_queue_reqs"], dead["token_usage"]) == (0, 0, 0)
        assert (dead["engine_ready"], dead["engine_restarts"]) == (0, 1)
        assert not {"engine_pages_free", "kv_available_tokens", "engine_stats_age_seconds"} & dead.keys()
        assert dead["engine_steps"] >= steps > 0
        told = wait_until(lambda: (now := health(service)) and now["status"] == "restarting" and now, what="a restart")
        assert told["progress"]["stage"] == "starting"
        assert told["reason"] == "the engine's process ended with signal 9"
        service.wait_for("ready")
        assert service.client.get("/health").json() == {"status": "ready"}
        wait_until(lambda: "engine_stats_age_seconds" in metrics(service), what="new numbers")
        assert metrics(service)["engine_steps"] >= steps


def test_a_hang_of_a_real_engine_is_told_by_status_and_by_health(machine):
    limits = {"floor": "2s", "on_hang": "report"}
    applied = machine.run("apply", machine.write(server={"watchdog": limits}))
    assert applied.returncode == 0, applied.stderr
    (worker,) = workers(machine.server())
    stop(worker)
    until(lambda: machine.health() == 503, 2 + SLACK_S)
    status = machine.status()
    assert status["condition"] == "hung"
    assert "its process has been stopped for" in status["detail"]
    page = httpx.get(f"{machine.url}/metrics", trust_env=False).text
    assert "anychip:engine_hangs 1.0" in page
    worker.send_signal(signal.SIGCONT)
    until(lambda: machine.health() == 200, SLACK_S)
    assert machine.complete().status_code == 200
    assert machine.status()["condition"] == "running"


def test_a_server_that_is_stopped_is_told_by_status(machine):
    machine.run("apply", machine.write())
    server = machine.server()
    os.kill(server.pid, signal.SIGSTOP)
    try:
        status = machine.status()
        assert status["condition"] == "hung"
        assert f"its process {server.pid} is stopped" in status["detail"]
    finally:
        os.kill(server.pid, signal.SIGCONT)
    until(lambda: machine.health() == 200, SLACK_S)
    assert machine.status()["condition"] == "running"
