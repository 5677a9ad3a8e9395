"""The decoder's modules have the checkpoint's names and shapes, and no memory. Knows configs; runs nothing."""

import pytest
import torch
import transformers

from anychip.models.attention import Attention
from anychip.models.registry import build_model
from support.plans import TINY, tiny_config


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
def test_parameters_have_the_names_and_shapes_of_transformers(kind, bias, tied):
    overrides = {"tie_word_embeddings": tied, "attention_bias": bias, "mlp_bias": bias}
    with torch.device("meta"):
        theirs = transformers.AutoModelForCausalLM.from_config(
            transformers.AutoConfig.for_model(kind, **{**TINY, **overrides})
        )
    assert shapes_of(build_model(tiny_config(kind, **overrides))) == shapes_of(theirs)


def shapes_of(model):
    return {name: tuple(one.shape) for name, one in model.named_parameters()}


def test_modules_hold_no_memory():
    model = build_model(tiny_config())
    assert {one.device for one in (*model.parameters(), *model.buffers())} == {torch.device("meta")}
    assert not any(one.requires_grad for one in model.parameters())


def test_tied_embeddings_are_one_parameter():
    tied, untied = (build_model(tiny_config(tie_word_embeddings=one)) for one in (True, False))
    assert tied.lm_head.weight is tied.model.embed_tokens.weight
    assert untied.lm_head.weight is not untied.model.embed_tokens.weight


def test_only_qwen3_normalises_queries_and_keys():
    def has_norms(kind):
        return build_model(tiny_config(kind)).model.layers[0].self_attn.q_norm is not None

    assert {kind: has_norms(kind) for kind in ("llama", "qwen2", "qwen3")} == {
        "llama": False, "qwen2": False, "qwen3": True,
    }  # fmt: skip


def test_windows_go_by_layer():
    config = tiny_config("qwen2", use_sliding_window=True, sliding_window=8, max_window_layers=2)
    layers = build_model(config).model.layers
    assert [layer.self_attn.window for layer in layers] == [None, None, 8]


def test_the_scale_is_that_of_a_head():
    assert Attention(tiny_config(head_dim=64), 0).scale == 0.125
