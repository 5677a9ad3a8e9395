"""What a plan decides, why, and what it refuses. Knows stub backends; opens no device and no checkpoint."""

import json
from dataclasses import replace

import pytest
import torch

from anychip.plan.explain import as_json, as_text
from anychip.plan.make import make_plan
from anychip.plan.resolve import resolve
from anychip.recipe import load
from anychip.text.thinking import TemplateThinking
from anychip_sdk import ops
from anychip_sdk.errors import (
    CheckpointInvalid,
    DeviceAbsent,
    FusionRefused,
    KernelMissing,
    MemoryInsufficient,
    PreconditionFailed,
    RecipeInvalid,
)
from anychip_sdk.fusion import POLICIES, Fusion
from anychip_sdk.ops import CATALOGUE
from support.engines import make_recipe
from support.plans import GIB, ROOT, facts, plan_of, references, stub_backend, tiny_config
from support.tiny_models import make_tiny

MODEL = "/models/m"


def planned(config=None, *, backend=None, facts=None, **sections):
    return plan_of(make_recipe(MODEL, **sections), config or tiny_config(), backend or stub_backend(), **facts or {})


def refusal(kind, **arguments):
    with pytest.raises(kind) as failed:
        planned(**arguments)
    return failed.value


# --- versions ---


@pytest.mark.parametrize(
    ("requires", "message"),
    [
        ({"driver": ">=6.0"}, "backend.requires.driver is '>=6.0'; 5.1.0 is there"),
        ({"plugin": "~=0.2"}, "backend.requires.plugin is '~=0.2'; 0.1.0 is there"),
    ],
)
def test_a_version_that_does_not_fit_is_exit_4_with_both_versions(requires, message):
    with pytest.raises(PreconditionFailed) as failed:
        plan_of(make_recipe(MODEL, backend={"requires": requires}), tiny_config(), stub_backend())
    assert failed.value.message == f"backend 'stub' (anychip-stub): {message}"
    assert failed.value.exit_code == 4


def test_versions_that_do_not_fit_are_all_told():
    recipe = make_recipe(MODEL, backend={"requires": {"driver": ">=6.0", "plugin": "~=0.2"}})
    with pytest.raises(PreconditionFailed) as failed:
        plan_of(recipe, tiny_config(), stub_backend(versions={}))
    assert failed.value.message == (
        "backend 'stub' (anychip-stub): backend.requires.plugin is '~=0.2'; 0.1.0 is there; "
        "backend.requires.driver is '>=6.0'; device stub:0 reports no such version"
    )


@pytest.mark.parametrize("specifier", [">=5.0.21", "~=5.1", "==5.1.0", "<6"])
def test_a_version_that_fits_is_no_matter(specifier):
    recipe = make_recipe(MODEL, backend={"requires": {"driver": specifier, "plugin": "~=0.1"}})
    assert plan_of(recipe, tiny_config(), stub_backend()).backend.version == "0.1.0"


def test_a_driver_version_that_is_none_does_not_fit():
    recipe = make_recipe(MODEL, backend={"requires": {"driver": ">=5"}})
    with pytest.raises(PreconditionFailed, match="unknown-build is there"):
        plan_of(recipe, tiny_config(), stub_backend(versions={"driver": "unknown-build"}))


# --- ops ---


def test_an_override_of_an_unknown_op_is_exit_3_and_all_mistakes_are_told():
    overrides = [
        {"op": "lineer", "ban": ["stub"]},
        {"op": "linear", "provider": "nobody"},
        {"op": "rope", "dtype": "float23", "ban": ["stub"]},
    ]
    error = refusal(RecipeInvalid, ops={"overrides": overrides})
    assert error.exit_code == 3
    first, second, third = error.problems
    assert first.startswith("ops.overrides[0].op: there is no op 'lineer' in the catalogue (add, ")
    assert second == "ops.overrides[1].provider: 'nobody' is not one of reference, stub"
    assert third == "ops.overrides[2].dtype: 'float23' is no dtype; expected e.g. bfloat16"


def test_a_banned_provider_leaves_the_reference_and_a_warning():
    plan = planned(ops={"overrides": [{"op": "linear", "ban": ["stub"]}]}, fusion={"policies": []})
    [row] = [row for row in plan.ops if row.op == "linear"]
    assert (row.provider, row.is_fallback, row.count) == ("reference", True, 21)
    assert row.rejected[0].reason == "banned by the recipe's ops.overrides"
    assert plan.warnings == ("1 ops run on the reference: linear (see platform ops)",)


