"""Opening and reading checkpoints: both formats give the same tensors, and broken ones are refused with reasons."""

from __future__ import annotations

import json
import resource
from pathlib import Path

import pytest
import torch
from safetensors.torch import load, save_file

from anychip.models.source import same_name
from anychip.weights.checkpoint import open_checkpoint
from anychip.weights.gguf_config import token_ids
from anychip.weights.load import Parameter, check_complete
from anychip.weights.names import expected_tensors
from anychip.weights.template import template_source
from anychip_sdk.errors import CheckpointInvalid
from support.tiny_models import make_tiny, write_gguf

KINDS = ["llama", "qwen2", "qwen3"]


def load_file(path):
    """Not the library's, whose tensors change with the file that they map."""
    return load(path.read_bytes())


def refusal(path):
    with pytest.raises(CheckpointInvalid) as caught:
        open_checkpoint(path)
    return str(caught.value)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shards", [1, 3])
def test_every_tensor_of_a_directory_reads_as_written(tmp_path, kind, shards):
    path = make_tiny(tmp_path, kind, shards=shards, torch_dtype="bfloat16")
    written = {}
    for file in path.glob("*.safetensors"):
        written |= load_file(file)
    with open_checkpoint(path) as checkpoint:
        assert checkpoint.format == "safetensors"
        assert set(checkpoint.tensors) == set(written) == set(expected_tensors(checkpoint.config))
        for name, info in checkpoint.tensors.items():
            tensor = checkpoint.read(name)
            assert torch.equal(tensor, written[name])
            assert (info.shape, info.dtype, info.storage) == (tuple(tensor.shape), torch.bfloat16, "BF16")
            assert info.nbytes == tensor.nbytes


@pytest.mark.parametrize("kind", KINDS)
def test_a_gguf_file_reads_like_the_directory_that_it_was_made_from(tmp_path, kind):
    path = make_tiny(tmp_path / "hf", kind, tokenizer=True)
    with open_checkpoint(path) as directory, open_checkpoint(write_gguf(path, tmp_path / "x.gguf")) as file:
        assert file.format == "gguf"
        assert file.config == directory.config
        assert set(file.tensors) == set(directory.tensors)
        for name in directory.tensors:
            assert torch.equal(directory.read(name), file.read(name))


@pytest.mark.parametrize("as_gguf", [False, True])
def test_rows_are_those_of_the_whole_tensor(tmp_path, as_gguf):
    path = make_tiny(tmp_path / "hf", "llama")
    if as_gguf:
        path = write_gguf(path, tmp_path / "x.gguf", "Q8_0")
    with open_checkpoint(path) as checkpoint:
        for name in checkpoint.tensors:
            whole = checkpoint.read(name).clone()
            for rows in (slice(0, 1), slice(5, 9), slice(7, None), slice(4, 4), slice(-3, None)):
                assert torch.equal(checkpoint.read(name, rows), whole[rows]), (name, rows)
        with pytest.raises(ValueError, match="step 1"):
            checkpoint.read("model.norm.weight", slice(0, 8, 2))


def test_a_tensor_that_was_read_outlives_later_reads_and_the_checkpoint(tmp_path):
    path = make_tiny(tmp_path, "llama")
    checkpoint = open_checkpoint(path)
    kept = checkpoint.read("model.embed_tokens.weight")
    for name in checkpoint.tensors:
        checkpoint.read(name)
    checkpoint.close()
    assert torch.equal(kept, load_file(path / "model.safetensors")["model.embed_tokens.weight"])


def test_reading_all_tensors_keeps_one_of_them_in_memory(tmp_path):
    wide = {"hidden_size": 512, "intermediate_size": 8192, "num_hidden_layers": 4, "head_dim": 16}
    path = make_tiny(tmp_path, "llama", **wide)  # 203 MB, the largest tensor 17 MB
    with open_checkpoint(path) as checkpoint:
        before = _resident_bytes()
        peak = 0
        for name in checkpoint.tensors:
            checkpoint.read(name).sum()
            peak = max(peak, _resident_bytes() - before)
    assert peak < 60e6


