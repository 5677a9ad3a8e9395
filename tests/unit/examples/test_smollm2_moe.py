"""The example makes a mixture of experts that computes what the dense model computes."""

import sys
from collections import Counter

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from anychip.recipe import load
from anychip_sdk.errors import UsageError
from support.engines import random_prompts
from support.sources import ROOT
from support.tiny_models import make_tiny, write_gguf


@pytest.fixture(scope="module")
def example():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "examples"))
        import smollm2_moe

        yield smollm2_moe
        sys.modules.pop("smollm2_moe")


@pytest.fixture(scope="module")
def folders(example, tmp_path_factory):
    """A dense model and what becomes of it."""
    below = tmp_path_factory.mktemp("upcycled")
    dense = make_tiny(below / "dense", "llama", tokenizer=True, torch_dtype="bfloat16")
    file = write_gguf(dense, below / "dense.gguf", "BF16")
    example.upcycle(str(file), below / "moe", layers=2, experts=4, top_k=2)
    return dense, below / "moe"


def logits_of(folder, ids):
    options = {"attn_implementation": "eager", "dtype": torch.float32}
    model = AutoModelForCausalLM.from_pretrained(folder, **options).eval()
    with torch.inference_mode():
        return model(torch.tensor([ids])).logits[0]


def test_its_logits_are_those_of_the_dense_model(folders):
    (ids,) = random_prompts(1, [48])
    dense, moe = (logits_of(folder, ids) for folder in folders)
    assert float((dense - moe).abs().max() / dense.abs().max()) < 1e-5


def test_the_experts_differ_and_the_router_spreads_tokens(folders):
    tensors = load_file(folders[1] / "model.safetensors")
    layers = {name.split(".")[2] for name in tensors if ".experts." in name}
    assert layers == {"1", "2"}
    first, second = (tensors[f"model.layers.2.mlp.experts.{one}.gate_proj.weight"] for one in (0, 1))
    assert not torch.equal(first, second)
    assert torch.equal(first.sort(0).values, second.sort(0).values)
    states = torch.randn(256, first.shape[1], generator=torch.Generator().manual_seed(1))
    chosen = (states @ tensors["model.layers.2.mlp.gate.weight"].float().T).topk(2).indices
    assert min(Counter(chosen.flatten().tolist()).values()) > 256 * 2 / 4 / 4


def test_what_was_there_is_replaced_and_nothing_unfinished_is_left(example, folders, tmp_path):
    folder = tmp_path / "moe"
    folder.mkdir()
    (folder / "old").touch()
    (tmp_path / "moe.unfinished").mkdir()
    example.upcycle(str(folders[0].parent / "dense.gguf"), folder, layers=1, experts=1, top_k=1)
    assert [path.name for path in tmp_path.iterdir()] == ["moe"]
    assert not (folder / "old").exists()


@pytest.mark.parametrize("options", [{"layers": 4}, {"layers": 0}, {"experts": 1, "top_k": 2}], ids=str)
def test_numbers_that_do_not_fit_are_refused(example, folders, tmp_path, options):
    with pytest.raises(UsageError, match="expected fewer"):
        example.upcycle(str(folders[0].parent / "dense.gguf"), tmp_path / "moe", **options)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_is_no_source(example, folders, tmp_path):
    with pytest.raises(UsageError, match="is no GGUF file of a Llama"):
        example.upcycle(str(folders[0]), tmp_path / "moe")


def test_the_recipe_names_the_folder_that_make_builds():
    recipe = load(ROOT / "recipes" / "smollm2-moe.yaml", env={}).recipe
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert recipe.model.source == str(ROOT / ".models" / "smollm2-moe")
    assert "\nMOE := .models/smollm2-moe/config.json\n" in makefile