def test_an_op_can_be_computed_in_another_dtype():
    plan = planned(model={"dtype": "bfloat16"}, ops={"overrides": [{"op": "rms_norm", "compute_dtype": "float32"}]})
    assert {row.op: row.dtype for row in plan.ops}["rms_norm"] == torch.float32
    assert {row.op: row.dtype for row in plan.ops}["mha"] == torch.bfloat16


def test_a_forbidden_fallback_names_every_op_that_needs_it():
    lacking = stub_backend(kernels=references("mha", "ffn", "rope", "kv_write", "silu", "silu_mul"))
    error = refusal(KernelMissing, backend=lacking, ops={"fallback": "forbid"})
    assert [line.split()[1] for line in error.message.splitlines()] == ["rope", "kv_write", "silu"]
    assert error.exit_code == 4


def test_a_forbidden_fallback_counts_for_sampling_too():
    lacking = stub_backend(kernels=references("sample", "argmax"))
    error = refusal(KernelMissing, backend=lacking, ops={"fallback": "forbid"})
    assert [line.split()[1] for line in error.message.splitlines()] == ["argmax", "sample"]


def test_a_backend_without_kernels_runs_on_the_references():
    plan = planned(backend=stub_backend(kernels={}))
    assert all(row.is_fallback for row in plan.ops)
    assert plan.warnings[0].startswith(f"{len(plan.ops)} ops run on the reference: embedding, rms_norm, linear")
    assert planned(backend=stub_backend(kernels={}), ops={"fallback": "allow"}).warnings == ()


def test_every_op_of_a_plan_is_in_the_catalogue_and_counted():
    plan = planned(fusion={"policies": []})
    assert {row.op for row in plan.ops} <= set(CATALOGUE)
    assert {row.op: row.count for row in plan.ops}["paged_attention"] == 3


# --- fusions ---


def test_a_named_fusion_that_does_not_apply_is_an_error_a_warning_or_nothing():
    lacking = stub_backend(kernels=references("mha", "ffn"))

    def plan(on_missing):
        return planned(backend=lacking, fusion={"policies": ["mha", "ffn", "silu_mul"], "on_missing": on_missing})

    with pytest.raises(FusionRefused) as failed:
        plan("error")
    texts = [f"fusion {policy}: not applied: the backend has no kernel for {policy}" for policy in ("mha", "ffn")]
    assert failed.value.message.splitlines() == texts
    assert failed.value.exit_code == 4
    assert plan("warn").warnings == tuple(texts)
    assert plan("ignore").warnings == ()


def own_gate(gate, up):
    return ops.mul(ops.silu(gate), up)


def own_silu_mul(gate, up):
    return ops.silu_mul(gate, up)


OWN = Fusion("own_gate", "own_gate", own_gate, own_silu_mul, ("silu_mul",))


def test_a_policy_of_the_backends_own_is_planned_where_it_is_named_and_where_all_are_wanted():
    backend = stub_backend(fusions=[OWN])
    named = planned(backend=backend, fusion={"policies": ["own_gate", "qkv_proj"], "on_missing": "error"})
    assert [(one.policy, one.applied) for one in named.fusions] == [("qkv_proj", 3), ("own_gate", 3)]
    assert [one.policy for one in planned(backend=backend).fusions] == [*POLICIES, "own_gate"]
    other = planned(backend=backend, fusion={"policies": ["qkv_proj"]})
    assert [one.policy for one in other.fusions] == ["qkv_proj"]


def test_unknown_policies_are_exit_3_and_each_names_the_nearest_known_one():
    error = refusal(
        RecipeInvalid, backend=stub_backend(fusions=[OWN]), fusion={"policies": ["own_gaet", "mha", "fnn", "zip"]}
    )
    assert error.exit_code == 3
    first, second, third = error.problems
    assert first.startswith(
        "fusion.policies[0]: 'own_gaet' is neither built in nor of backend 'stub', expected one of mha, "
    )
    assert first.endswith(", silu_mul, own_gate. Did you mean own_gate?")
    assert second.endswith(". Did you mean ffn?")
    assert third.endswith(", own_gate.")


