"""When a plan has a shared expert in slots, and the reasons why not; the router is never held as integers."""

from dataclasses import replace

import pytest

from anychip.models.registry import config_of
from anychip.plan.resolve import resolve
from anychip_sdk.errors import FusionRefused
from support.engines import make_recipe
from support.plans import facts, stub_backend

RAW = {
    "architectures": ["Qwen2MoeForCausalLM"], "vocab_size": 64, "hidden_size": 64, "intermediate_size": 64,
    "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2, "num_experts": 4,
    "num_experts_per_tok": 2, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 64,
}  # fmt: skip
NAMED = {"policies": ["shared_experts"], "on_missing": "ignore"}


def planned(storage_of=lambda name: "F32", fusion=NAMED, quantization="none", **raw):
    config = config_of({**RAW, **raw})
    recipe = make_recipe("/models/m", fusion=fusion, model={"quantization": quantization})
    backend = stub_backend()
    names = [f"model.layers.{layer}.mlp.experts.{e}.{part}_proj.weight"
             for layer in range(2) for e in range(4) for part in ("gate", "up", "down")]  # fmt: skip
    names += [f"model.layers.{layer}.mlp.shared_expert.{part}_proj.weight"
              for layer in range(2) for part in ("gate", "up", "down")]  # fmt: skip
    checkpoint = replace(facts(config), storages={name: storage_of(name) for name in names})
    return resolve(recipe, checkpoint, backend, backend.probe()[0], "named in the recipe")


def decision(plan):
    [one] = [one for one in plan.fusions if one.policy == "shared_experts"]
    return one


def test_named_in_the_recipe_it_is_applied_in_every_layer():
    assert decision(planned()).applied == 2


def test_auto_leaves_it_out_with_the_reason():
    one = decision(planned(fusion={"policies": "auto"}))
    assert (one.applied, one.refused) == (0, True)
    assert "no measurement of the device says that it pays" in one.reason


def test_experts_and_shared_ones_in_other_integers_stay_apart():
    one = decision(planned(lambda name: "Q8_0" if "shared" in name else "Q4_0", quantization="auto"))
    assert one.refused
    assert "the experts are held as int4, groups of 32, as stored, the shared one as int8" in one.reason


def test_a_plain_shared_expert_beside_integers_stays_apart():
    one = decision(planned(lambda name: "BF16" if "shared" in name else "Q8_0", quantization="auto"))
    assert "the shared one as plain" in one.reason


def test_a_refusal_is_an_error_where_the_recipe_says_so():
    with pytest.raises(FusionRefused, match="shared_experts: not applied: the shared expert has 48 channels"):
        planned(fusion={**NAMED, "on_missing": "error"}, shared_expert_intermediate_size=48)


@pytest.mark.parametrize("quantization", ["int8", "int4"])
@pytest.mark.parametrize("fusion", [NAMED, {"policies": []}])
def test_experts_become_integers_and_routers_never_do(quantization, fusion):
    plan = planned(quantization=quantization, fusion=fusion)
    counts = {row.op: row.count for row in plan.ops}
    assert counts[f"moe_experts_{quantization}"] == 2
    assert "moe_experts" not in counts
    routers = [spec for name, spec in plan.weights.items() if ".mlp.gate." in name or "shared_expert_gate" in name]
    assert len(routers) == 4
    assert all(spec.quantized is None for spec in routers)
    stacks = [spec for spec in plan.weights.values() if spec.quantized and len(spec.quantized.shape) == 3]
    assert {spec.quantized.shape[0] for spec in stacks} == {6 if fusion is NAMED else 4}
