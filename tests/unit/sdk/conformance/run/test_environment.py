"""Cases run in a process with the variables that a service's worker gets. Knows one backend that needs some."""

from pathlib import Path

import pytest

from anychip_sdk.conformance.run import worker
from anychip_sdk.conformance.run.runner import Options, run
from anychip_sdk.conformance.run.sessions import Chosen, Workers
from anychip_sdk.environment import missing_variables, worker_environment
from support.conformance_runs import ENVIRONMENT, odd_target

ONLY = ("AC-OP-001[silu-float32-ones]", "AC-OP-004[silu-float32]", "AC-MEMORY-003")
needs_proc = pytest.mark.skipif(
    not Path("/proc/self/environ").exists(), reason="what a process started with is in /proc"
)


@pytest.fixture
def launches(monkeypatch):
    """The odd backend's variables of each process that is started."""
    found = []
    popen = worker.subprocess.Popen

    def started(*args, env, **named):
        found.append({name: value for name, value in env.items() if name in ENVIRONMENT})
        return popen(*args, env=env, **named)

    monkeypatch.setattr(worker.subprocess, "Popen", started)
    for name in ENVIRONMENT:
        monkeypatch.delenv(name, raising=False)
    return found


def outcomes(results):
    return {case.outcome for case in results.cases}


@needs_proc
def test_a_process_that_lacks_the_backends_variables_is_started_again_once_a_run(launches, tmp_path):
    results = run(odd_target("by_variables"), Options("serving-core", only=ONLY), tmp_path)
    assert outcomes(results) == {"passed"}
    assert launches == [{}, *[ENVIRONMENT] * (len(launches) - 1)]
    assert len(launches) == 1 + len(list((tmp_path / "logs").iterdir()))


@needs_proc
def test_what_the_user_set_stays(launches, tmp_path, monkeypatch):
    for name in ENVIRONMENT:
        monkeypatch.setenv(name, "0")
    results = run(odd_target("by_variables"), Options("kernel", only=ONLY[:1]), tmp_path)
    assert outcomes(results) == {"failed"}
    assert launches == [dict.fromkeys(ENVIRONMENT, "0")]


def test_a_backend_that_names_none_is_started_once(launches, tmp_path):
    assert outcomes(run(odd_target("right"), Options("kernel", only=ONLY[:1]), tmp_path)) == {"passed"}
    assert launches == [{}]


@needs_proc
def test_a_vendors_own_tests_run_with_them_too(launches, tmp_path):
    chosen = Chosen(odd_target("by_variables"), Options("serving-core"))
    workers = Workers(tmp_path)
    attempts = [workers.for_case(chosen, one).run(one.id) for one in chosen.planned() if one.id in ONLY]
    workers.end()
    assert {attempt.outcome for attempt in attempts} == {"passed"}
    assert launches == [{}, ENVIRONMENT, ENVIRONMENT]  # a process for memory, one for kernels


def test_variables_of_a_process_are_the_users_then_the_backends():
    assert worker_environment({"A": "1", "B": "1"}, {"B": "2", "C": "2"}) == {"A": "1", "B": "2", "C": "2"}
    assert missing_variables({"A": "1", "B": "1"}, {"B": "2"}) == {"A": "1"}
