"""A plan shows every field of its scheduler's section, in JSON and in words."""

from dataclasses import dataclass, replace

from anychip.plan.explain import as_json, as_text
from anychip.plan.plan import Decision, SchedulerPlan
from support.engines import make_recipe
from support.plans import plan_of, stub_backend, tiny_config


@dataclass(frozen=True)
class Wider(SchedulerPlan):
    """With keys that no line is written for."""

    ageing_steps: Decision[int]
    eager: bool
    reserve: float | None


def test_a_new_key_of_the_scheduler_is_shown():
    plan = plan_of(make_recipe("/models/m", scheduler={"prefix_cache": False}), tiny_config(), stub_backend())
    more = {"ageing_steps": Decision(1, "auto: few"), "eager": True, "reserve": None}
    wider = replace(plan, scheduler=Wider(**vars(plan.scheduler), **more))
    shown = as_json(wider)["scheduler"]
    assert shown == {
        **as_json(plan)["scheduler"],
        "ageing_steps": {"value": 1, "reason": "auto: few"},
        "eager": True,
        "reserve": None,
    }
    assert shown["kv_dtype"] == "float32"
    [line] = [line for line in as_text(wider).splitlines() if line.strip().startswith("policy")]
    words = line.split("  ")[-1].strip().replace("overlap off (auto: the device computes while the host waits), ", "")
    assert words == "lpm, prefix cache off, ageing steps 1 (auto: few), eager on, reserve none"
