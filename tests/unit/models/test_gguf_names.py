"""GGUF's names and metadata keys of a family."""

import pytest

from anychip.models.decoder_gguf import LAYER_TENSORS, TENSORS, read_decoder_config
from anychip.models.gguf_names import GGUFFields, GGUFNames
from anychip.models.registry import gguf_families

METADATA = {
    "general.architecture": "llama",
    "llama.embedding_length": 64,
    "llama.attention.head_count": 4,
    "llama.feed_forward_length": 128,
    "llama.block_count": 2,
    "llama.context_length": 512,
    "llama.vocab_size": 96,
}


def read(**changes):
    """config.json's keys and the problems, from metadata with some keys changed."""
    changed = {f"llama.{key.replace('__', '.')}": value for key, value in changes.items()}
    problems = []
    return read_decoder_config(GGUFFields({**METADATA, **changed}, {}, problems)), problems


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("token_embd.weight", "model.embed_tokens.weight"),
        ("blk.12.attn_q.bias", "model.layers.12.self_attn.q_proj.bias"),
        ("blk.12.attn_sinks.weight", None),
        ("blk.x.attn_q.weight", None),
        ("blk.1.attn_q", None),
        ("attn_q.weight", None),
    ],
)
def test_names_are_those_of_the_checkpoint(name, expected):
    assert gguf_families()["llama"].gguf.tensor(name) == expected


def test_the_layers_may_lie_elsewhere():
    names = GGUFNames("other", read_decoder_config, TENSORS, LAYER_TENSORS, layer_prefix="transformer.h.")
    assert names.tensor("blk.3.ffn_up.weight") == "transformer.h.3.mlp.up_proj.weight"


def test_what_metadata_leaves_out_follows_from_the_rest():
    raw, problems = read()
    assert problems == []
    assert (raw["num_key_value_heads"], raw["head_dim"]) == (4, 16)
    assert (raw["rms_norm_eps"], raw["rope_theta"], raw["vocab_size"]) == (1e-6, 10000.0, 96)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"expert_count": 8}, "llama.expert_count is set; models that use it are not supported"),
        ({"logit_scale": 0.5}, "llama.logit_scale is set"),
        ({"rope__dimension_count": 8}, "rope.dimension_count 8 of head size 16: partial rotary is not supported"),
        ({"attention__sliding_window": 4}, "llama.attention.sliding_window 4 is not supported in GGUF files"),
        ({"attention__head_count": [4, 8]}, "llama.attention.head_count is [4, 8], expected one whole number"),
        ({"rope__freq_base": "high"}, "llama.rope.freq_base is 'high', expected a number"),
    ],
)
def test_what_would_be_computed_wrongly_is_refused(changes, words):
    assert any(words in problem for problem in read(**changes)[1])


def test_all_missing_keys_are_told():
    problems = []
    read_decoder_config(GGUFFields({"general.architecture": "llama"}, {}, problems))
    missing = {problem.split()[1] for problem in problems if problem.endswith("is missing")}
    assert missing == set(METADATA) - {"general.architecture"}
