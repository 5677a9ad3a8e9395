"""Config parsing: the raw keys, both spellings, the classes' defaults, and every refusal."""

from __future__ import annotations

import pytest
import torch
import transformers

from anychip.models.decoder_config import FULL_ATTENTION, SLIDING_ATTENTION
from anychip.models.registry import build_model, config_of
from anychip.models.state import Table
from anychip_sdk.errors import CheckpointInvalid
from anychip_sdk.ops import CATALOGUE

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 3,
}
QWEN3 = {**LLAMA, "architectures": ["Qwen3ForCausalLM"]}
QWEN2 = {**LLAMA, "architectures": ["Qwen2ForCausalLM"]}


def refusal(raw, generation=None):
    with pytest.raises(CheckpointInvalid) as caught:
        config_of(raw, generation)
    return str(caught.value)


@pytest.mark.parametrize("kind", ["Llama", "Qwen2", "Qwen3"])
def test_absent_keys_mean_what_they_mean_in_transformers(kind):
    reference = getattr(transformers, f"{kind}Config")()
    config = config_of({"architectures": [f"{kind}ForCausalLM"]})
    assert config.model_type == reference.model_type
    assert config.vocab_size == reference.vocab_size
    assert config.hidden_size == reference.hidden_size
    assert config.intermediate_size == reference.intermediate_size
    assert config.num_layers == reference.num_hidden_layers
    assert config.num_heads == reference.num_attention_heads
    assert config.num_kv_heads == reference.num_key_value_heads
    assert config.head_dim == getattr(reference, "head_dim", reference.hidden_size // 32)
    assert config.max_positions == reference.max_position_embeddings
    assert config.rms_norm_eps == reference.rms_norm_eps
    assert config.hidden_act == reference.hidden_act
    assert config.tie_word_embeddings == reference.tie_word_embeddings
    assert config.rope.theta == reference.rope_parameters["rope_theta"]
    assert config.bos_token_id == reference.bos_token_id
    assert config.eos_token_ids == (() if reference.eos_token_id is None else (reference.eos_token_id,))
    assert config.sliding_window is None


@pytest.mark.parametrize(
    ("raw", "theta"),
    [
        ({"rope_theta": 500000.0}, 500000.0),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 1000000}}, 1000000.0),
        ({"rope_theta": 7.0, "rope_parameters": {"rope_theta": 7}}, 7.0),
        ({}, 10000.0),
        (
            {
                "rope_parameters": {
                    "full_attention": {"rope_type": "default", "rope_theta": 5.0},
                    "sliding_attention": {"rope_type": "default", "rope_theta": 5.0},
                }
            },
            5.0,
        ),
    ],
)
def test_rope_theta_is_found_wherever_it_is_written(raw, theta):
    assert config_of({**LLAMA, **raw}).rope.theta == theta


def test_two_different_rope_thetas_are_refused():
    message = refusal({**LLAMA, "rope_theta": 10000.0, "rope_parameters": {"rope_theta": 500000.0}})
    assert "10000 at the top and 500000 in rope_parameters" in message


def test_rope_parameters_that_differ_per_layer_type_are_refused():
    nested = {"full_attention": {"rope_theta": 1e6}, "sliding_attention": {"rope_theta": 1e4}}
    assert "different parameters per layer type" in refusal({**LLAMA, "rope_parameters": nested})


def test_the_old_and_the_new_spelling_of_llama3_scaling_are_the_same():
    scaling = {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    }
    old = config_of({**LLAMA, "rope_theta": 5e5, "rope_scaling": scaling})
    new = config_of({**LLAMA, "rope_parameters": {**scaling, "rope_theta": 5e5}})
    assert old.rope == new.rope
    assert old.rope.original_max_positions == 8192


