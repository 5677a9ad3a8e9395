"""Steps as work, and work as seconds. Knows formulas."""

import pytest

from anychip.forecast.costs import Costs, StepShape, sum_of, work_in
from anychip.forecast.work import KernelUse, OpWork, Routed
from anychip_sdk.speeds import KernelSpeed, Speeds, Work

ALL = KernelUse("mha", "mha acme/mha int8", is_sampled=False, window=None)
HEAD = KernelUse("lm_head", "lm_head acme/head int8", is_sampled=True, window=None)
ASKED = OpWork(2, 100, 50, 10, 1, 3, 7)


@pytest.mark.parametrize("window", [None, 1, 3, 5, 100])
@pytest.mark.parametrize(("start", "prompt"), [(0, 1), (0, 7), (4, 6), (20, 3)])
def test_pairs_are_the_keys_that_each_query_sees(start, prompt, window):
    seen = [position + 1 if window is None else min(position + 1, window) for position in range(start, start + prompt)]
    assert StepShape(0, prompt=prompt, start=start).pairs(window) == sum(seen)


def test_decodes_read_their_contexts_within_the_window():
    assert StepShape(3, 100).tokens_read(None) == 300
    assert StepShape(3, 100).tokens_read(40) == 120


def test_a_step_asks_once_for_weights_and_for_each_row_for_products():
    assert work_in(ALL, ASKED, StepShape(4, 8)) == Work(2, 100, 400, 320, 32, 0, 28)
    assert work_in(ALL, ASKED, StepShape(0, prompt=3)) == Work(2, 100, 300, 0, 0, 18, 21)
    assert work_in(HEAD, OpWork(1, 100, 50), StepShape(0, prompt=300)) == Work(1, 100, 100)


def test_of_a_mixture_a_step_reads_the_experts_that_its_rows_reach():
    use = KernelUse("moe_experts", "moe_experts acme/mix int8", False, None, Routed(experts=8, columns=2))
    work = OpWork(1, weight_bytes=8000, parameters=200)
    assert work_in(use, work, StepShape(1, 8)) == Work(1, 2000, 400)
    assert work_in(use, work, StepShape(4, 8)) == Work(1, 5469, 1600)
    assert work_in(use, work, StepShape(0, prompt=500)).weight_bytes == 8000


def test_parts_of_a_step_add_up():
    speeds = Speeds("sheet", others=KernelSpeed(1.0, 10.0, 100.0, 1.0, 5.0, 16.0, 9.0, 7.0), step_s=0.5, request_s=0.25)
    costs = Costs({ALL: ASKED})
    seconds = costs.seconds(speeds, StepShape(4, 8))
    assert seconds == (10.0 + 4.0, 64.0 + 2.0, 2.0 + 4.0, 1.5)
    assert seconds.total == sum(seconds)


def test_kernels_without_figures_are_named():
    speeds = Speeds("measured", {ALL.kernel: KernelSpeed()})
    assert Costs({ALL: ASKED, HEAD: ASKED}).unknown(speeds) == (HEAD.kernel,)


def test_several_uses_of_a_kernel_are_one_work():
    assert sum_of([Work(1, 2, 3), Work(4, 5, 6, 7, 8, 9, 10)]) == Work(5, 7, 9, 7, 8, 9, 10)
