"""Checkpoints from strangers: each refused with file, key and value, within a second and 200 MB."""

from __future__ import annotations

import json
import os
import resource
import struct
import time
from pathlib import Path

import psutil
import pytest

from anychip.weights.checkpoint import open_checkpoint
from anychip_sdk.errors import CheckpointInvalid
from support.tiny_models import make_tiny, write_gguf

MEGABYTES = 200
SECONDS = 1.0  # of this process, however busy the machine is


@pytest.fixture(scope="module")
def intact(tmp_path_factory):
    folder = tmp_path_factory.mktemp("intact")
    path = make_tiny(folder / "hf", "llama", tokenizer=True)
    file = write_gguf(path, folder / "x.gguf")
    for one in (path, file):  # imports and threads are not the files'
        open_checkpoint(one).close()
    return path, file


@pytest.fixture
def model(intact, tmp_path):
    """A folder to spoil."""
    path = tmp_path / "model"
    path.mkdir()
    for file in intact[0].iterdir():
        (path / file.name).write_bytes(file.read_bytes())
    return path


def refusal(path):
    """What is said, within the bounds."""
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    soft = psutil.Process().memory_info().data + MEGABYTES * 10**6
    start_s = time.process_time()
    resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
    try:
        with pytest.raises(CheckpointInvalid) as caught:
            open_checkpoint(path)
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))
    assert time.process_time() - start_s < SECONDS
    text = str(caught.value)
    assert len(text) < 25_000
    return text


def edit(file, **changes):
    content = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps({**content, **changes}))


NAN, INFINITY = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_hidden_layers": 10**9}, "config.json: num_hidden_layers is 1000000000, expected at most 2,048"),
        ({"num_hidden_layers": 2000}, "num_hidden_layers is 2,000, the files hold"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0, expected a whole number of at least 1"),
        ({"num_hidden_layers": -1}, "num_hidden_layers is -1"),
        ({"num_hidden_layers": True}, "num_hidden_layers is True"),
        ({"num_hidden_layers": 3.0}, "num_hidden_layers is 3.0, expected a whole number"),
        ({"vocab_size": 300_000_000}, "vocab_size is 300000000, expected at most 4,194,304"),
        ({"hidden_size": 10**12}, "hidden_size is 1000000000000, expected at most"),
        ({"hidden_size": 2**24, "intermediate_size": 2**24, "vocab_size": 2**22}, "the config asks for"),
        ({"num_attention_heads": 10**6}, "num_attention_heads is 1000000, expected at most"),
        ({"num_attention_heads": 2**14, "head_dim": 2**14, "hidden_size": 2**24}, "the config asks for"),
        ({"head_dim": 10**9}, "head_dim is 1000000000"),
        ({"head_dim": None, "num_attention_heads": 2, "hidden_size": 2**20}, "above 16,384"),
        ({"max_position_embeddings": 10**15}, "max_position_embeddings is 1000000000000000, expected at most"),
        ({"rope_theta": 10**400}, "config.json says rope_theta is a whole number of 1,329 bits, expected a finite"),
        ({"rope_theta": NAN}, "config.json says rope_theta is NaN, expected a finite number"),
        ({"rope_theta": -INFINITY}, "config.json says rope_theta is -Infinity"),
        ({"rope_theta": 0}, "config.json: rope_theta is 0, expected a number above 1"),
        ({"rope_theta": 1.0}, "rope_theta is 1.0, expected a number above 1"),
        ({"rope_theta": 1e300}, "at most 1e+12"),
        ({"rope_theta": True}, "rope_theta is True, expected a finite number"),
        ({"rms_norm_eps": -1}, "config.json: rms_norm_eps is -1, expected a number above 0 and at most 1"),
        ({"rms_norm_eps": 0.0}, "rms_norm_eps is 0.0"),
        ({"rms_norm_eps": 5}, "rms_norm_eps is 5"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": NAN}}, "says rope_scaling.factor is NaN"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": -4}}, "factor is -4, expected a number above 0"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 1e30}}, "factor is 1e+30"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4, "beta_fast": 0}}, "beta_fast is 0"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4, "mscale": -7.2}}, "mscale is -7.2"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 4}}, "more than low_freq_factor"),
        ({"layer_types": ["x"] * 10**5}, "config.json: layer_types is ['x', 'x', 'x', 'x', 'x', 'x', ...], expected"),
        ({"deep": [[[[]]]] * 10}, ""),
        ({"torch_dtype": "x" * 10**6}, "torch_dtype is 'xxxx"),
        ({"x": [[]] * 600_000}, "config.json holds up to 1,"),
        ({"\u001b[31m": 10**400}, r"says \x1b[31m is a whole number of 1,329 bits"),
    ],
)  # fmt: skip
def test_an_absurd_value_of_a_config_is_refused_with_file_key_and_value(model, changes, words):
    edit(model / "config.json", **changes)
    if not words:
        open_checkpoint(model).close()
        return
    message = refusal(model)
    assert words in message
    assert str(model) in message


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"temperature": NAN}, "generation_config.json says temperature is NaN"),
        (
            {"temperature": -1},
            "generation_config.json: temperature is -1, expected a number at least 0 and at most 100",
        ),
        ({"top_p": True}, "generation_config.json: top_p is True"),
        ({"top_p": 7}, "top_p is 7, expected a number above 0 and at most 1"),
        ({"top_k": 10**18}, "top_k is 1000000000000000000"),
        ({"repetition_penalty": 0}, "repetition_penalty is 0"),
    ],
)
def test_absurd_defaults_of_sampling_are_refused(model, changes, words):
    edit(model / "generation_config.json", **changes)
    assert words in refusal(model)