def test_yarn_keeps_what_the_checkpoint_leaves_open():
    scaling = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
    rope = config_of({**QWEN3, "rope_theta": 1e6, "rope_scaling": scaling}).rope
    assert (rope.type, rope.factor, rope.original_max_positions) == ("yarn", 4.0, 32768)
    assert (rope.attention_factor, rope.beta_fast, rope.beta_slow) == (None, 32.0, 1.0)


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        ({"rope_scaling": {"type": "ntk", "factor": 2.0}}, "rope type 'ntk' is not supported"),
        ({"rope_scaling": {"type": "linear"}}, "factor is missing"),
        ({"rope_scaling": {"type": "linear", "rope_type": "yarn", "factor": 2.0}}, "type is 'linear'"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantization_config (gptq)"),
        ({"hidden_act": "relu"}, "hidden_act 'relu'"),
        ({"num_attention_heads": 5, "head_dim": 16}, "not a multiple of num_key_value_heads"),
        ({"hidden_size": 63}, "hidden_size 63 is not a multiple"),
        ({"head_dim": 15}, "head_dim 15 is odd"),
        ({"vocab_size": "many"}, "vocab_size is 'many', expected a whole number"),
        ({"num_hidden_layers": True}, "num_hidden_layers is True"),
        ({"torch_dtype": "float8"}, "torch_dtype is 'float8'"),
        ({"eos_token_id": "</s>"}, "eos_token_id is '</s>'"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(raw, words):
    assert words in refusal({**LLAMA, **raw})


def test_all_problems_are_told_at_once():
    message = refusal({**LLAMA, "hidden_act": "relu", "vocab_size": 0, "rope_theta": "x"})
    assert "3 problems" in message
    assert all(key in message for key in ("hidden_act", "vocab_size", "rope_theta"))


def test_an_unknown_architecture_lists_the_known_ones():
    message = refusal({"architectures": ["GPT2LMHeadModel"]})
    assert "GPT2LMHeadModel" in message
    assert "LlamaForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM" in message
    assert "model_type ''" in refusal({"hidden_size": 1})


def test_the_model_type_alone_names_the_architecture():
    assert config_of({"model_type": "qwen2"}).architecture == "Qwen2ForCausalLM"


@pytest.mark.parametrize(
    ("raw", "dtype"),
    [
        ({"dtype": "bfloat16"}, torch.bfloat16),
        ({"torch_dtype": "torch.bfloat16"}, torch.bfloat16),
        ({"dtype": "float16", "torch_dtype": "torch.float16"}, torch.float16),
        ({"dtype": None, "torch_dtype": "float32"}, torch.float32),
        ({"torch_dtype": "auto"}, None),
        ({}, None),
    ],
)
def test_dtype_is_read_under_both_names(raw, dtype):
    assert config_of({**LLAMA, **raw}).dtype is dtype


def test_two_different_dtypes_are_refused():
    assert "keep one" in refusal({**LLAMA, "dtype": "float16", "torch_dtype": "bfloat16"})


@pytest.mark.parametrize(
    ("config", "generation", "eos"),
    [
        (2, None, (2,)),
        ([2, 3], None, (2, 3)),
        (2, {"eos_token_id": [3, 2]}, (3, 2)),
        (7, {"eos_token_id": 5}, (5, 7)),
        (None, {"eos_token_id": 5}, (5,)),
        (None, None, ()),
    ],
)
def test_every_end_token_of_both_files_counts_generation_first(config, generation, eos):
    assert config_of({**QWEN2, "eos_token_id": config}, generation).eos_token_ids == eos


def test_biases_follow_the_class():
    qwen2 = config_of({**QWEN2, "attention_bias": False})
    assert (qwen2.attention_bias, qwen2.attention_out_bias) == (True, False)
    llama = config_of({**LLAMA, "attention_bias": True, "mlp_bias": True})
    assert (llama.attention_bias, llama.attention_out_bias, llama.mlp_bias) == (True, True, True)
    qwen3 = config_of({**QWEN3, "mlp_bias": True})
    assert (qwen3.attention_bias, qwen3.mlp_bias, qwen3.qk_norm) == (False, False, True)


def test_the_head_size_need_not_be_hidden_over_heads():
    config = config_of({**QWEN3, "head_dim": 32})
    assert (config.q_size, config.kv_size) == (128, 64)


def test_sliding_windows_count_only_where_they_are_switched_on():
    off = {**QWEN2, "sliding_window": 4, "max_window_layers": 1, "use_sliding_window": False}
    assert config_of(off).sliding_window is None
    on = config_of({**off, "use_sliding_window": True})
    assert on.layer_types == (FULL_ATTENTION, SLIDING_ATTENTION, SLIDING_ATTENTION)
    assert [on.window(layer) for layer in range(3)] == [None, 4, 4]
    given = [SLIDING_ATTENTION, FULL_ATTENTION, FULL_ATTENTION]
    listed = config_of({**off, "use_sliding_window": True, "layer_types": given})
    assert [listed.window(layer) for layer in range(3)] == [4, None, None]


def test_wrong_layer_types_are_refused():
    base = {**QWEN2, "use_sliding_window": True, "sliding_window": 4}
    assert "2 entries for 3 layers" in refusal({**base, "layer_types": [FULL_ATTENTION] * 2})
    assert "linear_attention" in refusal({**base, "layer_types": ["linear_attention"] * 3})


def test_facts_name_sizes_as_op_schemas_do():
    config = config_of({**QWEN3, "vocab_size": 96, "intermediate_size": 160, "head_dim": 32})
    assert config.facts() == {
        "layers": 3, "hidden": 64, "vocab": 96, "heads": 4, "kv_heads": 2, "head_dim": 32,
        "heads_per_kv_head": 2, "inner": 160,
    }  # fmt: skip
    dimensions = {name for op in CATALOGUE.values() for arg in op.args for name in arg.shape}
    assert set(config.facts()) - {"layers", "heads_per_kv_head"} <= dimensions


def test_fewer_layers_are_the_first_ones():
    windows = {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1}
    config = config_of({**QWEN2, **windows})
    fewer = config.with_layers(2, 32)
    assert (fewer.num_layers, fewer.vocab_size) == (2, 32)
    assert [fewer.window(layer) for layer in range(2)] == [None, 4]
    assert fewer.with_layers(3, config.vocab_size) != config
    assert config.with_layers(3, config.vocab_size) == config


def test_tables_are_computed_by_modules_for_as_many_positions_as_wanted():
    modules = dict(build_model(config_of(LLAMA)).named_modules())
    tables = {name: tuple(module.compute(5).shape) for name, module in modules.items() if isinstance(module, Table)}
    assert tables == {"model.rope": (5, 16)}


def test_only_copies_and_derived_buffers_are_ignored():
    tied, untied = (config_of({**LLAMA, "tie_word_embeddings": one}) for one in (True, False))
    assert tied.ignores("lm_head.weight")
    assert not untied.ignores("lm_head.weight")
    for name in ("model.layers.0.self_attn.rotary_emb.inv_freq", "model.layers.0.self_attn.masked_bias"):
        assert untied.ignores(name)
    assert not untied.ignores("model.layers.0.self_attn.q_proj.bias")


@pytest.mark.parametrize("key", ["bos_token_id", "eos_token_id", "pad_token_id"])
@pytest.mark.parametrize("file", ["config.json", "generation_config.json"])
def test_an_id_without_a_row_is_refused_with_file_key_and_value(file, key):
    wrong = {key: [0, 9999, 512]} if key == "eos_token_id" else {key: 9999}
    raw, generation = ({**wrong}, {}) if file == "config.json" else ({}, wrong)
    said = refusal({**LLAMA, "vocab_size": 512, "bos_token_id": 1, "eos_token_id": 2, **raw}, generation)
    assert f"{file}: {key} is 9999" in said
    assert "expected ids from 0 to 511, as the embedding has 512 rows" in said
    assert said.count(key) == 1


def test_the_last_row_is_an_id():
    ids = {"bos_token_id": 511, "eos_token_id": [0, 511], "pad_token_id": 511}
    assert config_of({**LLAMA, "vocab_size": 512, **ids}).eos_token_ids == (0, 511)
