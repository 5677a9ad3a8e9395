"""A parameter is put together from pieces of tensors, whatever their layout, and no piece is large. Knows no graph."""

import json

import pytest
import torch
from safetensors.torch import save_file

from anychip.models.source import Source
from anychip.weights import load as load_module
from anychip.weights.checkpoint import open_checkpoint
from anychip.weights.load import Parameter, Shard, check_complete, load, load_quantized, slices_of
from anychip.weights.pieces import assembled, coverage, pieces, read_blocks
from anychip.weights.quantize import dequantized, quantize
from anychip.weights.schemes import Scheme
from anychip_sdk.errors import CheckpointInvalid
from anychip_sdk.testing import ReferenceDevice
from support.tiny_models import make_tiny, write_gguf

Q = "model.layers.0.self_attn.q_proj.weight"  # (64, 64)
GATE = "model.layers.0.mlp.gate_proj.weight"  # (128, 64)
DOWN = "model.layers.0.mlp.down_proj.weight"  # (64, 128)


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return make_tiny(tmp_path_factory.mktemp("tiny") / "llama", "llama")


@pytest.fixture
def checkpoint(directory):
    with open_checkpoint(directory) as opened:
        yield opened


class Tensors:
    """Tensors of any names and shapes where a checkpoint is read."""

    path = "memory"

    def __init__(self, **tensors):
        self.whole = tensors
        self.tensors = dict(tensors)
        self.largest = 0

    def read(self, name, rows):
        tensor = self.whole[name]
        found = (tensor if tensor.ndim < 2 else tensor.flatten(0, -2))[rows]
        self.largest = max(self.largest, found.numel())
        return found

    def differing_copies(self):
        return []


def loaded(checkpoint, shape, *sources):
    parameter = Parameter("p", shape, sources)
    return load(parameter, checkpoint, ReferenceDevice(), torch.float32, lambda *_: None, Shard())


STACK = torch.arange(5 * 6 * 4, dtype=torch.float32).view(5, 6, 4)


@pytest.mark.parametrize("slice_bytes", [1, 40, 64 << 20])
@pytest.mark.parametrize(
    ("source", "wanted"),
    [
        (Source("t", (5, 6, 4)), STACK.view(30, 4)),
        (Source("t", (5, 6, 4), range(7, 13)), STACK.view(30, 4)[7:13]),
        (Source("t", (5, 6, 4), range(1, 30, 2)), STACK.view(30, 4)[1::2]),
        (Source("t", (5, 6, 4), transposed=True), STACK.mT.reshape(20, 6)),
        (Source("t", (5, 6, 4), range(3, 18), transposed=True), STACK.mT.reshape(20, 6)[3:18]),
        (Source("t", (5, 6, 4), range(1, 20, 3), transposed=True), STACK.mT.reshape(20, 6)[1::3]),
        (Source("t", (5, 6, 4), range(8, 12), range(2, 5), transposed=True), STACK.mT.reshape(20, 6)[8:12, 2:5]),
        (Source("t", (5, 6, 4), None, range(1, 3)), STACK.view(30, 4)[:, 1:3]),
        (
            Source("t", (5, 6, 4), range(2), range(3), padding=(2, 1)),
            torch.tensor([[0.0, 1, 2, 0], [4, 5, 6, 0], [0, 0, 0, 0], [0, 0, 0, 0]]),
        ),
    ],
)
def test_rows_columns_transposition_and_padding_are_as_the_source_says(monkeypatch, slice_bytes, source, wanted):
    monkeypatch.setattr(load_module, "SLICE_BYTES", slice_bytes)
    assert source.size == tuple(wanted.shape)
    assert torch.equal(loaded(Tensors(t=STACK), wanted.shape, source), wanted)
    assert torch.equal(assembled([source], {"t": STACK}).view(wanted.shape), wanted)


