"""Captured pieces: off unless asked for, compared before they are used, never a wrong token."""

import pytest
import torch

from anychip_kunlun.graphs import SIZES, STACK_VARIABLE, VARIABLE, CapturedPiece
from support.engines import core_of, greedy, loaded, make_recipe, random_prompts, run
from support.tiny_models import make_tiny

KUNLUN = {"name": "kunlun", "emulate": True, "threads": 1}
RUNNING = 4
WHOLE = {"policies": ["add_rms_norm", "mha", "ffn"], "on_missing": "error"}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_tiny(tmp_path_factory.mktemp("kunlun") / "model", "qwen3")


def recipe(model, **sections):
    said = {"model": {"dtype": "bfloat16"}, "backend": KUNLUN, "fusion": WHOLE, "memory": {"kv_tokens": 2048}}
    return make_recipe(model, **{**said, "scheduler": {"max_running_requests": RUNNING}, **sections})


def asked(rig):
    """The rig with graphs asked for, as the worker's environment would say."""
    rig.stack.environ[VARIABLE] = "1"
    rig.stack.environ[STACK_VARIABLE] = rig.plugin.anychip_backend().environment[STACK_VARIABLE]
    return rig


def replays(rig):
    return rig.machine.launches.get("graph_replay", 0)


def test_graphs_are_off_unless_they_are_asked_for(rig, model):
    assert STACK_VARIABLE not in rig.plugin.anychip_backend().environment
    with core_of(recipe(model), rig.backend) as core:
        run(core, greedy([[1, 2, 3]], 3))
    assert replays(rig) == 0


@pytest.mark.parametrize("policies", [WHOLE, {"policies": []}], ids=["whole blocks", "unfused"])
def test_replayed_steps_give_the_same_tokens(make_rig, model, policies, caplog):
    prompts = random_prompts(5, [3, 9, 70])
    rig = asked(make_rig())
    tokens = []
    for one in (rig, make_rig()):
        with core_of(recipe(model, fusion=policies), one.backend) as core:
            tokens.append(run(core, greedy(prompts, 8)))
    assert tokens[0] == tokens[1]
    assert replays(rig) > 0
    assert "graphs are not used" not in caplog.text


def test_replayed_steps_of_an_int8_model_give_the_same_tokens(make_rig, model, caplog):
    held = {"dtype": "bfloat16", "quantization": "int8"}
    said = make_recipe(model, model=held, backend=KUNLUN, fusion={"policies": []}, memory={"kv_tokens": 2048})
    prompts, tokens, rig = random_prompts(5, [3, 70]), [], asked(make_rig())
    for one in (rig, make_rig()):
        with core_of(said, one.backend) as core:
            tokens.append(run(core, greedy(prompts, 8)))
    assert tokens[0] == tokens[1]
    assert replays(rig) > 0
    assert "graphs are not used" not in caplog.text
    assert rig.machine.launches["quant2d"] > 0


@pytest.fixture
def pieces(monkeypatch):
    """Every piece that is compiled while the test runs."""
    found = []
    make = CapturedPiece.__init__

    def noted(self, *args):
        make(self, *args)
        found.append(self)

    monkeypatch.setattr(CapturedPiece, "__init__", noted)
    return found


def test_every_size_is_captured_by_the_first_step(make_rig, model, pieces):
    rig = asked(make_rig())
    with core_of(recipe(model), rig.backend) as core:
        run(core, greedy([[1, 2, 3]], 2))
        captured = [dict(piece._captured) for piece in pieces]
        run(core, greedy(random_prompts(6, [4]), 4))
        assert [piece._captured for piece in pieces] == captured
        assert all(set(one) == {size for size in SIZES if size <= RUNNING} for one in captured)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"garbled_replay": True}, "is not what the same code gives"),
        ({"has_graphs": False}, "capturing add_rms_norm to add_rms_norm failed"),
    ],
)
def test_what_replays_wrongly_or_not_at_all_is_not_used_and_told(make_rig, model, caplog, pieces, settings, text):
    prompts = random_prompts(2, [5])
    with core_of(recipe(model), make_rig().backend) as core:
        expected = run(core, greedy(prompts, 6))
    with core_of(recipe(model), asked(make_rig(**settings)).backend) as core:
        assert run(core, greedy(prompts, 6)) == expected
        assert not any(piece._captured for piece in pieces)
    [told] = [record.getMessage() for record in caplog.records if record.name == "anychip_kunlun"]
    assert told.startswith("graphs are not used: ")
    assert text in told


def test_an_op_in_another_dtype_is_cut_out(make_rig, model):
    overrides = {"overrides": [{"op": "ffn", "dtype": "bfloat16", "compute_dtype": "float32"}]}
    rig = asked(make_rig())
    with core_of(recipe(model, ops=overrides), rig.backend) as core:
        cuts = {cut.reason for cut in core.plan.pieces.cuts if cut.op == "ffn"}
    assert cuts == {"it is computed in another dtype than the model's"}


def test_attention_and_what_is_behind_the_chosen_rows_is_never_captured(make_rig, model):
    with loaded(recipe(model), asked(make_rig()).backend) as found:
        plan = found.plan
    captured = [call.op for start, stop in plan.pieces.spans for call in plan.program.calls[start:stop]]
    assert captured.count("ffn") == 3
    assert not {"mha", "select_rows", "lm_head", "embedding"} & set(captured)
    reasons = {cut.op: cut.reason for cut in plan.pieces.cuts}
    assert reasons["mha"] == "it reads what the step's sequences are"
    assert reasons["lm_head"] == "its rows are those whose logits are wanted, not tokens"


def test_padding_rows_reach_no_result(make_rig, model):
    rig = asked(make_rig())
    with core_of(recipe(model), rig.backend) as core:
        alone = [run(core, greedy([prompt], 4))["r0", 0] for prompt in random_prompts(3, [6])]
        together = run(core, greedy(random_prompts(3, [6]), 4))  # three decodes, padded to four
    assert [together[f"r{number}", 0] for number in range(3)] == alone
    assert torch.is_inference_mode_enabled() is False
