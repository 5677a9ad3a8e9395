"""Large bodies are read by another process, with the same result, and whatever becomes of that process."""

import gc
import json
import os
import signal
import threading

import psutil
import pytest

from anychip.recipe.limits import LimitsSection
from anychip.server.json_process import NICENESS
from anychip.server.json_reader import LARGE_BYTES, JsonReader
from anychip.server.json_text import decoded
from anychip_sdk.errors import RequestInvalid
from support.local_client import Asker

LIMITS = LimitsSection()
FILL = {"fill": "x" * LARGE_BYTES}
VALUES = [
    {"a": [1, -1, 2**63, 10**80, 1.5, 1e300, True, None]},
    {"text": 'é你🙂\n\\"\x00', "nested": [[[{"a": {}}]]], "": []},
    {"numbers": list(range(10_000)), "same": ["a"] * 10_000},
]


@pytest.fixture(scope="module")
def reader():
    return JsonReader(LIMITS)


def processes():
    children = psutil.Process().children()
    running = [one for one in children if one.status() != psutil.STATUS_ZOMBIE]  # other tests' may not be waited for
    return [one for one in running if "anychip.server.json_process" in one.cmdline()]


@pytest.mark.parametrize("value", VALUES)
def test_a_large_body_is_the_same_as_a_small_one(reader, value):
    assert reader.read(json.dumps({**value, **FILL}).encode()) == {**value, **FILL}
    assert reader.read(json.dumps(value).encode()) == value


def test_only_large_bodies_need_a_process():
    reader, before = JsonReader(LIMITS), len(processes())
    reader.read(json.dumps("x" * (LARGE_BYTES - 2)).encode())
    assert len(processes()) == before
    reader.read(json.dumps("x" * LARGE_BYTES).encode())
    assert len(processes()) == before + 1
    assert processes()[-1].nice() >= min(19, os.nice(0) + NICENESS)
    del reader
    gc.collect()
    assert len(processes()) == before


BROKEN = [
    b'{"a": "' + b"x" * LARGE_BYTES,
    b"[" * (LARGE_BYTES + 1),
    b'{"a": [' + b"1," * LIMITS.body_values + b"1]}",
    b'{"a": [' + b"9" * 200 + b"," + b"1," * LARGE_BYTES + b"1]}",
    b'{"a": "\xff' + b"x" * LARGE_BYTES + b'"}',
    b'{"a": "\\ud800' + b"x" * LARGE_BYTES + b'"}',
]


@pytest.mark.parametrize("data", BROKEN, ids=range(len(BROKEN)))
def test_a_large_body_is_refused_in_the_same_words(reader, data):
    with pytest.raises(RequestInvalid) as expected:
        decoded(data, LIMITS)
    with pytest.raises(RequestInvalid) as found:
        reader.read(data)
    assert (found.value.message, found.value.code, found.value.status) == (
        expected.value.message,
        expected.value.code,
        expected.value.status,
    )


def test_the_limits_of_the_recipe_hold_in_the_process():
    reader = JsonReader(LimitsSection(body_values=1000, body_keys=7))
    with pytest.raises(RequestInvalid, match=r"the limit is 1000 \(server.limits.body_values\)"):
        reader.read(json.dumps({**FILL, "a": [1] * 1001}).encode())
    with pytest.raises(RequestInvalid, match=r"the limit is 7 \(server.limits.body_keys\)"):
        reader.read(json.dumps({**FILL, "a": [[]] * 8}).encode())


def test_a_process_that_is_killed_costs_its_request_alone():
    asker = Asker(context_length=10**6)
    body = {"prompt": "x" * LARGE_BYTES, "max_tokens": 1}
    assert asker.post("/v1/completions", body).status_code == 200
    for process in processes():
        process.send_signal(signal.SIGKILL)
        process.wait(10)
    reply = asker.post("/v1/completions", body)
    assert reply.status_code == 400
    assert "the body can't be read: its process" in reply.json()["error"]["message"]
    assert asker.post("/v1/completions", body).status_code == 200


def test_several_threads_read_at_once():
    found, reader = [], JsonReader(LIMITS)
    data = json.dumps(FILL).encode()
    threads = [threading.Thread(target=lambda: found.append(reader.read(data) == FILL)) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * 6
