"""Numbers of a recipe at their ends: refused with a reason before anything runs, or a service that answers."""

import pytest
import torch
from pydantic import ValidationError

from anychip.engine.core import build_core
from anychip_sdk.errors import AnychipError
from support.engines import greedy, make_recipe, quiet, run
from support.tiny_models import make_tiny

HUGE = 10**30
WORKS = [
    ("memory", "page_size", 1),
    ("memory", "page_size", 4096),
    ("memory", "kv_tokens", HUGE),
    ("scheduler", "chunked_prefill_size", 1),
    ("scheduler", "max_running_requests", 1),
    ("server", "max_queued_requests", 0),
    ("server", "max_queued_requests", HUGE),
    ("slo", "tpot_p95", "0.001ms"),
]
REFUSED = [
    ("memory", "page_size", HUGE),
    ("memory", "kv_tokens", 1),
    ("scheduler", "chunked_prefill_size", HUGE),
    ("scheduler", "max_running_requests", HUGE),
    ("server", "max_queued_requests", -1),
    ("model", "context_length", 1),
    ("model", "context_length", HUGE),
    ("backend", "threads", HUGE),
]


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return make_tiny(tmp_path_factory.mktemp("tiny") / "llama", "llama", num_hidden_layers=1)


@pytest.mark.parametrize(("section", "key", "value"), WORKS)
def test_an_extreme_value_that_is_accepted_answers_requests(tiny, section, key, value):
    core = build_core(make_recipe(tiny, fusion={"verify": False}, **{section: {key: value}}), quiet)
    try:
        assert len(run(core, greedy([[5, 6, 7]], 2))["r0", 0]) == 2
    finally:
        core.close()


@pytest.mark.parametrize(("section", "key", "value"), REFUSED)
def test_an_extreme_value_that_cannot_work_is_refused_before_anything_runs(tiny, section, key, value):
    with pytest.raises((ValidationError, AnychipError)):
        build_core(make_recipe(tiny, fusion={"verify": False}, **{section: {key: value}}), quiet)
