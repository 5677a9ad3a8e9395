"""CONTRIBUTING's lists name files that exist, and few of them; a family is added as they say."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import gguf
import pytest
import torch
from safetensors.torch import save_file
from torch.nn.functional import gelu, scaled_dot_product_attention

from anychip.forecast.costs import costs_of
from anychip.models import registry
from anychip.plan.explain import as_json
from anychip.weights.checkpoint import open_checkpoint
from anychip.weights.names import expected_tensors
from anychip_sdk.errors import CheckpointInvalid
from support.contributing import lists, paths_in, sections, source_files
from support.engines import core_of, greedy, loaded, logits_of, make_recipe, random_prompts, run
from support.sources import ROOT, modules, short, source_modules, tree
from support.toy_family import ToyConfig

#: list -> the most source files that it may name
LIMITS = {"Add a model": 4, "Add an op": 5, "Add a recipe key of the scheduler": 4}

PLACEHOLDER = "NAME"

MODELS = ROOT / "platform/src/anychip/models"
TOKENS = 24
CHUNKS = (9, 1, 14)


# --- the lists ---


def exists(path: str) -> bool:
    """Whether a path is there; where a placeholder stands in it, whether there is anything of its form."""
    return any(ROOT.glob(path.rstrip("/").replace(PLACEHOLDER, "*")))


LISTS = lists()


@pytest.mark.parametrize("title", LISTS)
def test_every_path_of_a_list_exists(title):
    named = paths_in(LISTS[title])
    assert named
    assert [path for path in named if not exists(path)] == []


@pytest.mark.parametrize("title", LIMITS)
def test_a_list_names_few_source_files(title):
    named = source_files(LISTS[title])
    assert 0 < len(named) <= LIMITS[title], named


def test_the_count_can_fail():
    steps = (
        "1. Edit `sdk/a.py`, [b](platform/b.py) and `tests/c.py`.\n2. `.venv/bin/python\n   plugins/d.py` writes `x`.\n"
    )
    text = f"# T\n\n## Add a thing\n\n{steps}\n## Style\n\n- `sdk/e.py`\n"
    assert source_files(sections(text)["Add a thing"]) == ["sdk/a.py", "plugins/d.py", "platform/b.py"]
    assert not exists("sdk/a.py")
    assert not exists(f"platform/src/anychip/models/{PLACEHOLDER}/absent.py")


# --- a family of one module and one row ---


@pytest.fixture
def toy(monkeypatch):
    """The row in the registry: all that is changed to serve the family in `support.toy_family`."""
    monkeypatch.setattr(registry, "FAMILIES", (*registry.FAMILIES, ToyConfig))


RAW = {
    "architectures": ["ToyForCausalLM"], "vocab_size": 512, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_inner": 96,
    "n_positions": 128, "torch_dtype": "float32", "eos_token_id": 2,
}  # fmt: skip


def random_weights():
    generator = torch.Generator().manual_seed(0)
    found = {}
    for name, shape in expected_tensors(registry.config_of(RAW)).items():
        values = torch.randn(shape, generator=generator)
        found[name] = values * 0.15 if len(shape) > 1 else 1 + values * 0.1
    return found


def write_directory(directory: Path, weights) -> Path:
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(RAW), encoding="utf-8")
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    return directory


def write_gguf_file(path: Path, weights) -> Path:
    names = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    roles = {ours: theirs for theirs, ours in ToyConfig.gguf.layer_tensors.items()}
    writer = gguf.GGUFWriter(path, "toy")
    writer.add_embedding_length(RAW["n_embd"])
    writer.add_block_count(RAW["n_layer"])
    writer.add_head_count(RAW["n_head"])
    writer.add_feed_forward_length(RAW["n_inner"])
    writer.add_context_length(RAW["n_positions"])
    writer.add_eos_token_id(RAW["eos_token_id"])
    for name, tensor in weights.items():
        stem = name.removesuffix(".weight")
        if stem not in names:
            _, _, layer, role = stem.split(".", 3)
            names[stem] = f"blk.{layer}.{roles[role]}"
        writer.add_tensor(f"{names[stem]}.weight", tensor.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def plain_logits(weights, ids):
    """The model in float64: whole sequence, dense attention, none of the platform's code."""
    weights = {name: tensor.double() for name, tensor in weights.items()}
    heads, size = RAW["n_head"], RAW["n_embd"] // RAW["n_head"]
    rates = 10000.0 ** (-torch.arange(size // 2, dtype=torch.float64) / (size // 2))
    angles = torch.outer(torch.arange(len(ids), dtype=torch.float64), rates)

    def norm(name, x):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * weights[name + ".weight"]

    def rotated(x):
        pairs = torch.complex(x[..., : size // 2], x[..., size // 2 :]) * torch.polar(torch.ones_like(angles), angles)
        return torch.cat((pairs.real, pairs.imag), dim=-1)

    x = weights["model.embed_tokens.weight"][ids]
    for layer in range(RAW["n_layer"]):
        prefix = f"model.layers.{layer}."
        normed = norm(prefix + "norm", x)
        q, k, v = (
            (normed @ weights[f"{prefix}self_attn.{name}_proj.weight"].T).view(-1, heads, size).transpose(0, 1)
            for name in "qkv"
        )
        mixed = scaled_dot_product_attention(rotated(q), rotated(k), v, is_causal=True).transpose(0, 1).flatten(1)
        inner = gelu(normed @ weights[prefix + "mlp.up_proj.weight"].T, approximate="tanh")
        x = (
            x
            + mixed @ weights[prefix + "self_attn.o_proj.weight"].T
            + inner @ weights[prefix + "mlp.down_proj.weight"].T
        )
    return norm("model.norm", x) @ weights["lm_head.weight"].T


@pytest.mark.parametrize("as_gguf", [False, True])
def test_a_new_family_computes_its_logits_from_one_module_and_one_row(toy, tmp_path, as_gguf):
    weights = random_weights()
    source = write_gguf_file(tmp_path / "toy.gguf", weights) if as_gguf else write_directory(tmp_path / "toy", weights)
    ids = random_prompts(1, [TOKENS])[0]
    with loaded(make_recipe(source)) as model:
        ours = logits_of(model, ids, CHUNKS)
        assert model.plan.model.config == registry.config_of(RAW)
    expected = plain_logits(weights, ids)
    assert expected.std() > 0.3
    assert float((ours - expected).abs().max() / expected.abs().max()) < 1e-5


def test_a_new_family_is_generated_from_by_the_engine(toy, tmp_path):
    weights = random_weights()
    prompt = random_prompts(1, [TOKENS])[0]
    with core_of(make_recipe(write_directory(tmp_path / "toy", weights))) as core:
        told = run(core, greedy([prompt], 6))["r0", 0]
    plain = list(prompt)
    for _ in range(6):
        plain.append(int(plain_logits(weights, plain)[-1].argmax()))
    assert told == plain[len(prompt) :]


def test_a_new_family_is_planned_priced_and_explained(toy, tmp_path):
    with loaded(make_recipe(write_directory(tmp_path / "toy", random_weights()))) as model:
        plan = model.plan
    assert as_json(plan)["model"]["heads"] == 4
    assert plan.memory.weights == sum(one.nbytes for one in random_weights().values())
    assert {use.op for use in costs_of(plan).uses} >= {"gelu", "linear", "lm_head"}


def test_a_new_family_refuses_what_it_would_compute_wrongly(toy, tmp_path):
    with pytest.raises(CheckpointInvalid) as caught:
        registry.config_of({**RAW, "parallel_residual": False, "n_head": "four"})
    assert "2 problems" in str(caught.value)
    weights = random_weights()
    del weights["model.layers.1.mlp.up_proj.weight"]
    with pytest.raises(CheckpointInvalid, match=r"1 tensors are missing: model\.layers\.1\.mlp\.up_proj\.weight"):
        open_checkpoint(write_directory(tmp_path / "toy", weights))


def test_an_unregistered_family_is_refused():
    with pytest.raises(CheckpointInvalid, match="'ToyForCausalLM' is not supported"):
        registry.config_of(RAW)


def test_only_the_registry_knows_the_families_and_they_each_other():
    importers = {
        short(path)
        for path in source_modules()
        for node in ast.walk(tree(path))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("anychip.models.families")
    }
    families = {short(path) for path in (MODELS / "families").glob("*.py")}
    assert importers - families == {short(MODELS / "registry.py")}


def test_architectures_are_named_by_their_families_and_by_suites_that_make_models():
    named = {
        path
        for path in source_modules()
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.endswith("ForCausalLM")
    }
    suites = modules(*(ROOT / "platform/src/anychip" / folder for folder in ("conformance", "measure")))
    assert named - set(modules(MODELS / "families")) - set(suites) == set()


def test_families_share_no_name():
    for names in (
        [name for family in registry.FAMILIES for name in family.architectures],
        [family.model_type for family in registry.FAMILIES],
        [family.gguf.architecture for family in registry.FAMILIES if family.gguf is not None],
    ):
        assert len(set(names)) == len(names)