DEEP = b'{"a":' * 100_000
TEXTS = {
    "deep objects": (DEEP, "is not readable JSON: its objects and lists nest too deeply"),
    "levels": (b'{"a":' + b"[" * 40 + b"]" * 40 + b"}", "nests more than 32 levels of objects and lists, at a"),
    "twice": (b'{"a": 1, "a": 2}', "is not readable JSON: key 'a' is there twice"),
    "no object": (b"[1]", "holds list, expected an object"),
    "no JSON": (b"{", "is not readable JSON: "),
    "latin-1": ('{"a":\n "é"}'.encode("latin-1"), "is no UTF-8: byte 0xe9 at position 8, line 2"),
    "UTF-16": ('{"a": 1}'.encode("utf-16"), "is no UTF-8: byte 0xff at position 0, line 1"),
    "digits": (b'{"a": ' + b"9" * 5000 + b"}", "is not readable JSON: Exceeds the limit"),
    "exponent": (b'{"a": 1e400}', "says a is Infinity, or beyond what a number holds"),
    "long": (b" " * (33 << 20), "has 34,603,008 bytes, expected at most 33,554,432"),
    "values": (b'{"a":[' + b"1," * 3_000_000 + b"1]}", "holds up to 3,000,003 values, expected at most"),
    "nothing": (b"", "is not readable JSON"),
}


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize(
    "name",
    ["config.json", "generation_config.json", "tokenizer_config.json", "special_tokens_map.json",
     "model.safetensors.index.json"],
)  # fmt: skip
def test_json_that_can_not_be_taken_is_refused_with_its_file(model, name, text):
    content, words = TEXTS[text]
    if "index" in name:
        (model / "model.safetensors").rename(model / "model-00001-of-00001.safetensors")
    (model / name).write_bytes(content)
    assert f"{name} {words}" in refusal(model)


@pytest.mark.parametrize(
    "name", ["config.json", "tokenizer_config.json", "tokenizer.json", "chat_template.jinja", "model.safetensors"]
)
@pytest.mark.parametrize("kind", ["dangling", "loop", "folder", "pipe", "device"])
def test_what_is_no_file_is_named_and_never_waited_for(model, name, kind):
    file = model / name
    file.unlink()
    if kind == "folder":
        file.mkdir()
    elif kind == "pipe":
        os.mkfifo(file)
    else:
        file.symlink_to({"dangling": "nowhere", "loop": name, "device": "/dev/zero"}[kind])
    message = refusal(model)
    if name == "model.safetensors" and kind in ("folder", "pipe"):
        assert "has no weights" in message
    else:
        assert f"{name} is " in message
        assert "is missing" not in message


@pytest.mark.parametrize("shard", ["../secret.safetensors", "/etc/passwd", "a/b.safetensors", "..", "", "."])
def test_an_index_names_only_files_beside_it(model, shard):
    (model / "model.safetensors").rename(model / "model-00001-of-00001.safetensors")
    edit(model / "model.safetensors.index.json", weight_map={"model.norm.weight": shard})
    message = refusal(model)
    assert "not names of files beside it" in message or "is not a regular file" in message


