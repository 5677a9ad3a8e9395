"""A captured piece of a program by hand, against the interpreter: no engine and no platform."""

import pytest
import torch

from anychip_kunlun.graphs import STACK_VARIABLE, VARIABLE
from anychip_sdk.hooks import CompileContext
from anychip_sdk.program import StepInput, interpret
from anychip_sdk.step import StepLimits
from anychip_sdk.testing import random_step
from support.programs import ProgramMaker

HIDDEN, INNER, VOCAB, HEADS, KV_HEADS, HEAD_DIM, PAGES, PAGE = 64, 96, 90, 4, 2, 32, 24, 16
FACTS = {
    "hidden": HIDDEN,
    "heads": HEADS,
    "kv_heads": KV_HEADS,
    "head_dim": HEAD_DIM,
    "page_size": PAGE,
    "kv_dtype": "bfloat16",
}
DTYPE, EPS, STEP = torch.bfloat16, 1e-6, StepInput()
ROWS = 8
#: of the largest number: products of more rows may add up in another order
ROUNDINGS = 8 * torch.finfo(DTYPE).eps


class Decoder(ProgramMaker):
    """Two layers on whole blocks, with the vendor's kernels bound."""

    def __init__(self, rig, ffn=None):
        self.generator = torch.Generator().manual_seed(0)
        step = random_step(self.generator, PAGE, PAGES, [9, 20], [(5, 5)], vocab=VOCAB)
        super().__init__(rig.backend, DTYPE, step, FACTS, lambda name, tensor, op: tensor)
        self.step, self.ffn = step, ffn or {}
        self.table = self.constant("table", torch.randn(64, HEAD_DIM, generator=self.generator))

    def weight(self, name, *shape):
        spread = shape[-1] ** -0.5 if len(shape) > 1 else 1.0
        return self.constant(name, (torch.randn(shape, generator=self.generator) * spread).to(DTYPE))

    def attention(self, layer, x):
        pages = torch.zeros(2, PAGES, KV_HEADS, PAGE, HEAD_DIM, dtype=DTYPE).normal_(generator=self.generator)
        k, v = (self.constant(f"{layer}.{name}", one.transpose(1, 2)) for name, one in zip("kv", pages, strict=True))
        qkv = self.weight(f"{layer}.qkv", (HEADS + 2 * KV_HEADS) * HEAD_DIM, HIDDEN)
        norms = self.weight(f"{layer}.q_norm", HEAD_DIM), self.weight(f"{layer}.k_norm", HEAD_DIM)
        out = self.weight(f"{layer}.out", HIDDEN, HEADS * HEAD_DIM)
        args = (x, qkv, None, *norms, EPS, self.table, k, v, STEP, out, None, HEADS, HEAD_DIM**-0.5, None, 0)
        return self.op("mha", *args)[0]

    def between(self, layer, x, residual):
        norms = [self.weight(f"{layer}.norm{number}", HIDDEN) for number in range(2)]
        x, residual = self.op("add_rms_norm", x, residual, norms[0], EPS)
        up, down = self.weight(f"{layer}.up", 2 * INNER, HIDDEN), self.weight(f"{layer}.down", HIDDEN, INNER)
        x = self.op("ffn", x, up, None, down, None, **self.ffn)
        return self.op("add_rms_norm", x, residual, norms[1], EPS)

    def whole(self):
        embedded = self.weight("embedding", VOCAB, HIDDEN)
        residual = self.op("embedding", STEP, embedded)
        x = self.op("rms_norm", residual, self.weight("first", HIDDEN), EPS)
        for layer in range(2):
            x, residual = self.between(layer, self.attention(layer, x), residual)
        x = self.op("select_rows", x, STEP, rows="logits")
        return self.program(self.op("lm_head", x, embedded, rows="logits"))


@pytest.fixture
def capturing(rig):
    """The opened rig with graphs asked for."""
    rig.stack.environ[VARIABLE] = "1"
    rig.stack.environ[STACK_VARIABLE] = rig.plugin.anychip_backend().environment[STACK_VARIABLE]
    return rig


def span(program):
    """The calls behind the first attention block, up to the second."""
    first, second = (number for number, call in enumerate(program.calls) if call.op == "mha")
    return first + 1, second


def close(got, expected):
    return all(
        (one.double() - want.double()).abs().max() <= ROUNDINGS * want.abs().max()
        for one, want in zip(got, expected, strict=True)
    )


