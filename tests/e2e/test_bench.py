"""`platform bench` on a real engine with a tiny model: what it measures, and what it leaves behind."""

import json
import signal

import psutil
import pytest

from support.machines import START_S, Machine
from support.tiny_models import make_tiny

WORKLOAD = """
version: 1
name: tiny
prompt: {shared_tokens: 32, own_tokens: {min: 4, max: 8}, texts: {sentences: ["hello there. "], tail: "Well?"}}
output_tokens: 8
requests: {per_stream: 4}
"""
QUICK = ("--repeats", "1", "--concurrency", "2")


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    found = Machine(tmp_path_factory.mktemp("machine"))
    make_tiny(found.folder / "model", "llama", tokenizer=True, max_position_embeddings=256)
    (found.folder / "load.yaml").write_text(WORKLOAD, encoding="utf-8")
    return found


@pytest.mark.slow
@pytest.mark.parametrize("endpoint", [(), ("--generate",)])
def test_a_recipe_is_served_measured_and_taken_down(machine, endpoint):
    load = machine.folder / "load.yaml"
    done = machine.run("bench", machine.write(slo={"ttft_p95": "60s"}), "-w", load, *QUICK, *endpoint, "-o", "json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    (level,) = result["levels"]
    (run,) = level["runs"]
    assert (run["requests"], run["failed"], run["output_tokens"]) == (8, 0, 64)
    assert run["goodput"]["fraction"] == 1.0
    assert run["cache_hit_rate"] > 0.3  # all prompts but the first ones begin with 32 known tokens of 40
    assert run["cached_fraction"] == pytest.approx(run["cache_hit_rate"])
    assert result["peak_rss_bytes"] > 50 * 2**20
    assert result["service"]["backend"]["name"] == "cpu"
    assert len(result["warm_up"]["windows_tok_s"]) >= 3
    assert list(machine.temporary.glob("anychip*")) == []
    assert json.loads(machine.run("status", "-o", "json").stdout)["services"] == []


@pytest.mark.slow
def test_ctrl_c_during_the_load_leaves_nothing(machine):
    load = machine.folder / "load.yaml"
    options = ("--no-warm-up", "--requests", "100000")
    with machine.popen("bench", machine.write(), "-w", load, *QUICK, *options) as command:
        while "at once, run 1" not in (line := command.stderr.readline()):
            assert line, "it ended"
        processes = psutil.Process(command.pid).children(recursive=True)
        assert len(processes) >= 2  # server and worker
        command.send_signal(signal.SIGINT)
        assert command.wait(START_S) == 130
        assert "Traceback" not in command.stderr.read()
    machine.require_clean(processes)