def test_a_count_of_shards_in_a_name_is_not_believed(model):
    (model / "model.safetensors").rename(model / "model-00001-of-99999999999.safetensors")
    assert "shards or more, expected fewer than 10,000" in refusal(model)


# --- headers of safetensors ---


def write_header(model, change):
    file = model / "model.safetensors"
    raw = file.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header = change(json.loads(raw[8 : 8 + length]))
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text + raw[8 + length :])


def entry(**changes):
    return lambda header: {**header, "model.norm.weight": {**header["model.norm.weight"], **changes}}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda _: DEEP, "has a corrupt header: it is not readable JSON: its objects and lists nest too deeply"),
        (lambda _: b'{"a":{},"a":{}}', "key 'a' is there twice"),
        (lambda _: b"[]", "has a corrupt header: it holds list"),
        (lambda _: b" " * 33_000_000, "has a header of 33,000,000 bytes, expected at most 32,000,000"),
        (lambda _: b'{"a":[' + b"[]," * 2_000_000 + b"[]]}", "values, expected at most"),
        (entry(shape=[-64]), "model.norm.weight has a corrupt header entry"),
        (entry(shape=[True]), "model.norm.weight has a corrupt header entry"),
        (entry(shape=[2**62, 2**62]), "which needs"),
        (entry(shape=[10**30]), "says model.norm.weight.shape is a whole number of 100 bits"),
        (entry(shape=[1] * 100 + [64]), "has 101 dimensions, expected at most 8"),
        (entry(shape=[0], data_offsets=[0, 0]), "256 bytes belong to no tensor"),
        (entry(data_offsets=[2**63, 2**63 + 256]), "is truncated"),
        (entry(data_offsets=[256, 0]), "which needs 256 bytes"),
        (entry(data_offsets=[0]), "has a corrupt header entry"),
        (entry(dtype="F128"), "has dtype F128, which is unknown"),
        (entry(dtype={"F32": 1}), "which is unknown"),
        (entry(data_offsets=[0, 256]), "lie over each other"),
        (lambda header: {k: v for k, v in header.items() if k != "model.norm.weight"}, "256 bytes belong to no tensor"),
        (lambda header: dict.fromkeys(map(str, range(90_000)), 5), "and 89980 more"),
    ],
)
def test_an_impossible_header_is_refused_with_its_shard(model, change, words):
    write_header(model, change)
    message = refusal(model)
    assert words in message
    assert "model.safetensors" in message


# --- GGUF ---


def text(value):
    raw = value if isinstance(value, bytes) else value.encode()
    return struct.pack("<Q", len(raw)) + raw


def key(name, kind, payload):
    return text(name) + struct.pack("<I", kind) + payload


def gguf_header(*keys, tensors=(), keys_said=None, tensors_said=None):
    counts = struct.pack("<QQ", len(tensors) if tensors_said is None else tensors_said, keys_said or len(keys))
    return b"GGUF" + struct.pack("<I", 3) + counts + b"".join(keys) + b"".join(tensors)


def tensor(name="x", shape=(4,), kind=0, offset=0):
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)


ARCHITECTURE = key("general.architecture", 8, text("llama"))