def test_experts_follow_one_another_gate_before_up():
    gates, ups = torch.randn(3, 2, 4), torch.randn(3, 2, 4)
    tensors = {f"{kind}{e}": stack[e] for kind, stack in (("gate", gates), ("up", ups)) for e in range(3)}
    sources = [Source(f"{kind}{e}", (2, 4)) for e in range(3) for kind in ("gate", "up")]
    found = loaded(Tensors(**tensors), (3, 4, 4), *sources)
    assert torch.equal(found, torch.cat((gates, ups), dim=1))


def test_a_stack_with_alternating_columns_is_the_same_parameter():
    """gpt-oss: [experts, in, 2 * inner], gate and up in turn."""
    gates, ups = torch.randn(3, 2, 4), torch.randn(3, 2, 4)
    stored = torch.stack((gates, ups), dim=2).flatten(1, 2).mT.contiguous()  # [3, 4, 4]
    sources = [
        Source("t", (3, 4, 4), range(4 * expert + odd, 4 * expert + 4, 2), transposed=True)
        for expert in range(3)
        for odd in (0, 1)
    ]
    assert torch.equal(loaded(Tensors(t=stored), (3, 4, 4), *sources), torch.cat((gates, ups), dim=1))


def test_biases_of_a_stack_are_one_after_the_other():
    biases = torch.arange(12.0).view(3, 4)
    tensors = Tensors(**{f"b{e}": biases[e] for e in range(3)})
    assert torch.equal(loaded(tensors, (3, 4), *(Source(f"b{e}", (4,)) for e in range(3))), biases)


def test_no_more_than_a_slice_is_read_at_once(monkeypatch):
    monkeypatch.setattr(load_module, "SLICE_BYTES", 64)
    stacked = Tensors(t=STACK)
    loaded(stacked, (5, 6, 4), Source("t", (5, 6, 4)))
    assert stacked.largest == 16
    assert [len(one.rows) for one in pieces([Source("t", (5, 6, 4), range(10))], 64)] == [4, 4, 2]


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "Q4_1"])
def test_a_files_own_integers_are_cut_at_blocks_and_padded_with_zeros(directory, tmp_path, kind):
    scheme = Scheme(8 if kind == "Q8_0" else 4, 32, has_minimum=kind == "Q4_1", is_stored=True)
    sources = (Source(DOWN, (64, 128), range(0, 64, 2), range(32, 96), padding=(3, 32)),)
    with open_checkpoint(write_gguf(directory, tmp_path / "m.gguf", kind)) as checkpoint:
        parameter = Parameter("down", (35, 96), sources, scheme)
        found = load_quantized(parameter, checkpoint, ReferenceDevice(), lambda *_: None, Shard())
        wanted = torch.zeros(35, 96)
        wanted[:32, :64] = checkpoint.read(DOWN)[::2, 32:96]
        assert torch.equal(dequantized(found.parts, scheme), wanted)
        [piece] = pieces([Source(DOWN, (64, 128), None, range(16, 96))], 1 << 20)
        with pytest.raises(ValueError, match="no whole blocks of 32"):
            read_blocks(checkpoint, piece)


def test_quantized_pieces_are_the_quantized_whole(checkpoint):
    scheme, shape = Scheme(8), (2, 64, 64)
    sources = (Source(GATE, (128, 64), range(64, 128)), Source(GATE, (128, 64), range(64)))
    parameter = Parameter("experts", shape, sources, scheme)
    found = load_quantized(parameter, checkpoint, ReferenceDevice(), lambda *_: None, Shard())
    whole = checkpoint.read(GATE).clone()
    wanted = quantize(torch.cat((whole[64:], whole[:64])), scheme)
    assert found.parts["scale"].shape == (2, 64, 1)
    assert torch.equal(found.parts["weight"].flatten(0, 1), wanted["weight"])


def test_a_parameter_may_have_a_dtype_of_its_own(checkpoint):
    parameter = Parameter("bias", (64, 64), (Source(Q, (64, 64)),), dtype=torch.float32)
    found = load(parameter, checkpoint, ReferenceDevice(), torch.bfloat16, lambda *_: None, Shard())
    assert found.dtype == torch.float32
    assert parameter.nbytes(torch.bfloat16) == 4 * 64 * 64


# --- everything is read once ---


