"""A kernel that dies on the emulated card: its requests end with the reason, the worker starts again, others go on."""

import time

import httpx
import pytest

from support.machines import START_S, Machine
from support.tiny_models import make_tiny


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    found = Machine(tmp_path_factory.mktemp("machine"))
    make_tiny(found.folder / "model", "qwen3", tokenizer=True)
    found.environ["ANYCHIP_KUNLUN_EMULATE"] = f"memory=256MiB,fault-file={found.folder / 'fault'}"
    yield found
    found.run("down", "--all")


def restarts(machine):
    return httpx.get(f"{machine.url}/server_info", trust_env=False, timeout=START_S).json()["restarts"]


@pytest.mark.slow
def test_a_late_error_ends_its_requests_with_the_reason_and_the_worker_starts_again(machine):
    recipe = machine.write(backend={"name": "kunlun", "emulate": True}, model={"dtype": "bfloat16"})
    assert machine.run("apply", recipe).returncode == 0
    before = machine.complete()
    assert before.status_code == 200
    assert restarts(machine) == 0

    (machine.folder / "fault").touch()
    hit = machine.complete("a request whose kernel dies")
    assert hit.status_code == 500
    text = hit.json()["error"]["message"]
    assert "illegal memory access" in text
    assert "the last op queued was" in text

    deadline_s = time.monotonic() + START_S
    while restarts(machine) == 0 or machine.health() != 200:
        assert time.monotonic() < deadline_s, "the worker did not come back"
        time.sleep(0.2)
    after = machine.complete()
    assert after.status_code == 200
    assert after.json()["choices"][0]["text"] == before.json()["choices"][0]["text"]
    assert restarts(machine) == 1
