"""Every shipped recipe is planned exactly as its golden files say. Knows files; knows no decision."""

import pytest

from anychip.plan.explain import as_json
from anychip.recipe import load
from anychip_sdk.errors import ConformanceFailed
from support.plans import GOLDEN, GOLDEN_CASES, QWEN3_8B, ROOT, SHIPPED, config_of, plan_of, stub_backend


@pytest.mark.parametrize("case", GOLDEN_CASES, ids=lambda case: case.recipe)
def test_a_shipped_recipe_is_planned_as_recorded(case):
    """A change here is a change of what users get: look at it, then run tests/golden/plans/regenerate.py."""
    for file, text in case.files().items():
        assert text == file.read_text(encoding="utf-8"), file.name


def test_every_shipped_recipe_has_a_golden_plan():
    assert {file.relative_to(ROOT / "recipes").with_suffix("").as_posix() for file in SHIPPED} == {
        case.recipe for case in GOLDEN_CASES
    }
    assert {file.stem for file in GOLDEN.glob("*.json")} == {case.recipe.replace("/", "-") for case in GOLDEN_CASES}


def test_the_machines_of_a_mixed_room_differ_in_their_backend_alone():
    cuda, kunlun = (load(ROOT / "recipes" / "mixed-room" / f"{name}.yaml", env={}) for name in ("cuda", "kunlun"))
    assert {key for key in cuda.resolved if cuda.resolved[key] != kunlun.resolved[key]} == {"backend"}
    assert (cuda.recipe.backend.name, kunlun.recipe.backend.name) == ("cuda", "kunlun")


def test_planning_is_pure():
    case = GOLDEN_CASES[0]
    assert case.files() == case.files()


@pytest.mark.parametrize("case", GOLDEN_CASES, ids=lambda case: case.recipe)
def test_the_parts_of_a_plan_add_up(case):
    plan = case.plan()
    memory = as_json(plan)["memory"]
    parts = ("weights_bytes", "kv_pool_bytes", "activations_bytes", "workspace_bytes", "headroom_bytes")
    assert sum(memory[part] for part in parts) == memory["capacity_bytes"]
    dtype = plan.model.dtype.value
    assert memory["weights_bytes"] >= sum(one.elements * one.itemsize(dtype) for one in plan.weights.values())
    assert plan.scheduler.kv_tokens == memory["kv_pages"] * plan.scheduler.page_size.value


def test_a_certificate_that_the_recipe_wants_and_nobody_has_is_exit_7():
    wanted = ["backend.requires.conformance=serving-core"]
    recipe = load(ROOT / "recipes" / "qwen3-kunlun.yaml", wanted, env={}).recipe
    backend = stub_backend("kunlun", versions={"driver": "5.0.21.21"})
    with pytest.raises(ConformanceFailed, match="serving-core") as failed:
        plan_of(recipe, config_of(QWEN3_8B), backend)
    assert failed.value.exit_code == 7