def test_a_policy_of_another_backend_is_unknown_to_this_one():
    error = refusal(RecipeInvalid, fusion={"policies": ["own_gate"]})
    assert error.problems[0].startswith("fusion.policies[0]: 'own_gate' is neither built in")


def test_auto_never_warns_of_fusions():
    plan = planned(backend=stub_backend(kernels=references("mha", "ffn")), fusion={"on_missing": "error"})
    assert plan.warnings == ()
    assert not {one.policy: one.refused for one in plan.fusions}["qkv_proj"]


# --- model ---


def test_a_context_beyond_the_model_is_refused_with_both_numbers():
    error = refusal(PreconditionFailed, model={"context_length": 4096})
    assert error.message == "model.context_length is 4096; the model was made for 512 positions"
    assert error.hint == "set model.context_length to 512 or less"


def test_context_is_the_model_s_own_unless_said():
    assert planned().model.context_length.value == 512
    assert planned(model={"context_length": 128}).model.context_length.reason == "model.context_length"


def test_a_dtype_that_the_device_lacks_is_refused_with_what_it_has():
    error = refusal(
        PreconditionFailed, backend=stub_backend(dtypes=[torch.float16, torch.float32]), model={"dtype": "bfloat16"}
    )
    assert error.message == "model.dtype is bfloat16; device stub:0 (Stub One) has float16, float32"


@pytest.mark.parametrize(
    ("stored", "dtype", "reason"),
    [
        ("float16", torch.float16, "the checkpoint's own"),
        ("bfloat16", torch.float16, "the device's first choice; the checkpoint has bfloat16, which the device lacks"),
        (None, torch.float16, "the device's first choice; the checkpoint names none"),
    ],
)
def test_dtype_auto_takes_the_checkpoint_s_if_the_device_has_it(stored, dtype, reason):
    backend = stub_backend(dtypes=[torch.float16, torch.float32])
    config = tiny_config() if stored is None else tiny_config(torch_dtype=stored)
    decision = planned(config, backend=backend, model={"dtype": "auto"}).model.dtype
    assert (decision.value, decision.reason) == (dtype, reason)


def test_thinking_is_what_recipe_and_template_decide():
    error = refusal(PreconditionFailed, facts={"thinking": TemplateThinking("always")}, model={"thinking": "off"})
    assert "begins every reply with <think>" in error.message
    assert planned(model={"thinking": "on"}).model.thinking.value == "on"
    assert planned(facts={"thinking": TemplateThinking()}, model={"thinking": "auto"}).model.thinking.value == "off"


def test_the_served_name_is_the_source_s_last_part_unless_said():
    assert planned().model.served_name == "m"
    assert planned(server={"served_name": "qwen"}).model.served_name == "qwen"


# --- memory and scheduler ---


def test_max_running_is_what_the_pool_holds_of_expected_requests():
    plan = planned(scheduler={"max_running_requests": "auto"})
    assert plan.scheduler.max_running_requests.value == 4096 // 512
    assert "4096 pool tokens / 512 expected" in plan.scheduler.max_running_requests.reason


def test_a_pool_smaller_than_the_context_is_a_warning():
    [warning] = planned(memory={"kv_tokens": 256}).warnings
    assert warning == "the KV pool holds 256 tokens, less than the context of 512: longer requests are refused"


@pytest.mark.parametrize(("wanted", "recipe", "size"), [(None, {}, 16), (128, {}, 128), (128, {"page_size": 64}, 64)])
def test_the_page_is_the_recipes_else_the_devices_else_the_platforms(wanted, recipe, size):
    plan = planned(memory={"kv_tokens": 512, **recipe}, backend=stub_backend(page_size=wanted))
    assert plan.scheduler.page_size.value == size


@pytest.mark.parametrize(
    ("measured", "scheduler", "chunk"), [(None, {}, 2048), (300, {}, 300), (300, {"chunked_prefill_size": 64}, 64)]
)
def test_the_chunk_is_the_recipes_else_the_devices_else_the_platforms(measured, scheduler, chunk):
    backend = stub_backend()
    device = backend.probe()[0]
    device = replace(device, capabilities=replace(device.capabilities, prefill_tokens=measured))
    plan = resolve(make_recipe("/models/m", scheduler=scheduler), facts(tiny_config()), backend, device, "")
    assert plan.scheduler.chunked_prefill_size.value == chunk
    assert ("auto" in plan.scheduler.chunked_prefill_size.reason) == (not scheduler)
    assert f"chunked prefill size  {chunk} tokens (" in as_text(plan)