@pytest.mark.parametrize(
    ("sources", "is_whole", "is_repeated"),
    [
        ([Source("t", (6, 4))], True, False),
        ([Source("t", (6, 4), range(3)), Source("t", (6, 4), range(3, 6))], True, False),
        ([Source("t", (6, 4), range(0, 6, 2)), Source("t", (6, 4), range(1, 6, 2))], True, False),
        ([Source("t", (6, 4), range(3)), Source("t", (6, 4), range(4, 6))], False, False),
        ([Source("t", (6, 4), range(4)), Source("t", (6, 4), range(3, 6))], True, True),
        ([Source("t", (6, 4), None, range(2)), Source("t", (6, 4), None, range(2, 4))], True, False),
        ([Source("t", (6, 4), None, range(2))], False, False),
        ([Source("t", (6, 4), None, range(3)), Source("t", (6, 4), None, range(2, 4))], True, True),
        ([Source("t", (6, 4)), Source("t", (6, 4))], True, True),
    ],
)
def test_rows_and_columns_are_counted(sources, is_whole, is_repeated):
    assert coverage(sources, []) == (is_whole, is_repeated)
    assert coverage([], sources) == (is_whole, is_repeated)


def test_what_is_read_plain_may_be_read_once_more_to_be_quantized():
    half = Source("t", (6, 4), range(3))
    assert coverage([Source("t", (6, 4))], [half]) == (True, False)
    assert coverage([half], [Source("t", (6, 4), range(3, 6))]) == (True, False)
    assert coverage([half], [half]) == (False, False)


def test_a_row_that_no_parameter_reads_and_one_that_stays_unfilled_are_errors():
    checkpoint = Tensors(t=torch.zeros(6, 4))
    parameters = [Parameter("p", (6, 4), (Source("t", (6, 4), range(5)),))]
    with pytest.raises(CheckpointInvalid) as failed:
        check_complete(parameters, checkpoint)
    assert failed.value.message.splitlines()[1:] == [
        "  parameter p has 24 numbers, its tensors give 20",
        "  tensor t is used only in part",
    ]


def test_a_stack_on_disk_is_read_by_rows_of_its_matrices(tmp_path, directory):
    folder = tmp_path / "stacked"
    folder.mkdir()
    config = json.loads((directory / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config))
    with open_checkpoint(directory) as opened:
        tensors = {name: opened.read(name).clone() for name in opened.tensors}
    save_file(tensors, folder / "model.safetensors")
    with open_checkpoint(folder) as opened:
        info = opened.tensors[GATE]
        opened.tensors[GATE] = type(info)(GATE, (4, 32, 64), info.dtype, info.storage, info.nbytes)
        assert opened.read(GATE).shape == (4, 32, 64)
        assert torch.equal(opened.read(GATE, slice(40, 70)), tensors[GATE][40:70])


LAYOUTS = {
    "stacked": (Source("stack", (6, 10, 8)),),
    "transposed": (Source("turned", (6, 8, 10), transposed=True),),
    "an expert each": tuple(Source(f"e{expert}", (10, 8)) for expert in range(6)),
    "halves that alternate": tuple(
        Source("stack", (6, 10, 8), range(10 * expert + half, 10 * expert + 10, 2))
        for expert in range(6)
        for half in range(2)
    ),
    "padded": tuple(Source(f"e{expert}", (10, 8), range(7), range(5), padding=(3, 3)) for expert in range(6)),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_stack_of_experts_may_be_loaded_one_by_one(layout):
    stack = torch.arange(480.0).view(6, 10, 8)
    single = {f"e{expert}": stack[expert] for expert in range(6)}
    checkpoint = Tensors(stack=stack, turned=stack.transpose(1, 2).contiguous(), **single)
    parameter = Parameter("p", (6, 10, 8), LAYOUTS[layout])
    whole = loaded(checkpoint, parameter.shape, *parameter.sources)
    parts = [loaded(checkpoint, one.shape, *one.sources) for one in slices_of(parameter)]
    assert [part.shape for part in parts] == [(1, 10, 8)] * 6
    assert torch.equal(torch.cat(parts), whole)
