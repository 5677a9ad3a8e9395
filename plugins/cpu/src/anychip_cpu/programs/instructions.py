"""What each op becomes in a native program. Knows ops and structs; knows no program of a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from anychip_cpu import native
from anychip_cpu.kernels import experts, recurrent, routing, row_args
from anychip_cpu.kernels.elementwise import GATES, OPS
from anychip_cpu.kernels.products import Packed, Weights, packed_args
from anychip_cpu.programs.buffers import Buffers
from anychip_cpu.programs.program import GATHER, Instruction, Kind
from anychip_cpu.programs.ropes import DeferredRope, RopePlan

Given = Mapping[str, Any]  #: an op's arguments by name


class CannotTranslateError(Exception):
    """A piece holds something that the library has no instruction for; the text says what."""


class Writer:
    """One method for each op; it writes the instructions and returns where their results will lie.

    Attributes:
        is_selected: what is written now works on the rows that become logits, else on all tokens.
        rope_plan: how the queries and keys of what is written now may be turned.
        vocabulary: logits of a row, once they are written.
        logits_rows: what there is a row of logits for: "tokens" or "logits".
        held: constants in a form that instructions read.
    """

    def __init__(self, buffers: Buffers) -> None:
        self.buffers = buffers
        self.instructions: list[Instruction] = []
        self.is_selected = False
        self.rope_plan = RopePlan(False, False, False)
        self.vocabulary = 0
        self.logits_rows = "logits"
        self.held: list[torch.Tensor] = []

    def emit(self, kind: Kind, args: bytes, group: int = 0) -> None:
        self.instructions.append(Instruction(kind, self.is_selected, group, args))

    def gather(self, table: torch.Tensor) -> torch.Tensor:
        _expect(table.stride(1) == 1, "a table whose rows' elements lie apart")
        out = self.buffers.take(table.shape[1], table.dtype)
        size = table.itemsize
        self.emit(
            Kind.GATHER,
            GATHER.pack(0, table.data_ptr(), out.data_ptr(), len(table), table.stride(0) * size, table.shape[1] * size),
        )
        return out

    def embedding(self, given: Given) -> torch.Tensor:
        return self.gather(given["weight"])

    def select_rows(self, given: Given) -> torch.Tensor:
        return self.gather(given["x"])

    def rms_norm(self, given: Given) -> torch.Tensor:
        if given["x"].dim() == 3:
            return self._norm_heads(given["x"], given["weight"], given["eps"])
        out, _ = self.add_rms_norm({**given, "residual": None})
        return out

    def _norm_heads(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        _expect_norm(weight, x)
        out = self._heads_like(x)
        part = row_args.turned(x, out, weight)._replace(is_turned=0)
        args = row_args.heads((part, row_args.NO_PART, row_args.NO_PART), x, eps, None, None, None, None)
        self.emit(Kind.HEADS, args)
        return out

    def add(self, given: Given) -> torch.Tensor:
        x, y = given["x"], given["y"]
        total = self.buffers.take(x.shape[1], x.dtype)
        self.emit(Kind.NORM, row_args.norm(x, y, None, None, total, 0.0))
        return total

    def rms_norm_offset(self, given: Given) -> torch.Tensor:
        out, _ = self.add_rms_norm({**given, "residual": None}, 1.0)
        return out

    def scale(self, given: Given) -> torch.Tensor:
        x = given["x"]
        out = self.buffers.take(x.shape[1], x.dtype)
        self.emit(Kind.GATE, row_args.scaled(x, out, given["factor"]))
        return out

    def add_rms_norm(self, given: Given, offset: float = 0.0) -> tuple[torch.Tensor, torch.Tensor | None]:
        x, residual, weight = given["x"], given["residual"], given["weight"]
        _expect_norm(weight, x)
        out = self.buffers.take(x.shape[1], x.dtype)
        total = None if residual is None else self.buffers.take(x.shape[1], x.dtype)
        self.emit(Kind.NORM, row_args.norm(x, residual, weight, out, total, given["eps"], offset))
        return out, total

    def multiply(self, x: torch.Tensor, weights: Weights, out: torch.Tensor | None = None) -> torch.Tensor:
        _expect(isinstance(weights.packed, Packed), "a product's weight in another layout than the library's")
        made = self.buffers.take(weights.packed.outputs, x.dtype) if out is None else out
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
        self.vocabulary = weights.packed.outputs
        self.logits_rows = "logits" if self.is_selected else "tokens"

    def ffn(self, given: Given) -> torch.Tensor:
        gate_up = Weights(given["gate_up_weight"], bias=given["gate_up_bias"])
        gate, up = self.multiply(given["x"], gate_up).chunk(2, dim=-1)
        inner = self.gate(gate, up, GATES["silu_mul"])
        return self.multiply(inner, Weights(given["down_weight"], bias=given["down_bias"]))

    def router_topk(self, given: Given) -> routing.Choice:
        x, weight, gate = given["x"], given["weight"], given["shared_gate"]
        logits = self.buffers.take(weight.outputs, torch.float32)
        self.multiply(x, Weights(weight, bias=given["logit_bias"]), logits)
        shares = None if gate is None else self.multiply(x, Weights(gate), self.buffers.take(1, torch.float32))
        way = routing.Way(*(given[name] for name in routing.Way._fields))
        to = (self.buffers.take(way.top_k + way.shared, dtype) for dtype in (torch.int32, torch.float32))
        made = routing.Choice(*to)
        self.emit(Kind.ROUTE, routing.route_args(logits, given["selection_bias"], shares, way, made))
        return made

    def moe_experts(self, given: Given) -> torch.Tensor:
        x = given["x"]
        out = self.buffers.take(x.shape[1], x.dtype)
        mixture = experts.mixture(given)
        self.emit(Kind.MIX, experts.experts_args(x, given["ids"], given["weights"], mixture, out))
        return out

    def mha(self, given: Given) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        heads, (kv_heads, head_dim) = given["heads"], given["k_cache"].shape[2:]
        qkv = self.multiply(given["x"], Weights(given["qkv_weight"], bias=given["qkv_bias"]))
        q, k, v = qkv.view(-1, heads + 2 * kv_heads, head_dim).split((heads, kv_heads, kv_heads), dim=1)
        norms = (given["q_norm"], given["k_norm"])
        both = None not in norms  # the kernel's own rule
        self.rope_plan = RopePlan(is_late=True, may_overwrite_q=True, may_overwrite_k=True)
        queries, turned = self.qk_norm_rope(
            {**given, "q": q, "k": k, "q_weight": norms[0] if both else None, "k_weight": norms[1] if both else None}
        )
        k_cache, v_cache = self.kv_write({**given, "k": turned, "v": v})
        mixed = self.paged_attention({**given, "q": queries, "soft_cap": None, "sinks": None})
        out = Weights(given["out_weight"], bias=given["out_bias"])
        return self.multiply(mixed.flatten(1), out), k_cache, v_cache

    def gate(self, gate: torch.Tensor, up: torch.Tensor, kind: int) -> torch.Tensor:
        out = self.buffers.take(gate.shape[1], gate.dtype)
        self.emit(Kind.GATE, row_args.gated(gate, up, out, kind))
        return out

    def rope(self, given: Given) -> tuple[torch.Tensor, torch.Tensor | DeferredRope]:
        return self.qk_norm_rope({**given, "q_weight": None, "k_weight": None, "eps": 0.0})

    def qk_norm_rope(self, given: Given) -> tuple[torch.Tensor, torch.Tensor | DeferredRope]:
        """Turned at once, or with the write of the keys."""
        q, k, eps, table = (given[name] for name in ("q", "k", "eps", "table"))
        norms = (given["q_weight"], given["k_weight"])
        _expect(table.dtype == torch.float32 and table.is_contiguous(), "a table other than contiguous float32")
        of_one_dtype = all(one is None or (one.dtype == q.dtype and one.is_contiguous()) for one in norms)
        _expect(of_one_dtype, "a norm's weight of another dtype than its rows'")
        q_out = q if self.rope_plan.may_overwrite_q else self._heads_like(q)
        if self.rope_plan.is_late:
            return q_out, DeferredRope(q, q_out, k, norms, eps, table)
        k_out = k if self.rope_plan.may_overwrite_k else self._heads_like(k)
        parts = row_args.turned(q, q_out, norms[0]), row_args.turned(k, k_out, norms[1]), row_args.NO_PART
        self.emit(Kind.HEADS, row_args.heads(parts, q, eps, None, table, None, None))
        return q_out, k_out

    def _heads_like(self, x: torch.Tensor) -> torch.Tensor:
        return self.buffers.take(x.shape[1] * x.shape[2], x.dtype).view(x.shape)

    def kv_write(self, given: Given) -> tuple[torch.Tensor, torch.Tensor]:
        k, v, k_cache, v_cache = (given[name] for name in ("k", "v", "k_cache", "v_cache"))
        _expect_caches(v, k_cache, v_cache)
        values = row_args.written(v, v_cache)
        if isinstance(k, DeferredRope):
            queries = row_args.turned(k.queries, k.queries_out, k.norms[0])
            parts = queries, row_args.written(k.keys, k_cache, k.norms[1], is_turned=1), values
            args = row_args.heads(parts, v, k.eps, None, k.table, None, k_cache)
        else:
            parts = row_args.NO_PART, row_args.written(k, k_cache), values
            args = row_args.heads(parts, v, 0.0, None, None, None, k_cache)
        self.emit(Kind.HEADS, args, given["group"])
        return k_cache, v_cache

    def causal_conv_silu(self, given: Given) -> tuple[torch.Tensor, torch.Tensor]:
        inputs = given["x"], given["weight"], given["bias"]
        _expect(recurrent.can_convolve(*inputs, given["history"]), "a convolution of these sizes or dtypes")
        out = self.buffers.take(given["x"].shape[1], given["x"].dtype)
        args = recurrent.convolve_args(*inputs, out, given["history"], recurrent.SlotRows())
        self.emit(Kind.CONVOLVE, args, given["group"])
        return out, given["history"]

    def gated_delta_rule(self, given: Given) -> tuple[torch.Tensor, torch.Tensor]:
        inputs = tuple(given[name] for name in ("q", "k", "v", "a", "b"))
        constants = given["a_log"], given["dt_bias"]
        _expect(recurrent.can_move(*inputs, *constants, given["sums"]), "a delta rule of these sizes or dtypes")
        out = self._heads_like(given["v"])
        args = recurrent.delta_args(inputs, constants, out, given["sums"], recurrent.SlotRows(), given["eps"])
        self.emit(Kind.DELTA, args, given["group"])
        return out, given["sums"]

    def paged_attention(self, given: Given) -> torch.Tensor:
        q, k_cache, v_cache = given["q"], given["k_cache"], given["v_cache"]
        heads, head_dim = q.shape[1:]
        _expect_caches(q, k_cache, v_cache)
        _expect(k_cache.shape == v_cache.shape and k_cache.stride() == v_cache.stride(), "values unlike their keys")
        out = self.buffers.take(heads * head_dim, q.dtype)
        mixed = out.view(-1, heads, head_dim)
        scores = native.Scores(given["scale"], given["window"], given["soft_cap"], self._sinks(given["sinks"]))
        args = native.attention_args(mixed, q, k_cache, v_cache, scores)
        self.emit(Kind.ATTEND, args, given["group"])
        return mixed

    def _sinks(self, sinks: torch.Tensor | None) -> torch.Tensor | None:
        if sinks is None:
            return None
        self.held.append(sinks.float().contiguous())
        return self.held[-1]


def _expect_norm(weight: torch.Tensor, x: torch.Tensor) -> None:
    _expect(weight.dtype == x.dtype and weight.is_contiguous(), "a norm's weight of another dtype than its rows'")


def _expect_caches(like: torch.Tensor, *caches: torch.Tensor) -> None:
    found = all(cache.dtype == like.dtype and cache.stride(-1) == 1 for cache in caches)
    _expect(found, f"caches other than {like.dtype} with a head's elements side by side")


def _expect(found: bool, otherwise: str) -> None:
    if not found:
        message = f"the library has no instruction for {otherwise}"
        raise CannotTranslateError(message)


def _gate(kind: int) -> Callable[[Writer, Given], torch.Tensor]:
    return lambda writer, given: writer.gate(given["gate"], given["up"], kind)


#: by the op's name
WRITERS: Mapping[str, Callable[[Writer, Given], Any]] = {
    "add": Writer.add,
    "add_rms_norm": Writer.add_rms_norm,
    "causal_conv_silu": Writer.causal_conv_silu,
    "embedding": Writer.embedding,
    "ffn": Writer.ffn,
    "gated_delta_rule": Writer.gated_delta_rule,
    "kv_write": Writer.kv_write,
    "linear": Writer.linear,
    "linear_int4": Writer.linear_int4,
    "linear_int8": Writer.linear_int8,
    "lm_head": Writer.lm_head,
    "lm_head_int8": Writer.lm_head_int8,
    "mha": Writer.mha,
    **dict.fromkeys(experts.OPS, Writer.moe_experts),
    "paged_attention": Writer.paged_attention,
    "qk_norm_rope": Writer.qk_norm_rope,
    "rms_norm": Writer.rms_norm,
    "rms_norm_offset": Writer.rms_norm_offset,
    "rope": Writer.rope,
    routing.OP: Writer.router_topk,
    "scale": Writer.scale,
    "select_rows": Writer.select_rows,
    **{name: _gate(kind) for name, kind in GATES.items()},
}
_NO_KERNEL = "the library has no kernel for it"
_CHOICE = "it chooses tokens, outside the model's graph"
#: the other ops of the catalogue, and why there is none
NO_INSTRUCTION: Mapping[str, str] = {
    **dict.fromkeys(("apply_logit_bias", "apply_penalties", "argmax", "sample"), _CHOICE),
    **dict.fromkeys(("gate_rows", "latent_attention", "latent_write", "layer_norm"), _NO_KERNEL),
    **{name: _NO_KERNEL for name in OPS if name not in WRITERS},
}


__all__ = ["NO_INSTRUCTION", "WRITERS", "CannotTranslateError", "Writer"]
