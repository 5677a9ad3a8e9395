"""The tensors that a model needs, and how a list of names is told."""

import pytest
import torch

from anychip.weights.names import check_tensors, expected_tensors, shorten
from anychip.weights.tensors import TensorInfo
from support.plans import tiny_config


def infos(shapes):
    return {name: TensorInfo(name, shape, torch.float32, "F32", 0) for name, shape in shapes.items()}


@pytest.mark.parametrize("tied", [True, False])
def test_tensors_are_in_the_order_of_the_modules_and_a_tied_one_is_there_once(tied):
    config = tiny_config("llama", tie_word_embeddings=tied)
    names = list(expected_tensors(config))
    layers = [name.split(".")[2] for name in names if name.startswith("model.layers.")]
    assert names[0] == "model.embed_tokens.weight"
    assert layers == sorted(layers)
    assert names[-1] == ("model.norm.weight" if tied else "lm_head.weight")


def test_every_difference_is_told():
    config = tiny_config("llama", tie_word_embeddings=False)
    tensors = dict(expected_tensors(config))
    assert check_tensors(config, infos(tensors)) == []
    tensors["model.norm.weight"] = (7,)
    del tensors["lm_head.weight"]
    tensors["model.extra.weight"] = (1,)
    assert check_tensors(config, infos(tensors)) == [
        f"tensor model.norm.weight has shape [7], the config asks for [{config.hidden_size}]",
        "1 tensors are missing: lm_head.weight",
        "1 tensors are not part of LlamaForCausalLM: model.extra.weight",
    ]


def test_a_long_list_names_the_first_and_counts_the_rest():
    assert shorten([str(number) for number in range(11)]) == "0, 1, 2, 3, 4, 5, 6, 7 and 3 more"
    assert shorten(["a", "b"]) == "a, b"
