"""What a step may be expected to take, by a plan and a device's speeds or by the warm-up."""

from dataclasses import replace

import pytest

from anychip.engine import step_cost
from anychip.engine.pace import Pace
from anychip.engine.step_cost import StepCost, measured_cost, predicted_cost
from anychip.forecast.speeds import Known
from anychip_sdk.errors import IntegrityFailed
from anychip_sdk.speeds import KernelSpeed, Speeds
from support.engines import make_recipe
from support.plans import plan_of, stub_backend, tiny_config

SLOW = KernelSpeed(1e-6, 1e9, 1e10, 1.0, 1e9, 1e9, 1e9, 1e9)


@pytest.fixture(scope="module")
def plan():
    return plan_of(make_recipe("/m"), tiny_config("llama"), stub_backend())


def known_to_be(monkeypatch, speeds):
    monkeypatch.setattr(step_cost, "find_speeds", lambda _subject: Known(speeds, "" if speeds else "never measured"))


def test_a_step_costs_its_decodes_and_each_prompt_token():
    assert StepCost(2.0, 0.5).of(0) == 2
    assert StepCost(2.0, 0.5).of(10) == 7
    assert StepCost(2.0, 0.5).at_least(StepCost(1.0, 3.0)) == StepCost(2.0, 3.0)


def test_what_is_predicted_is_of_the_largest_step(monkeypatch, plan):
    known_to_be(monkeypatch, Speeds("measured", others=SLOW, step_s=0.01, request_s=0.001))
    found = predicted_cost(plan, stub_backend(), None)
    running = plan.scheduler.max_running_requests.value
    assert found.decodes_s > 0.01 + running * 0.001
    assert 0 < found.token_s < found.decodes_s


def test_a_slower_device_is_expected_to_take_longer(monkeypatch, plan):
    known_to_be(monkeypatch, Speeds("measured", others=SLOW, step_s=0.01))
    fast = predicted_cost(plan, stub_backend(), None)
    known_to_be(monkeypatch, Speeds("measured", others=replace(SLOW, call_s=1e-3), step_s=0.01))
    assert predicted_cost(plan, stub_backend(), None).decodes_s > fast.decodes_s


def test_of_a_device_that_was_never_measured_nothing_is_predicted(monkeypatch, plan):
    known_to_be(monkeypatch, None)
    assert predicted_cost(plan, stub_backend(), None) == StepCost(0, 0)


def test_damaged_figures_end_no_load(monkeypatch, plan):
    def damaged(_subject):
        raise IntegrityFailed("the file is damaged")

    monkeypatch.setattr(step_cost, "find_speeds", damaged)
    assert predicted_cost(plan, stub_backend(), None) == StepCost(0, 0)


def test_the_warm_up_is_taken_for_as_many_sequences_as_run_at_once(plan):
    pace = Pace(None, 16)
    pace.observe(1, 0, 0.5)
    pace.observe(0, 32, 0.5 + 32 * 0.25)
    found = measured_cost(plan, pace)
    assert found.token_s == pytest.approx(0.25)
    assert found.decodes_s > 0.5 + plan.scheduler.max_running_requests.value * 0.25
