"""Latent attention's config and modules: sizes, where matrices stand, what is refused. Knows configs; runs nothing."""

from collections import Counter
from dataclasses import replace

import pytest

from anychip.models.latent_config import LatentShape, score_factor
from anychip.models.registry import build_model, config_of
from anychip.models.rope_config import RopeConfig
from anychip.models.state import State
from anychip_sdk.errors import CheckpointInvalid

MINI = {
    "architectures": ["MiniCPM3ForCausalLM"],
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "kv_lora_rank": 32,
    "q_lora_rank": 24,
    "qk_nope_head_dim": 24,
    "qk_rope_head_dim": 16,
    "v_head_dim": 20,
}
V3 = LatentShape(1536, 512, 64, 128, 128, is_paired=True)


def rows_read(config, name, shape):
    """How often each row of each tensor is read for a parameter, and how many rows that gives."""
    counts, total = {}, 0
    for source in config.sources(name, shape):
        rows = source.taken[0]
        counts.setdefault(source.tensor, Counter()).update(rows)
        total += len(rows)
    return counts, total


def test_each_row_of_the_joined_matrix_is_read_once_by_one_half():
    config = config_of(MINI)
    prefix = "model.layers.0.self_attn.kv_b_proj."
    keys, key_rows = rows_read(config, prefix + "key_weight", (4 * 24, 32))
    values, value_rows = rows_read(config, prefix + "value_weight", (4 * 20, 32))
    assert (key_rows, value_rows) == (96, 80)
    both = keys[prefix + "weight"] + values[prefix + "weight"]
    assert both == Counter(range(4 * 44))
    assert list(keys[prefix + "weight"])[:25] == [*range(24), 44]


@pytest.mark.parametrize(
    ("module", "rows", "start"),
    [("q_b_proj", 4 * 40, [*range(24), 24, 26]), ("kv_a_proj_with_mqa", 48, [*range(32), 32, 34])],
)
def test_pairs_that_are_rotated_become_halves(module, rows, start):
    config = config_of(MINI)
    paired = replace(config, latent=replace(config.latent, is_paired=True))
    name = f"model.layers.1.self_attn.{module}.weight"
    found = [row for source in paired.sources(name, (rows, 64)) for row in source.taken[0]]
    assert found[: len(start)] == start
    assert sorted(found) == list(range(rows))
    assert len(config.sources(name, (rows, 64))) == 1


def test_a_token_keeps_one_vector_and_no_heads():
    model = build_model(config_of(MINI))
    specs = [module.spec for module in model.modules() if isinstance(module, State)]
    assert [(spec.name, [tensor.shape for tensor in spec.tensors]) for spec in specs] == [("latent", [(48,)])] * 2


def test_queries_come_from_one_matrix_where_they_have_no_rank():
    attention = build_model(config_of({**MINI, "q_lora_rank": None})).model.layers[0].self_attn
    assert tuple(attention.q_proj.weight.shape) == (160, 64)
    assert not hasattr(attention, "q_a_proj")


def test_expanding_pays_from_where_it_takes_fewer_products():
    def products(queries, is_expanded):
        made = V3.rank * (V3.nope_dim + V3.value_dim)
        each = V3.key_dim + V3.value_dim if is_expanded else 2 * V3.rank + V3.rope_dim
        return queries * each + is_expanded * made

    assert V3.expand_from == 171
    assert products(171, True) < products(171, False)
    assert products(170, True) > products(170, False)
    assert replace(V3, rank=16).expand_from > 10_000  # never: absorbing is always cheaper


def test_yarns_factor_of_scores_is_squared_and_needs_mscale_all_dim():
    yarn = RopeConfig(type="yarn", factor=40.0, original_max_positions=4096, mscale=0.707, mscale_all_dim=0.707)
    assert score_factor(yarn) == pytest.approx(1.5896, abs=1e-3)  # DeepSeek-V2-Lite's
    assert score_factor(replace(yarn, mscale_all_dim=None)) == 1.0
    assert score_factor(replace(yarn, factor=1.0)) == 1.0
    assert score_factor(RopeConfig(mscale_all_dim=1.0, factor=40.0)) == 1.0


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        ({"num_key_value_heads": 2}, "num_key_value_heads is 2, expected num_attention_heads, which is 4"),
        ({"head_dim": 20}, "head_dim is 20, expected qk_rope_head_dim, which is 16"),
        ({"qk_rope_head_dim": 15}, "qk_rope_head_dim is 15, expected an even number"),
    ],
)
def test_sizes_that_contradict_each_other_are_refused(changed, complaint):
    with pytest.raises(CheckpointInvalid, match=complaint):
        config_of({**MINI, **changed})


def test_the_facts_have_no_head_dim_and_the_plan_gets_a_note():
    config = config_of(MINI)
    assert config.facts().keys() >= {"heads", "rank", "rope_dim", "nope_dim", "value_dim"}
    assert not config.facts().keys() & {"head_dim", "kv_heads"}
    [note] = config.notes
    assert f"of {config.latent.expand_from} tokens" in note