def _resident_bytes():
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def test_tensors_at_odd_offsets_read_right(tmp_path):
    path = make_tiny(tmp_path, "llama")
    file = path / "model.safetensors"
    raw = file.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header = raw[8 : 8 + length].rstrip() + b" "
    header += b" " * ((2 - (8 + len(header)) % 4) % 4)  # data begins at 2 modulo 4
    written = load_file(file)
    file.write_bytes(len(header).to_bytes(8, "little") + header + raw[8 + length :])
    with open_checkpoint(path) as checkpoint:
        assert all(torch.equal(checkpoint.read(name), written[name]) for name in checkpoint.tensors)


def edit(file, **changes):
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


@pytest.mark.parametrize("place", ["added_tokens_decoder", "added_tokens", "vocab"])
def test_an_end_that_any_file_names_ends(tmp_path, place):
    path = make_tiny(tmp_path, "qwen2", tokenizer=True, eos_token_id=0)
    (path / "generation_config.json").write_text(json.dumps({"eos_token_id": [1, 0]}))
    if place == "added_tokens_decoder":
        edit(path / "tokenizer_config.json", added_tokens_decoder={"2": {"content": "<|im_end|>"}})
        (path / "tokenizer.json").unlink()
    elif place == "vocab":
        edit(path / "tokenizer.json", added_tokens=[])
    with open_checkpoint(path) as checkpoint:
        assert checkpoint.config.eos_token_ids == (1, 0, 2)


@pytest.mark.parametrize("token", [None, "<|unheard of|>", 5, {"content": "<|im_end|>"}])
def test_an_end_that_the_vocabulary_lacks_changes_nothing(tmp_path, token):
    path = make_tiny(tmp_path, "qwen2", tokenizer=True, eos_token_id=0)
    edit(path / "tokenizer_config.json", eos_token=token)
    with open_checkpoint(path) as checkpoint:
        assert checkpoint.config.eos_token_ids == ((0, 2) if isinstance(token, dict) else (0,))


def test_every_end_of_a_gguf_file_ends():
    metadata = {f"tokenizer.ggml.{name}_token_id": at for at, name in enumerate(("eos", "eot", "eom"))}
    ids = token_ids(metadata, 3)
    assert ids == {"bos_token_id": None, "eos_token_id": [0, 1, 2], "pad_token_id": None}


def _tied(path, change):
    file = path / "model.safetensors"
    weights = load_file(file)
    save_file(weights | {"lm_head.weight": change(weights["model.embed_tokens.weight"].clone())}, file)


def _row(table):
    table[17, 3] += 1
    return table


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda table: table[:-1].contiguous(), "has shape [511, 64], model.embed_tokens.weight has [512, 64]"),
        (lambda table: table * 2, "differs from model.embed_tokens.weight"),
        (lambda table: table.double(), "is stored as F64, which is not read"),
        (lambda table: table.half(), "differs from model.embed_tokens.weight"),
    ],
)
def test_a_second_table_of_a_tied_model_that_differs_is_refused(tmp_path, change, words):
    path = make_tiny(tmp_path, "llama")
    _tied(path, change)
    message = refusal(path)
    assert f"tensor lm_head.weight {words}, but config.json says tie_word_embeddings: true" in message
    assert "set it to false to use both" in message


def test_a_second_table_that_differs_in_one_number_is_refused_when_it_is_loaded(tmp_path):
    path = make_tiny(tmp_path, "llama")
    _tied(path, _row)
    with open_checkpoint(path) as checkpoint:
        assert len(checkpoint.differing_copies()) == 1
        parameters = [
            Parameter(name, info.shape, same_name(name, info.shape)) for name, info in checkpoint.tensors.items()
        ]
        with pytest.raises(CheckpointInvalid, match=r"lm_head.weight differs from model.embed_tokens.weight"):
            check_complete(parameters, checkpoint)


@pytest.mark.parametrize("name", ["old.safetensors", "old.gguf", "model-00001-of-00002.safetensors"])
def test_a_subfolder_that_is_called_like_a_file_is_no_file(tmp_path, name):
    path = make_tiny(tmp_path / "hf", "llama")
    file = write_gguf(path, tmp_path / "g.gguf")
    (path / name).mkdir()
    open_checkpoint(path).close()
    folder = tmp_path / "g"
    folder.mkdir()
    file.rename(folder / "g.gguf")
    (folder / name).mkdir()
    with open_checkpoint(folder) as checkpoint:
        assert checkpoint.format == "gguf"


