"""What is measured: a URL, a service, or a recipe that is served meanwhile."""

import os
from pathlib import Path

import httpx
import pytest

from anychip.bench.memory import listener, peak_rss_bytes
from anychip.bench.record import Slo
from anychip.bench.target import Wanted, open_target
from anychip.deploy import supervisor
from anychip.deploy.apply import ApplyOptions, apply
from anychip.deploy.services import down
from anychip.deploy.state import Store
from anychip.recipe import load, recipe_digest
from anychip_sdk.errors import NotReady, PreconditionFailed, UsageError
from support.deploying import Recorder, fake_launch, write_recipe
from support.fake_tokens import fake_tokens, token_launch

SLO = "slo: {ttft_p95: 500ms}\n"


def opened(name, store=None, launch=None, **more):
    return open_target(Wanted(name, **more), store or Store(Path("/nowhere")), Recorder(), launch)


def test_a_url_is_taken_as_it_is():
    with opened("http://example.org:1") as target:
        assert (target.kind, target.url, target.pid, target.slo) == ("url", "http://example.org:1", None, Slo())


def test_the_process_behind_a_url_of_this_machine_is_found():
    with fake_tokens() as (url, _), opened(url) as target:
        assert target.pid == os.getpid() == listener(url)


def test_a_recipe_is_served_apart_for_the_time_of_the_benchmark(tmp_path):
    path = write_recipe(tmp_path, port=1, extra=SLO)
    with opened(str(path), launch=token_launch()) as target:
        process = supervisor.identify(target.pid)
        assert httpx.get(f"{target.url}/health", trust_env=False).json() == {"status": "ready"}
        assert not target.url.endswith(":1")
        assert target.slo == Slo(ttft_s=0.5)
        assert target.recipe_digest == recipe_digest(load(path))
    assert not supervisor.is_alive(process)
    assert [found for found in tmp_path.iterdir() if found != path] == []


def test_a_recipes_service_ends_when_the_benchmark_fails(tmp_path):
    context = opened(str(write_recipe(tmp_path)), launch=token_launch())
    process = supervisor.identify(context.__enter__().pid)
    assert not context.__exit__(ZeroDivisionError, ZeroDivisionError(), None)
    assert not supervisor.is_alive(process)


def test_a_recipe_that_does_not_come_up_says_why(tmp_path):
    with pytest.raises(NotReady, match="the chip is on fire"):
        opened(str(write_recipe(tmp_path)), launch=fake_launch("crash")).__enter__()


def test_an_applied_service_is_found_by_its_name_or_as_the_only_one(tmp_path):
    store = Store(tmp_path / "home")
    apply(write_recipe(tmp_path, extra=SLO), ApplyOptions(), store=store, reporter=Recorder(), launch=token_launch())
    try:
        for name in ("svc", None):
            with opened(name, store) as target:
                assert (target.kind, target.name, target.slo) == ("service", "svc", Slo(ttft_s=0.5))
                assert target.pid == store.read("svc").process.pid
                assert peak_rss_bytes(target.pid) > 2**20
        with opened("svc", store) as target:
            assert supervisor.is_alive(store.read("svc").process)
        assert supervisor.is_alive(store.read("svc").process)
    finally:
        down(store, "svc")


def test_options_that_do_not_fit_the_target_are_refused(tmp_path):
    with pytest.raises(UsageError, match="--set is for a recipe; a URL runs already"):
        opened("http://x:1", sets=("a=b",)).__enter__()
    with pytest.raises(UsageError, match="--api-key-env is for a URL"):
        opened(str(write_recipe(tmp_path)), api_key_variable="KEY").__enter__()


def test_a_key_is_read_from_the_variable(monkeypatch):
    monkeypatch.setenv("BENCH_KEY", "secret")
    with opened("http://x:1", api_key_variable="BENCH_KEY") as target:
        assert target.api_key == "secret"
    monkeypatch.delenv("BENCH_KEY")
    with pytest.raises(PreconditionFailed, match="BENCH_KEY is not set"):
        opened("http://x:1", api_key_variable="BENCH_KEY").__enter__()
    monkeypatch.setenv("BENCH_KEY", "clé")
    with pytest.raises(PreconditionFailed, match="--api-key-env: the environment variable BENCH_KEY has a character"):
        opened("http://x:1", api_key_variable="BENCH_KEY").__enter__()


def test_memory_of_a_process_that_is_gone_is_unknown():
    assert peak_rss_bytes(None) is None
    assert peak_rss_bytes(2**22 + 1) is None


def test_the_processes_behind_other_machines_are_not_looked_for():
    assert listener("http://example.org:80") is None
    assert listener("http://127.0.0.1:1") is None
