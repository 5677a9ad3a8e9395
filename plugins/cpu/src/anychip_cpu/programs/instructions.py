"""What each op of a graph becomes in a native program. Knows ops and structs; knows no graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch

from anychip_cpu import native
from anychip_cpu.kernels import row_args
from anychip_cpu.kernels.products import Packed, Weights, packed_args
from anychip_cpu.programs.buffers import Buffers
from anychip_cpu.programs.program import GATHER, Instruction, Kind

Given = Mapping[str, Any]  #: an op's arguments by name


class CannotTranslateError(Exception):
    """The graph holds something that the library has no instruction for; the text says what."""


class Input(str):
    """One of the step's own tensors, which the program gets anew each time."""

    __slots__ = ()


class Turned(NamedTuple):
    """Keys that are turned on their way to the cache; the queries of the same op were turned where they lie."""

    queries: torch.Tensor
    keys: torch.Tensor
    norms: tuple[torch.Tensor | None, torch.Tensor | None]
    eps: float
    table: torch.Tensor


class Writer:
    """One method for each op; it writes the instructions and returns where their results will lie.

    Attributes:
        is_selected: what is written now works on the rows that become logits, else on all tokens.
        outputs: logits of a row, once they are written.
    """

    def __init__(self, buffers: Buffers) -> None:
        self.buffers = buffers
        self.instructions: list[Instruction] = []
        self.is_selected = False
        self.outputs = 0
        self._unturned: list[torch.Tensor] = []  # queries that the next write to the cache turns

    def emit(self, kind: Kind, args: bytes) -> None:
        self.instructions.append(Instruction(kind, self.is_selected, args))

    def gather(self, table: torch.Tensor) -> torch.Tensor:
        out = self.buffers.take(table.shape[1])
        size = table.itemsize
        self.emit(
            Kind.GATHER,
            GATHER.pack(0, table.data_ptr(), out.data_ptr(), len(table), table.stride(0) * size, table.shape[1] * size),
        )
        return out

    def embedding(self, given: Given) -> torch.Tensor:
        _expect(given["token_ids"], "token_ids")
        return self.gather(given["weight"])

    def select_rows(self, given: Given) -> torch.Tensor:
        _expect(given["rows"], "logit_rows")
        return self.gather(given["x"])

    def rms_norm(self, given: Given) -> torch.Tensor:
        out, _ = self.add_rms_norm({**given, "residual": None})
        return out

    def add(self, given: Given) -> torch.Tensor:
        x, y = given["x"], given["y"]
        _expect_rows(x, y)
        total = self.buffers.take(x.shape[1])
        self.emit(Kind.NORM, row_args.norm(x, y, None, None, total, 0.0))
        return total

    def add_rms_norm(self, given: Given) -> tuple[torch.Tensor, torch.Tensor | None]:
        x, residual = given["x"], given["residual"]
        _expect_rows(x, residual)
        out = self.buffers.take(x.shape[1])
        total = None if residual is None else self.buffers.take(x.shape[1])
        self.emit(Kind.NORM, row_args.norm(x, residual, given["weight"], out, total, given["eps"]))
        return out, total

    def multiply(self, x: torch.Tensor, weights: Weights, out: torch.Tensor | None = None) -> torch.Tensor:
        if not isinstance(weights.packed, Packed):
            raise CannotTranslateError("a product's weight is not in the library's layout")
        made = self.buffers.take(weights.packed.outputs) if out is None else out
        self.emit(Kind.MULTIPLY, packed_args(x, weights, made))
        return made

    def linear(self, given: Given) -> torch.Tensor:
        return self.multiply(given["x"], Weights(given["weight"], bias=given["bias"]))

    def linear_int8(self, given: Given) -> torch.Tensor:
        return self.multiply(given["x"], Weights(given["weight"], given["scale"], bias=given["bias"]))

    def linear_int4(self, given: Given) -> torch.Tensor:
        weights = Weights(given["weight"], given["scale"], given["minimum"], given["bias"])
        return self.multiply(given["x"], weights)

    def lm_head(self, given: Given) -> None:
        self._logits(given["x"], Weights(given["weight"]))

    def lm_head_int8(self, given: Given) -> None:
        self._logits(given["x"], Weights(given["weight"], given["scale"]))

    def _logits(self, x: torch.Tensor, weights: Weights) -> None:
        """The step brings the place of the logits."""
        self.multiply(x, weights, torch.empty(0, dtype=torch.float32))  # without elements: at no address
        self.outputs = weights.packed.outputs

    def ffn(self, given: Given) -> torch.Tensor:
        gate_up = Weights(given["gate_up_weight"], bias=given["gate_up_bias"])
        gate, up = self.multiply(given["x"], gate_up).chunk(2, dim=-1)
        inner = self.gate(gate, up, row_args.SILU)
        return self.multiply(inner, Weights(given["down_weight"], bias=given["down_bias"]))

    def mha(self, given: Given) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        heads, (kv_heads, head_dim) = given["heads"], given["k_cache"].shape[2:]
        qkv = self.multiply(given["x"], Weights(given["qkv_weight"], bias=given["qkv_bias"]))
        q, k, v = qkv.view(-1, heads + 2 * kv_heads, head_dim).split((heads, kv_heads, kv_heads), dim=1)
        queries, turned = self.qk_norm_rope(
            {**given, "q": q, "k": k, "q_weight": given["q_norm"], "k_weight": given["k_norm"]}
        )
        k_cache, v_cache = self.kv_write({**given, "k": turned, "v": v})
        mixed = self.paged_attention({**given, "q": queries})
        out = Weights(given["out_weight"], bias=given["out_bias"])
        return self.multiply(mixed.flatten(1), out), k_cache, v_cache

    def silu_mul(self, given: Given) -> torch.Tensor:
        return self.gate(given["gate"], given["up"], row_args.SILU)

    def gelu_mul(self, given: Given) -> torch.Tensor:
        return self.gate(given["gate"], given["up"], row_args.GELU)

    def gate(self, gate: torch.Tensor, up: torch.Tensor, kind: int) -> torch.Tensor:
        out = self.buffers.take(gate.shape[1])
        self.emit(Kind.GATE, row_args.gated(gate, up, out, kind))
        return out

    def rope(self, given: Given) -> tuple[torch.Tensor, Turned]:
        return self.qk_norm_rope({**given, "q_weight": None, "k_weight": None, "eps": 0.0})

    def qk_norm_rope(self, given: Given) -> tuple[torch.Tensor, Turned]:
        _expect(given["positions"], "positions")
        self._unturned.append(given["q"])
        q, norms = given["q"], (given["q_weight"], given["k_weight"])
        return q, Turned(q, given["k"], norms, given["eps"], given["table"])

    def kv_write(self, given: Given) -> tuple[torch.Tensor, torch.Tensor]:
        _expect(given["slots"], "slots")
        turned, v, k_cache, v_cache = given["k"], given["v"], given["k_cache"], given["v_cache"]
        if not isinstance(turned, Turned):
            raise CannotTranslateError("keys that are not turned have no instruction")
        self._unturned = [one for one in self._unturned if one is not turned.queries]
        q_norm, k_norm = turned.norms
        parts = (
            row_args.turned(turned.queries, turned.queries, q_norm),
            row_args.written(turned.keys, k_cache, k_norm, is_turned=1),
            row_args.written(v, v_cache),
        )
        self.emit(Kind.HEADS, row_args.heads(parts, v, turned.eps, None, turned.table, None, k_cache))
        return k_cache, v_cache

    def paged_attention(self, given: Given) -> torch.Tensor:
        _expect(given["batch"], "batch")
        q, k_cache, v_cache = given["q"], given["k_cache"], given["v_cache"]
        heads, head_dim = q.shape[1:]
        if any(one is q for one in self._unturned):
            raise CannotTranslateError("queries are attended with before their keys are written")
        if not native.supports(q.dtype, head_dim) or not q.dtype == k_cache.dtype == v_cache.dtype:
            shape = f"{q.dtype} over {k_cache.dtype}, head_dim {head_dim}"
            raise CannotTranslateError(f"there is no native attention of {shape}")
        if k_cache.stride() != v_cache.stride():
            raise CannotTranslateError("keys and values lie in different strides")
        out = self.buffers.take(heads * head_dim)
        mixed = out.view(-1, heads, head_dim)
        self.emit(Kind.ATTEND, native.attention_args(mixed, q, k_cache, v_cache, given["scale"], given["window"]))
        return mixed