@pytest.mark.parametrize(
    ("header", "size", "words"),
    [
        (gguf_header(key("a", 9, struct.pack("<IQ", 0, 300_000_000))), 301_000_000,
         "metadata a: is an array of 300,000,000 values, expected at most 1,048,576"),
        (gguf_header(key("a", 9, struct.pack("<IQ", 8, 30_000_000))), 301_000_000, "a: is an array of 30,000,000"),
        (gguf_header(key("a", 9, struct.pack("<IQ", 8, 1_000_000))), 301_000_000, "architecture 'None'"),
        (gguf_header(key("a", 9, struct.pack("<IQ", 8, 2) + text("b") + struct.pack("<Q", 2**63))), 0, "truncated, or"),
        (gguf_header(key("a", 9, struct.pack("<IQ", 10, 2**63))), 0, "metadata a: the file is truncated"),
        (gguf_header(key("a", 9, struct.pack("<IQ", 9, 1))), 0, "metadata arrays of type 9 are unknown"),
        (gguf_header(key("a", 8, struct.pack("<Q", 2**63))), 0, "metadata a: the file is truncated: a text of"),
        (gguf_header(key("a", 8, struct.pack("<Q", 200_000_000))), 301_000_000, "a: has a text of 200,000,000"),
        (gguf_header(key("a", 8, text(b"caf\xe9"))), 0, "metadata a is no UTF-8: byte 0xe9 at position 3"),
        (gguf_header(key("a" * 5000, 8, text("b"))), 0, "has a text of 5,000 bytes, expected at most 4,096"),
        (gguf_header(ARCHITECTURE, ARCHITECTURE), 0, "metadata general.architecture is there twice"),
        (gguf_header(keys_said=2**63), 0, "the file is truncated: 9,223,372,036,854,775,808 metadata keys"),
        (gguf_header(keys_said=10**6), 301_000_000, "says that it has 1,000,000 metadata keys, expected at most"),
        (gguf_header(tensors_said=10**6), 301_000_000, "says that it has 1,000,000 tensors, expected at most"),
        (gguf_header(key("a", 99, b"")), 0, "metadata a: metadata type 99 is unknown"),
        *((gguf_header(key("general.alignment", kind, struct.pack(code, value))), 0, f"general.alignment is {value!r}")
          for kind, code, value in [(4, "<I", 0), (10, "<Q", 2**40), (7, "<?", True), (5, "<i", -32), (6, "<f", 32.0)]),
        (gguf_header(ARCHITECTURE, tensors=[tensor(shape=(2**62, 2**62))]), 4096, "is truncated"),
        (gguf_header(ARCHITECTURE, tensors=[tensor(shape=(1,) * 5)]), 4096, "'x' has 5 dimensions, expected at most 4"),
        (gguf_header(ARCHITECTURE, tensors=[tensor(offset=2**63)]), 4096, "is truncated"),
        (gguf_header(ARCHITECTURE, tensors=[tensor("x"), tensor("y", offset=8)]), 4096, "x and y lie over each other"),
        (gguf_header(ARCHITECTURE, tensors=[tensor("x"), tensor("x", offset=32)]), 4096, "listed twice"),
    ],
)  # fmt: skip
def test_an_impossible_gguf_header_is_refused_with_its_key(intact, tmp_path, header, size, words):
    file = tmp_path / "x.gguf"
    file.write_bytes(header)
    if size:
        os.truncate(file, size)  # zeros that take no disk
    message = refusal(file)
    assert words in message
    assert str(file) in message


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("llama.rope.freq_base", NAN, "rope_theta is nan, expected a finite number"),
        ("llama.rope.freq_base", -INFINITY, "rope_theta is -inf"),
        ("llama.rope.freq_base", 0.0, "rope_theta is 0.0, expected a number above 1"),
        ("llama.attention.layer_norm_rms_epsilon", -1.0, "rms_norm_eps is -1.0, expected a number above 0"),
        ("llama.attention.layer_norm_rms_epsilon", NAN, "rms_norm_eps is nan"),
        ("llama.block_count", 10**9, "num_hidden_layers is 1000000000, expected at most 2,048"),
        ("llama.block_count", 2000, "num_hidden_layers is 2,000, the files hold"),
        ("llama.attention.head_count", 0, "num_attention_heads 1 is not a multiple of num_key_value_heads 2"),
        ("llama.context_length", 2**32 - 1, "max_position_embeddings is 4294967295"),
        ("llama.embedding_length", 2**32 - 1, "hidden_size is 4294967295"),
    ],
)
def test_an_absurd_value_of_gguf_metadata_is_refused_with_file_key_and_value(intact, tmp_path, name, value, words):
    raw = intact[1].read_bytes()
    at = raw.index(text(name)) + len(text(name)) + 4
    code = "<f" if isinstance(value, float) else "<I"
    file = tmp_path / "spoilt.gguf"
    file.write_bytes(raw[:at] + struct.pack(code, value) + raw[at + 4 :])
    message = refusal(file)
    assert words in message
    assert "spoilt.gguf" in message


def test_a_folder_that_can_not_be_listed_is_a_refusal(model, monkeypatch):
    def denied(self):
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "iterdir", denied)
    assert f"checkpoint {model}: {model}: Permission denied" in refusal(model)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer_config.json"])
def test_a_file_that_can_not_be_read_is_a_refusal(model, monkeypatch, name):
    opened = Path.open

    def denied(self, *args, **options):
        if self.name == name:
            raise PermissionError(13, "Permission denied", str(self))
        return opened(self, *args, **options)

    monkeypatch.setattr(Path, "open", denied)
    assert f"{name} can't be read: Permission denied" in refusal(model)
