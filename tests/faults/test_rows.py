"""A real service of a damaged model: a request that meets the damage fails alone, and the worker lives on."""

import concurrent.futures
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from support.deploying import free_port
from support.processes import child_env, served
from support.tiny_models import make_tiny

BAD = 511  #: its embedding is NaN
ROOT = Path(__file__).parents[2]
START_S = 120


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    folder = tmp_path_factory.mktemp("damaged")
    model = make_tiny(folder / "model", "qwen2", tokenizer=True)
    weights = load_file(model / "model.safetensors")
    weights["model.embed_tokens.weight"][BAD] = torch.nan
    save_file(weights, model / "model.safetensors", metadata={"format": "pt"})
    port = free_port()
    recipe = {
        "version": 1,
        "name": "damaged",
        "model": {"source": str(model), "dtype": "float32", "context_length": 256},
        "backend": {"name": "cpu", "threads": 1},
        "memory": {"kv_tokens": 4096},
        "server": {"port": port, "served_name": "tiny"},
    }
    with served(folder, recipe, START_S) as service:
        yield service


def text_of(service, number, max_tokens=120):
    fields = {"temperature": 0.8, "seed": number, "max_tokens": max_tokens, "ignore_eos": True}
    reply = service.complete(prompt=[5 + number, 9, 20], logit_bias={str(BAD): -100}, **fields)
    assert reply.status_code == 200
    return reply.json()["choices"][0]["text"]


@pytest.mark.parametrize("temperature", [0, 1])
def test_a_request_with_non_finite_logits_fails_with_the_reason_and_four_neighbours_equal_their_references(
    service, temperature
):
    alone = [text_of(service, number) for number in range(4)]
    worker = service.worker().pid
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        together = [pool.submit(text_of, service, number) for number in range(4)]
        for _ in range(4):  # more often than a worker survives steps that fail
            fields = {"prompt": [67, BAD, 73], "temperature": temperature, "max_tokens": 8}
            reply = service.complete(**fields)
            assert reply.status_code == 500
            assert "non-finite logits for output token 0, behind token id 73 at position 2" in reply.text
            frames = [line for line in service.complete(**fields, stream=True).text.split("\n\n") if line]
            assert "non-finite logits" in json.loads(frames[-1].removeprefix("data: "))["error"]["message"]
        assert [one.result() for one in together] == alone
    assert service.worker().pid == worker
    stats = service.client.get("/server_info").json()["stats"]
    assert stats["pages_free"] + stats["pages_evictable"] == stats["pages_total"]
    assert service.health() == "ready"


def test_a_soak_mixes_no_outputs_loses_no_page_and_leaves_memory_as_it_is():
    """A short one; `benchmarks/soak.py` runs the same for as long as is wished."""
    command = [sys.executable, str(ROOT / "benchmarks" / "soak.py"), "--requests", "4000"]
    ended = subprocess.run(command, env=child_env(), capture_output=True, text=True, timeout=280, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
