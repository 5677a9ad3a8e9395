"""A small decoder as a program by hand, 8-bit weights on the CPU backend's kernels. Knows no platform and no graph."""

import torch

import anychip_cpu
from anychip_cpu.device import CpuDevice
from anychip_cpu.programs import compiled
from anychip_sdk import load_backend
from anychip_sdk.hooks import CompileContext
from anychip_sdk.program import StepInput, interpret
from anychip_sdk.testing import random_step
from support.programs import ProgramMaker, unchanged, values_at

BACKEND = load_backend("cpu", anychip_cpu, distribution="anychip-cpu", version="0")
HIDDEN, INNER, VOCAB, HEADS, KV_HEADS, HEAD_DIM, PAGES, PAGE = 64, 96, 90, 4, 2, 16, 40, 4
FACTS = {"heads": HEADS, "kv_heads": KV_HEADS, "head_dim": HEAD_DIM, "kv_dtype": "float32", "group_size": 32}
STEP = StepInput()
EPS = 1e-6


def prepare(name, tensor, op):
    found = anychip_cpu.anychip_prepare_weight(name, tensor, op)
    return tensor if found is None else found.value


class Decoder(ProgramMaker):
    """Layers of the Llama family with 8-bit weights, one part after the other.

    Args:
        groups: of states; layers take turns.
        dtype: of activations and caches.
    """

    def __init__(self, groups=1, dtype=torch.float32, kv_dtype=None):
        self.generator = torch.Generator().manual_seed(0)
        self.step = random_step(self.generator, PAGE, PAGES, [9, 1, 14], [(5, 5), (7, 20)], vocab=VOCAB, groups=groups)
        kept = kv_dtype or dtype
        facts = {**FACTS, "kv_dtype": str(kept).removeprefix("torch.")}
        super().__init__(BACKEND, dtype, self.step, facts, prepare)
        self.dtype, self.groups, self.kept = dtype, groups, kept
        self.states = []
        self.table = self.constant("table", torch.randn(64, HEAD_DIM, generator=self.generator))

    def floats(self, *shape):
        return torch.randn(shape, generator=self.generator).to(self.dtype)

    def norm(self, name, size=HIDDEN):
        return self.constant(name, self.floats(size).abs() + 0.5)

    def product(self, name, x, outputs, op="linear_int8", **kwargs):
        width = self._value(x).shape[-1]
        levels = torch.randint(-127, 128, (outputs, width), generator=self.generator, dtype=torch.int8)
        scale = torch.rand(outputs, width // 32, generator=self.generator) / 127 / width**0.5
        made = self.constant(f"{name}.weight", levels), self.constant(f"{name}.scale", scale)
        bias = () if op == "lm_head_int8" else (None,)
        return self.op(op, x, *made, *bias, 32, **kwargs)

    def caches(self, layer):
        both = [torch.zeros(PAGES, PAGE, KV_HEADS, HEAD_DIM, dtype=self.kept) for _ in range(2)]
        for cache in both:
            cache.normal_(generator=self.generator)
        self.states += both
        return [self.constant(f"{layer}.{name}", cache) for name, cache in zip("kv", both, strict=True)]

    def heads(self, layer, x):
        qkv = self.product(f"{layer}.qkv", x, (HEADS + 2 * KV_HEADS) * HEAD_DIM)
        split = self.view("view", qkv, -1, HEADS + 2 * KV_HEADS, HEAD_DIM)
        return self.view("split", split, (HEADS, KV_HEADS, KV_HEADS), 1)

    def turned(self, layer, q, k, **kwargs):
        norms = self.norm(f"{layer}.q_norm", HEAD_DIM), self.norm(f"{layer}.k_norm", HEAD_DIM)
        return self.op("qk_norm_rope", q, k, *norms, EPS, STEP, self.table, **kwargs)

    def attention(self, layer, x, rope=None, write=None):
        group = layer % self.groups
        q, k, v = self.heads(layer, x)
        q, k = self.turned(layer, q, k, **(rope or {}))
        caches = self.op("kv_write", k, v, *self.caches(layer), STEP, group, **(write or {}))
        mixed = self.op("paged_attention", q, *caches, STEP, 0.25, 7 if layer else None, group, None, None)
        return self.product(f"{layer}.out", self.view("flatten", mixed, 1), HIDDEN)

    def mlp(self, layer, x):
        both = self.product(f"{layer}.gate_up", x, 2 * INNER)
        gate, up = self.view("split", both, (INNER, INNER), -1)
        return self.product(f"{layer}.down", self.op("silu_mul", gate, up), HIDDEN)

    def added(self, name, x, residual):
        return self.op("add_rms_norm", x, residual, self.norm(name), EPS)

    def start(self):
        total = self.op("embedding", STEP, self.constant("embed", self.floats(VOCAB, HIDDEN)))
        return self.op("rms_norm", total, self.norm("first"), EPS), total

    def logits(self, x):
        return self.product(
            "head", self.op("select_rows", x, STEP, rows="logits"), VOCAB, "lm_head_int8", rows="logits"
        )


def decoder(layers=2, between=None, **kwargs):
    """A whole forward; `between` makes something of the first layer's result."""
    made = Decoder(**{name: kwargs.pop(name) for name in ("groups", "dtype", "kv_dtype") if name in kwargs})
    x, total = made.start()
    for layer in range(layers):
        x, total = made.added(f"{layer}.attended", made.attention(layer, x, **kwargs), total)
        out = made.mlp(layer, x)
        if between is not None and layer == 0:
            out = between(made, out)
        x, total = made.added(f"{layer}.mixed", out, total)
    return made, made.program(made.logits(x))


def context(made, piece):
    generated = interpret(piece, made.values, made.step.limits())
    return CompileContext(CpuDevice(), made.dtype, made.values, made.step.limits(), generated)


def both_ways(made, program, start, stop, step=None):
    """Outputs and states of a piece, native and interpreted; None where the piece is refused."""
    step = step or made.step
    piece = program.piece(start, stop)
    native_piece = compiled(piece, context(made, piece))
    if native_piece is None:
        return None
    with torch.inference_mode(), unchanged(made.states):
        inputs = values_at(program, made.values, step, piece.inputs)
    results = []
    for run in (native_piece, interpret(piece, made.values, step.limits())):
        with torch.inference_mode(), unchanged(made.states) as states:
            outputs = run(step, *[one.clone() for one in inputs])
            found = [one.clone() for one in outputs]
        results.append([*found, *states])
    return results


def assert_equal(pair):
    got, expected = pair
    assert len(got) == len(expected)
    assert all(torch.equal(*both) for both in zip(got, expected, strict=True))


__all__ = [
    "EPS",
    "HEAD_DIM",
    "HIDDEN",
    "PAGE",
    "PAGES",
    "STEP",
    "Decoder",
    "assert_equal",
    "both_ways",
    "context",
    "decoder",
]
