"""What graphs ask for, against formulas of the model's shape. Knows no speed."""

import pytest
import torch

from anychip.forecast.costs import costs_of
from anychip.forecast.work import OpWork, Routed, work_of
from anychip.models.registry import config_of
from anychip.recipe.schema import Recipe
from support.plans import plan_of, stub_backend, tiny_config

LAYERS, HIDDEN, INNER, VOCAB, Q, KV = 3, 64, 128, 512, 64, 32
LAYER = HIDDEN * (Q + 2 * KV) + Q * HIDDEN + 3 * HIDDEN * INNER


def planned(policies, quantization="none", kind="qwen3"):
    recipe = Recipe.model_validate(
        {
            "version": 1,
            "name": "m",
            "model": {"source": "./m", "quantization": quantization, "dtype": "bfloat16"},
            "backend": {"name": "stub"},
            "fusion": {"policies": policies},
        }
    )
    return plan_of(recipe, tiny_config(kind, tie_word_embeddings=False), stub_backend())


def together(plan):
    uses = work_of(plan.graph, plan.program, plan.model.dtype.value, plan.scheduler.kv_dtype)
    return sum(uses.values(), OpWork())


@pytest.mark.parametrize("policies", [[], "auto", ["qkv_proj", "gate_up_proj", "add_rms_norm"]])
def test_fusions_change_neither_weights_nor_products_nor_attention(policies):
    found = together(planned(policies))
    assert found.parameters == LAYERS * LAYER + HIDDEN * VOCAB
    norms = LAYERS * (2 * HIDDEN + 2 * 16) + HIDDEN
    assert found.weight_bytes == 2 * (found.parameters + norms)
    assert found.kv_bytes_per_token == 2 * 2 * LAYERS * KV
    assert found.scores_per_token == LAYERS * 4
    assert found.attention_flops_per_pair == 4 * LAYERS * Q


@pytest.mark.parametrize("quantization", ["none", "int8"])
def test_matrices_and_what_goes_through_them_are_the_same_whichever_ops_share_a_kernel(quantization):
    blocks, parts = (planned(policies, quantization) for policies in ("auto", ["qkv_proj", "gate_up_proj"]))
    found = together(parts)
    assert found.matrices == 4 * LAYERS + 1
    through = LAYERS * (HIDDEN + Q + 2 * KV + Q + HIDDEN + HIDDEN + 2 * INNER + INNER + HIDDEN) + HIDDEN + VOCAB
    assert found.matrix_bytes_per_row == 2 * through
    assert together(blocks).by_matrix == found.by_matrix
    assert together(blocks).calls < found.calls


def test_activations_are_counted_where_they_are_written_and_read():
    plan = planned([], kind="llama")
    uses = work_of(plan.graph, plan.program, torch.bfloat16, torch.bfloat16)
    moved = {use.op: work.moved_bytes_per_row for use, work in uses.items()}
    assert moved["silu"] == 2 * LAYERS * 2 * INNER
    assert moved["mul"] == 2 * LAYERS * 3 * INNER
    assert moved["rope"] == 2 * LAYERS * 2 * (Q + KV)
    assert moved["kv_write"] == 2 * LAYERS * 2 * 2 * KV
    read, written = 5 * HIDDEN + Q + INNER, Q + 2 * KV + 2 * HIDDEN + 2 * INNER
    assert moved["linear"] == 2 * LAYERS * (read + written)


def test_a_fusion_moves_less():
    assert together(planned("auto")).moved_bytes_per_row < together(planned([])).moved_bytes_per_row
    assert together(planned("auto")).calls < together(planned([])).calls


def test_integers_are_counted_as_bytes_that_are_read_and_as_elements_that_are_multiplied():
    plan = planned([], "int4")
    uses = work_of(plan.graph, plan.program, torch.bfloat16, torch.bfloat16)
    [products] = [work for use, work in uses.items() if use.kernel == "linear_int4 stub/linear_int4_stub uint8"]
    assert products.parameters == LAYERS * LAYER
    assert products.weight_bytes == products.parameters // 2 + products.parameters // 32 * 4


def test_the_head_is_asked_for_sampled_rows_only():
    sampled = {use.op for use in costs_of(planned("auto")).uses if use.is_sampled}
    assert sampled == {"select_rows", "rms_norm", "lm_head", "argmax"}


def test_layers_with_windows_are_told_apart():
    config = {"use_sliding_window": True, "sliding_window": 64, "max_window_layers": 1}
    recipe = Recipe.model_validate({"version": 1, "name": "m", "model": {"source": "./m"}, "backend": {"name": "stub"}})
    plan = plan_of(recipe, tiny_config("qwen3", **config), stub_backend())
    uses = work_of(plan.graph, plan.program, torch.bfloat16, torch.bfloat16)
    assert {use.window: work.calls for use, work in uses.items() if use.op == "mha"} == {None: 1, 64: 2}


@pytest.mark.parametrize(
    ("experts", "columns", "expected"),
    [(128, 8, [8, 29.1, 51.6, 82.4]), (64, 6, [6, 20.8, 34.9, 50.8]), (8, 2, [2, 5.5, 7.2, 7.9])],
)
def test_rows_reach_as_many_distinct_experts_as_even_draws_do(experts, columns, expected):
    routed = Routed(experts, columns)
    assert [routed.distinct(rows) for rows in (1, 4, 8, 16)] == pytest.approx(expected, abs=0.1)
    assert routed.distinct(0) == 0
    assert routed.distinct(10_000) == pytest.approx(experts)


def test_a_mixture_that_every_row_reaches_whole_is_read_whole():
    assert Routed(4, 4).distinct(1) == 4
    assert Routed(2, 3).distinct(5) == 2


def test_a_latent_is_read_once_as_key_and_as_value():
    config = config_of(
        {
            "architectures": ["MiniCPM3ForCausalLM"],
            **{"vocab_size": 512, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 3},
            **{"num_attention_heads": 4, "num_key_value_heads": 4, "kv_lora_rank": 32, "q_lora_rank": 24},
            **{"qk_nope_head_dim": 24, "qk_rope_head_dim": 16, "v_head_dim": 20, "tie_word_embeddings": False},
        }
    )
    recipe = {"version": 1, "name": "m", "model": {"source": "./m", "dtype": "bfloat16"}, "backend": {"name": "stub"}}
    plan = plan_of(Recipe.model_validate(recipe), config, stub_backend())
    found = together(plan)
    assert plan.memory.kv_bytes_per_token == found.kv_bytes_per_token == 3 * 2 * (32 + 16)
    assert found.attention_flops_per_pair == 3 * 2 * 4 * (32 + 16 + 32)
    projections = 64 * 24 + 24 * 4 * 40 + 64 * 48 + 4 * 44 * 32 + 4 * 20 * 64
    assert found.parameters == 3 * (projections + 3 * 64 * 128) + 64 * 512
