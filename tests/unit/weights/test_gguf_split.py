"""Split GGUF files: the parts read like the whole, and what doesn't fit together is told by its part."""

import gguf
import pytest
import torch

from anychip.weights.checkpoint import open_checkpoint
from anychip_sdk.errors import CheckpointInvalid
from support.tiny_models import make_tiny, write_gguf


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    return write_gguf(make_tiny(folder / "hf", "llama", tokenizer=True), folder / "x.gguf")


@pytest.fixture
def parts(whole, tmp_path):
    return split(whole, tmp_path / "parts", 3)


def split(whole, folder, count):
    """As llama.cpp's gguf-split does it: all metadata in the first part, numbers in each."""
    folder.mkdir()
    reader = gguf.GGUFReader(whole)
    tensors = reader.tensors
    size = -(-len(tensors) // count)
    files = []
    for at in range(count):
        files.append(folder / f"x-{at + 1:05}-of-{count:05}.gguf")
        writer = gguf.GGUFWriter(files[-1], "llama")
        for field in reader.fields.values() if at == 0 else ():
            if not field.name.startswith(("GGUF.", "general.architecture")):
                kind = field.types[0]
                item = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
                writer.add_key_value(field.name, field.contents(), kind, item)
        writer.add_uint16("split.no", at)
        writer.add_uint16("split.count", count)
        writer.add_int32("split.tensors.count", len(tensors))
        for tensor in tensors[at * size : (at + 1) * size]:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    return files


def refusal(path):
    with pytest.raises(CheckpointInvalid) as caught:
        open_checkpoint(path)
    return str(caught.value)


def test_the_parts_read_like_the_whole(whole, parts):
    for named in (*parts, parts[0].parent):
        with open_checkpoint(whole) as one, open_checkpoint(named) as other:
            assert one.config == other.config
            assert list(one.tensors) == list(other.tensors)
            assert all(torch.equal(one.read(name), other.read(name)) for name in one.tensors)


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_a_missing_part_is_named(parts, missing):
    parts[missing].unlink()
    there = parts[0 if missing else 1]
    words = f"1 parts are missing: part {missing + 1} of 3: {parts[missing].name}"
    assert words in refusal(there)
    assert words in refusal(there.parent)


def test_a_part_in_another_s_place_is_told(parts):
    parts[1].write_bytes(parts[2].read_bytes())
    assert f"{parts[1].name}: split.no and split.count are 2 and 3, expected 1 and 3" in refusal(parts[0])


def test_a_part_under_another_name_says_what_it_is(parts):
    alone = parts[1].rename(parts[1].with_name("alone.gguf"))
    message = refusal(alone)
    assert "is part 2 of 3, and its name doesn't say so" in message
    assert "alone-00001-of-00003.gguf" in message


def test_two_models_of_parts_in_one_folder_are_told_apart(whole, parts):
    (parts[0].parent / "y.gguf").write_bytes(whole.read_bytes())
    assert f"several GGUF files ({parts[0].name}, y.gguf)" in refusal(parts[0].parent)


def test_a_count_of_parts_is_not_believed(parts):
    alone = parts[0].rename(parts[0].with_name("x-00001-of-99999.gguf"))
    message = refusal(alone)
    assert "99998 parts are missing: part 2 of 99999: x-00002-of-99999.gguf" in message
    assert len(message) < 2000