def test_the_plan_says_that_a_promised_time_per_token_bounds_prompts():
    assert "beside decodes as many as slo.tpot_p95 of 40 ms leaves time for" in as_text(
        planned(slo={"tpot_p95": "40ms"})
    )
    assert "beside decodes" not in as_text(planned())


def test_pages_of_one_token_are_planned_as_any():
    plan = planned(memory={"page_size": 1, "kv_tokens": 100})
    assert (plan.memory.kv_pages, plan.scheduler.kv_tokens) == (100, 100)


@pytest.mark.parametrize(("kv_dtype", "size"), [("auto", 4), ("bfloat16", 2)])
def test_kv_dtype_sizes_the_pool(kv_dtype, size):
    plan = planned(memory={"kv_dtype": kv_dtype})
    assert plan.memory.kv_bytes_per_token == 2 * 3 * 2 * 16 * size


def test_weights_are_counted_as_often_as_they_are_kept():
    elements = sum(one.elements for one in planned().weights.values())
    assert planned().memory.weights == 4 * elements
    assert planned(model={"dtype": "bfloat16"}).memory.weights == 2 * elements


def test_a_device_too_small_is_refused_with_what_would_do():
    error = refusal(MemoryInsufficient, backend=stub_backend(capacity=GIB // 4), memory={"static_fraction": 0.001})
    assert error.exit_code == 4
    assert "set memory.static_fraction to at least 0." in error.hint


# --- a plan in words ---


def test_the_json_is_plain_and_says_its_schema():
    data = as_json(planned())
    assert json.loads(json.dumps(data)) == data
    assert data["schema_version"] == 1


def test_the_text_says_every_decision_with_its_reason():
    text = as_text(planned(model={"dtype": "bfloat16"}))
    for line in ("dtype      bfloat16 (model.dtype)", "context    512 tokens (the model's own)", "of 64.00 GiB"):
        assert line in text


# --- what is missing on this machine ---


def test_a_missing_checkpoint_and_a_missing_device_are_both_told():
    recipe = load(ROOT / "recipes" / "qwen3-kunlun.yaml", env={"MODEL_DIR": "/nowhere/Qwen3-8B"}).recipe
    with pytest.raises(PreconditionFailed) as failed:
        make_plan(recipe)
    assert failed.value.exit_code == 4
    assert "/nowhere/Qwen3-8B" in str(failed.value)
    assert "no device present" in str(failed.value)


def test_one_missing_thing_is_told_as_what_it_is(tmp_path):
    present = make_tiny(tmp_path / "tiny", "llama")
    with pytest.raises(DeviceAbsent):
        make_plan(make_recipe(present, backend={"name": "kunlun"}))
    with pytest.raises(CheckpointInvalid):
        make_plan(make_recipe(tmp_path / "absent"))
    assert make_plan(make_recipe(present)).model.path == present


def test_emulation_needs_a_backend_with_an_emulator(tmp_path):
    present = make_tiny(tmp_path / "tiny", "llama")
    with pytest.raises(PreconditionFailed, match="has no emulator"):
        make_plan(make_recipe(present, backend={"emulate": True}))


@pytest.mark.parametrize(
    ("asynchronous", "said", "word"),
    [
        (True, {}, "on (auto: the device has asynchronous streams)"),
        (False, {}, "off (auto: the device computes while the host waits)"),
        (True, {"overlap": False}, "off (scheduler.overlap)"),
        (False, {"overlap": True}, "on (scheduler.overlap)"),
    ],
)
def test_steps_overlap_where_streams_are_asynchronous_or_the_recipe_says_so(asynchronous, said, word):
    plan = planned(scheduler=said, backend=stub_backend(async_streams=asynchronous))
    assert plan.scheduler.overlap.value is word.startswith("on")
    assert f", overlap {word}" in as_text(plan)


@pytest.mark.parametrize(("asynchronous", "word"), [(True, "asynchronous"), (False, "synchronous: the host waits")])
def test_a_plan_names_a_device_without_streams_of_its_own(asynchronous, word):
    plan = planned(backend=stub_backend(async_streams=asynchronous))
    assert f"\n  streams    {word}" in as_text(plan)
    assert as_json(plan)["backend"]["device"]["async_streams"] is asynchronous