def test_a_byte_of_a_template_that_is_no_text_is_told_with_its_place(tmp_path):
    path = make_tiny(tmp_path, "llama", tokenizer=True)
    (path / "chat_template.jinja").write_bytes("a\nbé".encode("latin-1"))
    with open_checkpoint(path) as checkpoint, pytest.raises(CheckpointInvalid) as caught:
        template_source(checkpoint)
    assert str(caught.value) == (f"checkpoint {path}: chat_template.jinja is no UTF-8: byte 0xe9 at position 3, line 2")


def test_a_tied_head_and_old_buffers_are_ignored_by_name(tmp_path):
    path = make_tiny(tmp_path, "llama")
    file = path / "model.safetensors"
    weights = load_file(file)
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"].clone()
    weights["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(8)
    save_file(weights, file)
    with open_checkpoint(path) as checkpoint:
        assert sorted(checkpoint.ignored) == [
            "lm_head.weight",
            "model.layers.0.self_attn.rotary_emb.inv_freq",
        ]
        assert "lm_head.weight" not in checkpoint.tensors


def _remove_shard(path):
    (path / "model-00002-of-00003.safetensors").unlink()


def _truncate(path):
    file = path / "model-00001-of-00003.safetensors"
    file.write_bytes(file.read_bytes()[:-1024])


def _empty(path):
    (path / "model-00001-of-00003.safetensors").write_bytes(b"")


def _pointer(path):
    text = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n"
    (path / "model-00001-of-00003.safetensors").write_text(text)


def _header_length(path):
    file = path / "model-00001-of-00003.safetensors"
    file.write_bytes((1 << 40).to_bytes(8, "little") + file.read_bytes()[8:])


def _header_text(path):
    file = path / "model-00001-of-00003.safetensors"
    raw = file.read_bytes()
    file.write_bytes(raw[:8] + b"x" + raw[9:])


def _overlap(path):
    file = path / "model-00001-of-00003.safetensors"
    raw = file.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + length])
    one, other = (name for name in header if name.endswith(("2.mlp.up_proj.weight", "1.mlp.gate_proj.weight")))
    header[one]["data_offsets"] = header[other]["data_offsets"]
    text = json.dumps(header).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text + raw[8 + length :])


def _short(path):
    (path / "model-00001-of-00003.safetensors").write_bytes(b"abc")


def _edit_index(path, edit):
    file = path / "model.safetensors.index.json"
    index = json.loads(file.read_text())
    edit(index["weight_map"])
    file.write_text(json.dumps(index))


def _unlist(path):
    _edit_index(path, lambda listed: listed.pop("model.norm.weight"))


def _misplace(path):
    _edit_index(path, lambda listed: listed.update({"model.extra.weight": "model-00001-of-00003.safetensors"}))


def _escape(path):
    _edit_index(path, lambda listed: listed.update({"model.norm.weight": "../other.safetensors"}))


def _duplicate(path):
    first, second = (path / f"model-0000{i}-of-00003.safetensors" for i in (1, 2))
    weights = load_file(first)
    name = next(iter(weights))
    save_file(load_file(second) | {name: weights[name]}, second)


def _no_config(path):
    (path / "config.json").unlink()


def _bad_config(path):
    (path / "config.json").write_text("{")


def _dtype(path):
    file = path / "model-00001-of-00003.safetensors"
    weights = load_file(file)
    save_file({name: weight.to(torch.float64) for name, weight in weights.items()}, file)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (_remove_shard, "shard model-00002-of-00003.safetensors is missing, model.safetensors.index.json lists it"),
        (_truncate, "shard model-00001-of-00003.safetensors is truncated"),
        (_truncate, "1,024 bytes are missing"),
        (_empty, "shard model-00001-of-00003.safetensors is empty (0 bytes)"),
        (_pointer, "is a Git LFS pointer, not the weights; run `git lfs pull`"),
        (_header_length, "its header claims 1,099,511,627,776 bytes"),
        (_header_text, "has a corrupt header"),
        (_overlap, "lie over each other"),
        (_short, "is truncated or not safetensors"),
        (_unlist, "holds model.norm.weight, which model.safetensors.index.json does not place there"),
        (_misplace, "lacks model.extra.weight"),
        (_escape, "../other.safetensors are not names of files beside it"),
        (_duplicate, "is in both model-00001-of-00003.safetensors and model-00002-of-00003.safetensors"),
        (_no_config, "config.json is missing"),
        (_bad_config, "config.json is not readable JSON"),
        (_dtype, "is stored as F64, which is not supported"),
    ],
)
def test_a_damaged_directory_is_refused_with_the_reason(tmp_path, damage, words):
    path = make_tiny(tmp_path, "qwen3", shards=3)
    damage(path)
    message = refusal(path)
    assert words in message
    assert str(path) in message


