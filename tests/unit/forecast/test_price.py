"""What a plan says of its costs. Knows plans; measures nothing."""

import json
from dataclasses import replace

import pytest

from anychip.forecast.costs import StepShape, costs_of
from anychip.forecast.explain_costs import costs_json, costs_text
from anychip.forecast.price import price
from anychip.forecast.speeds import Known
from anychip.plan.explain import as_json, as_text
from anychip.recipe.schema import Recipe
from anychip_sdk.speeds import KernelSpeed, Speeds
from support.plans import facts, plan_of, stub_backend, tiny_config

RATES = KernelSpeed(1e-6, 1e11, 1e12, 0.5, 1e11, 1e10, 1e12, 1e11)
SHEET = Speeds("a data sheet", others=RATES, step_s=1e-4, request_s=1e-6)
CONFIG = tiny_config(num_hidden_layers=7, max_position_embeddings=8192)


def recipe_of(policies):
    recipe = {
        "version": 1,
        "name": "m",
        "model": {"source": "./m", "context_length": 8192},
        "backend": {"name": "stub"},
        "fusion": {"policies": policies},
    }
    return Recipe.model_validate(recipe)


def planned(policies="auto"):
    return plan_of(recipe_of(policies), CONFIG, stub_backend())


def priced(known=Known(SHEET), policies="auto"):
    plan = planned(policies)
    return plan, price(recipe_of(policies), plan, facts(CONFIG), stub_backend(), known)


def test_costs_without_fusions_are_those_of_the_whole_model_planned_without_them():
    _, found = priced()
    assert found.unfused == costs_of(planned([]))
    for policy, costs in found.without.items():
        others = [one for one in ("mha", "ffn", "add_rms_norm", "qkv_proj", "gate_up_proj", "qk_norm_rope", "silu_mul")]
        assert costs == costs_of(planned([one for one in others if one != policy])), policy


def test_only_applied_fusions_have_a_saving():
    _, found = priced(policies=["mha"])
    assert set(found.without) == {"mha"}
    assert found.without["mha"] == found.unfused
    _, found = priced(policies=[])
    assert (found.without, found.unfused) == ({}, None)


def test_the_json_is_enough_to_predict_any_step():
    """By the formula that it states, from its numbers alone."""
    plan, found = priced()
    costs = json.loads(json.dumps(as_json(plan, costs_json(plan, found))))["costs"]
    step = StepShape(5, 777)
    total = costs["step_s"] + step.decodes * costs["request_s"]
    for kernel in costs["kernels"]:
        speed = kernel["speed"]
        reading = kernel["weight_bytes"] / speed["weight_bytes_per_s"]
        multiplying = 2 * kernel["parameters"] * step.decodes / speed["flops_per_s"]
        total += kernel["calls"] * speed["call_s"]
        total += max(reading, multiplying) + speed["exposed"] * min(reading, multiplying)
        total += kernel["kv_bytes_per_token"] * step.decodes * step.context / speed["kv_bytes_per_s"]
        total += kernel["scores_per_token"] * step.decodes * step.context / speed["scores_per_s"]
        total += kernel["moved_bytes_per_row"] * step.decodes / speed["moved_bytes_per_s"]
    assert total == pytest.approx(found.costs.seconds(SHEET, step).total)


def test_predictions_cover_requests_and_contexts_that_the_plan_allows():
    plan, found = priced()
    costs = as_json(plan, costs_json(plan, found))["costs"]
    assert {(one["decodes"], one["context"]) for one in costs["decodes"]} == {
        (count, context) for count in (1, 8, 32) for context in (256, 1024, 4096)
    }
    assert [one["start"] for one in costs["prompts"]] == [0, 4096]
    saved = {one["policy"]: one["saved"] for one in costs["fusions"]}
    assert set(saved) == {"mha", "ffn", "add_rms_norm", None}
    assert all(one["seconds"] > 0 for one in saved[None])


def test_times_while_memory_is_faster_are_told_beside_the_others():
    rates = replace(RATES, weight_bytes_per_s=2e11)
    slow, fast = replace(SHEET, memory_bytes_per_s=2e10), replace(SHEET, others=rates, memory_bytes_per_s=4e10)
    few = Speeds("a kernel", {"add": RATES}, memory_bytes_per_s=8e10)
    plan, found = priced(Known(slow, faster=(fast, few)))
    costs = as_json(plan, costs_json(plan, found))["costs"]
    [faster] = costs["faster"]
    assert faster["memory_bytes_per_s"] == 4e10
    assert faster["decodes"][0]["seconds"] == found.costs.seconds(fast, StepShape(1, 256)).total
    assert faster["decodes"][0]["seconds"] < costs["decodes"][0]["seconds"]
    text = as_text(plan, costs_text(plan, found))
    assert "a data sheet, while memory copied 20 GB/s" in text
    rates = [1 / found.costs.seconds(speeds, StepShape(1, 256)).total for speeds in (slow, fast)]
    assert f"{rates[0]:>8.1f}, {rates[1]:>8.1f} tok/s" in text


def test_without_speeds_bytes_and_flops_are_told_and_the_reason():
    plan, found = priced(Known(None, "nobody measured it"))
    costs = as_json(plan, costs_json(plan, found))["costs"]
    assert costs["speeds"] == {"source": None, "memory_bytes_per_s": None, "reason": "nobody measured it"}
    assert costs["decodes"] == costs["prompts"] == []
    assert costs["kv_bytes_per_token"] == plan.memory.kv_bytes_per_token
    assert "none: nobody measured it" in as_text(plan, costs_text(plan, found))


def test_a_kernel_without_figures_leaves_out_all_times_and_is_named():
    plan, found = priced(Known(Speeds("measured", {"add stub/add_stub float32": KernelSpeed()})))
    assert as_json(plan, costs_json(plan, found))["costs"]["decodes"] == []
    assert "ffn stub/ffn_stub" in as_json(plan, costs_json(plan, found))["costs"]["speeds"]["reason"]


def test_the_text_tells_times_and_what_fusions_save():
    plan, found = priced()
    text = as_text(plan, costs_text(plan, found))
    assert "speeds       a data sheet" in text
    assert "without mha" in text
    assert "no fusion" in text
    assert "at context 4096" in text