def decode_step(rows):
    contexts = [1 + row for row in range(rows)]
    return random_step(torch.Generator().manual_seed(rows), PAGE, PAGES, contexts, [], vocab=VOCAB)


def inputs_of(piece, tokens, seed):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(tokens, *piece.shapes[name][1:], generator=generator).to(DTYPE) for name in piece.inputs]


def test_what_lies_between_two_attention_calls_gives_what_the_interpreter_gives(capturing):
    device = capturing.open()
    maker = Decoder(capturing)
    program = maker.whole()
    piece = program.piece(*span(program))
    limits = StepLimits(64, ROWS, 4, device.torch_device)
    plain = interpret(piece, maker.values, limits)
    told = []

    def generated(step, *inputs):
        told.append(step.tokens)
        return plain(step, *inputs)

    compiled = capturing.backend.compile(piece, CompileContext(device, DTYPE, maker.values, limits, generated))
    assert [call.op for call in piece.calls] == ["add_rms_norm", "ffn", "add_rms_norm"]
    with torch.inference_mode():
        for number, tokens in enumerate((3, 1, 8, 5, 2, 7, 4, 6, 3)):
            step, inputs = decode_step(tokens), inputs_of(piece, tokens, number)
            got, expected = compiled(step, *inputs), plain(step, *inputs)
            assert [one.shape for one in got] == [one.shape for one in expected]
            assert close(got, expected), f"{tokens} tokens"
            assert capturing.machine.launches["graph_replay"] == 4 + number + 1  # a trial for each size
        assert told == []
        step, inputs = decode_step(ROWS + 1), inputs_of(piece, ROWS + 1, 99)
        assert close(compiled(step, *inputs), plain(step, *inputs))
    assert told == [ROWS + 1]


def test_all_pieces_stop_with_the_first_that_cannot_be_captured(capturing, monkeypatch, caplog):
    device = capturing.open()
    maker = Decoder(capturing)
    program = maker.whole()
    first, last = span(program)
    limits = StepLimits(64, ROWS, 4, device.torch_device)
    pieces = [program.piece(first, last), program.piece(last + 1, last + 4)]
    plain = [interpret(piece, maker.values, limits) for piece in pieces]
    contexts = [CompileContext(device, DTYPE, maker.values, limits, one) for one in plain]
    compiled = [capturing.backend.compile(*pair) for pair in zip(pieces, contexts, strict=True)]

    def refuse(graph):
        raise RuntimeError("no more graphs")

    with torch.inference_mode():
        step, inputs = decode_step(2), inputs_of(pieces[0], 2, 1)
        compiled[0](step, *inputs)
        replays = capturing.machine.launches["graph_replay"]
        monkeypatch.setattr(capturing.stack.accelerator, "graph", refuse)
        for number in (1, 0, 1):
            assert close(compiled[number](step, *inputs), plain[number](step, *inputs))
    assert capturing.machine.launches["graph_replay"] == replays
    assert caplog.text.count("graphs are not used: capturing add_rms_norm to add_rms_norm failed: no more graphs") == 1


def test_calls_that_read_the_step_or_are_on_logits_or_in_another_dtype_are_refused(capturing):
    capturing.open()
    program = Decoder(capturing, ffn={"compute_dtype": torch.float32}).whole()
    found = list(zip([call.op for call in program.calls], capturing.backend.compiles(program), strict=True))
    reads, dtype = "it reads what the step's sequences are", "it is computed in another dtype than the model's"
    logits = "its rows are those whose logits are wanted, not tokens"
    layer = [("mha", reads), ("add_rms_norm", None), ("ffn", dtype), ("add_rms_norm", None)]
    assert found == [
        ("embedding", reads),
        ("rms_norm", None),
        *layer,
        *layer,
        ("select_rows", logits),
        ("lm_head", logits),
    ]


def test_nothing_is_compiled_unless_graphs_are_asked_for(rig):
    device = rig.open()
    maker = Decoder(rig)
    program = maker.whole()
    limits = StepLimits(64, ROWS, 4, device.torch_device)
    context = CompileContext(device, DTYPE, maker.values, limits, interpret(program, maker.values, limits))
    assert rig.backend.compiles(program) is None
    assert rig.backend.compile(program.piece(*span(program)), context) is None