def test_all_damages_are_told_at_once(tmp_path):
    path = make_tiny(tmp_path, "qwen3", shards=3)
    _truncate(path)
    _remove_shard(path)
    _no_config(path)
    message = refusal(path)
    assert "3 problems" in message
    assert all(words in message for words in ("truncated", "00002-of-00003.safetensors is missing", "config.json"))


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({"vocab_size": 500}, "model.embed_tokens.weight has shape [512, 64], the config asks for [500, 64]"),
        ({"num_hidden_layers": 4}, "11 tensors are missing: model.layers.3.input_layernorm.weight"),
        ({"num_hidden_layers": 2}, "11 tensors are not part of Qwen3ForCausalLM: model.layers.2."),
        ({"tie_word_embeddings": False}, "1 tensors are missing: lm_head.weight"),
    ],
)
def test_a_config_that_does_not_fit_the_weights_is_refused(tmp_path, overrides, words):
    path = make_tiny(tmp_path, "qwen3")
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | overrides))
    assert words in refusal(path)


def test_a_deleted_tensor_is_missed(tmp_path):
    path = make_tiny(tmp_path, "qwen2")
    weights = load_file(path / "model.safetensors")
    del weights["model.layers.1.self_attn.k_proj.bias"]
    save_file(weights, path / "model.safetensors")
    assert "1 tensors are missing: model.layers.1.self_attn.k_proj.bias" in refusal(path)


def test_other_formats_beside_safetensors_are_ignored_and_said(tmp_path):
    path = make_tiny(tmp_path, "llama")
    for name in ("pytorch_model.bin", "consolidated.safetensors", "training_args.bin", "x.gguf"):
        (path / name).write_bytes(b"other")
    with open_checkpoint(path) as checkpoint:
        assert checkpoint.notes == (
            "reads model.safetensors; ignores consolidated.safetensors, pytorch_model.bin, x.gguf",
        )


def test_pickles_alone_are_refused(tmp_path):
    path = make_tiny(tmp_path, "llama")
    (path / "model.safetensors").rename(path / "pytorch_model.bin")
    (path / "training_args.bin").write_bytes(b"x")
    message = refusal(path)
    assert "only as pickle files (pytorch_model.bin)" in message
    assert "convert them to safetensors" in message


def test_numbered_shards_need_no_index(tmp_path):
    path = make_tiny(tmp_path, "llama", shards=3)
    (path / "model.safetensors.index.json").unlink()
    with open_checkpoint(path) as checkpoint:
        assert set(checkpoint.tensors) == set(expected_tensors(checkpoint.config))
    _remove_shard(path)
    assert "shard model-00002-of-00003.safetensors is missing" in refusal(path)


def test_what_is_no_checkpoint_is_refused(tmp_path):
    assert "there is no such file or directory" in refusal(tmp_path / "absent")
    assert "has no weights" in refusal(tmp_path)
    (tmp_path / "x.txt").write_text("hello")
    assert "unknown format" in refusal(tmp_path / "x.txt")


def test_a_directory_with_one_gguf_file_is_that_file(tmp_path):
    path = make_tiny(tmp_path / "hf", "qwen2")
    (tmp_path / "g").mkdir()
    file = write_gguf(path, tmp_path / "g" / "a.gguf")
    with open_checkpoint(tmp_path / "g") as checkpoint:
        assert (checkpoint.format, checkpoint.path) == ("gguf", file)
    write_gguf(path, tmp_path / "g" / "b.gguf")
    assert "several GGUF files (a.gguf, b.gguf)" in refusal(tmp_path / "g")