def _expect(value: Any, name: str) -> None:
    if not isinstance(value, Input) or value != name:
        raise CannotTranslateError(f"an op reads {value!r} where the step's {name} are expected")


def _expect_rows(*tensors: torch.Tensor | None) -> None:
    if not all(one is None or (one.dim() == 2 and one.is_contiguous()) for one in tensors):
        raise CannotTranslateError("a norm or sum of heads, or of parts of rows, has no instruction")


#: by the op's name
WRITERS: Mapping[str, Callable[[Writer, Given], Any]] = {
    "add": Writer.add,
    "add_rms_norm": Writer.add_rms_norm,
    "embedding": Writer.embedding,
    "ffn": Writer.ffn,
    "gelu_mul": Writer.gelu_mul,
    "kv_write": Writer.kv_write,
    "linear": Writer.linear,
    "linear_int4": Writer.linear_int4,
    "linear_int8": Writer.linear_int8,
    "lm_head": Writer.lm_head,
    "lm_head_int8": Writer.lm_head_int8,
    "mha": Writer.mha,
    "paged_attention": Writer.paged_attention,
    "qk_norm_rope": Writer.qk_norm_rope,
    "rms_norm": Writer.rms_norm,
    "rope": Writer.rope,
    "select_rows": Writer.select_rows,
    "silu_mul": Writer.silu_mul,
}


__all__ = ["WRITERS", "CannotTranslateError", "Input", "Writer"]
