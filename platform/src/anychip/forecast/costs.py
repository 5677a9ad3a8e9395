"""What a step costs, in bytes and flops, and by a device's speeds in seconds. Knows kernels by name; measures nothing.

products    the longer of reading the weights once and multiplying with them, and of the shorter what isn't hidden
attention   decodes read keys and values of their contexts; prompts multiply
calls       calling each kernel, and moving activations between kernels
engine      what happens between forwards
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import astuple, dataclass
from typing import NamedTuple

import torch

from anychip.forecast.work import LOGITS_BYTES, KernelUse, OpWork, name_of, work_of
from anychip.plan.plan import Plan
from anychip_sdk.speeds import COMPILED, Speeds, Work

CHOICE = "argmax"  #: how a token is taken to be chosen


@dataclass(frozen=True)
class StepShape:
    """The rows of a step: decodes with a context each, and a chunk of one prompt behind `start` tokens of it."""

    decodes: int
    context: int = 0
    prompt: int = 0
    start: int = 0

    @property
    def tokens(self) -> int:
        return self.decodes + self.prompt

    @property
    def samples(self) -> int:
        """Rows whose logits are wanted; the chunk is the prompt's last."""
        return self.decodes + (self.prompt > 0)

    def tokens_read(self, window: int | None) -> int:
        """Tokens of context whose keys and values decodes read."""
        return self.decodes * (self.context if window is None else min(self.context, window))

    def pairs(self, window: int | None) -> int:
        """Of a prompt's queries and the keys that they see."""
        seen = self.start + self.prompt
        whole = _triangle(seen) - _triangle(self.start)
        if window is None:
            return whole
        return whole - _triangle(max(0, seen - window)) + _triangle(max(0, self.start - window))


class Seconds(NamedTuple):
    """Where the time of a step goes."""

    products: float
    attention: float
    calls: float
    engine: float

    @property
    def total(self) -> float:
        return sum(self)


@dataclass(frozen=True)
class Costs:
    """What a plan's steps ask for, by kernel."""

    uses: Mapping[KernelUse, OpWork]

    @property
    def together(self) -> OpWork:
        return sum(self.uses.values(), OpWork())

    @property
    def flops_per_token(self) -> int:
        """Of products, for each token of a prompt but the last."""
        return sum(2 * work.parameters for use, work in self.uses.items() if not use.is_sampled)

    def unknown(self, speeds: Speeds) -> tuple[str, ...]:
        """The kernels that the speeds say nothing of."""
        return tuple(dict.fromkeys(use.kernel for use in self.uses if speeds.of(use.kernel) is None))

    @property
    def graph_ops(self) -> set[str]:
        """Of the forward; the choice of tokens comes behind it."""
        return {use.op for use in self.uses if use.op != CHOICE}

    @property
    def compiled_name(self) -> str:
        """What the forward is called as one kernel: it is told by the dtype of most weights."""
        largest = max(self.uses, key=lambda use: self.uses[use].weight_bytes)
        return COMPILED + largest.kernel.rpartition(" ")[2]

    def is_compiled(self, speeds: Speeds) -> bool:
        """Whether the backend's compiler takes all ops of the forward, as far as was seen."""
        return self.compiled_name in speeds.kernels and self.graph_ops <= set(speeds.compiled_ops)

    def whole(self, step: StepShape) -> Work:
        """What a step asks of the forward as one kernel."""
        return sum_of(work_in(use, work.by_matrix, step) for use, work in self.uses.items() if use.op != CHOICE)

    def seconds(self, speeds: Speeds, step: StepShape) -> Seconds:
        """How long a step takes; kernels that the speeds say nothing of take no time."""
        engine_s = speeds.step_s + step.samples * speeds.request_s
        products_s = attention_s = calls_s = 0.0
        for kernel, work in self._works(speeds, step):
            speed = speeds.of(kernel)
            if speed is not None:
                products_s += speed.products_s(work)
                attention_s += speed.attention_s(work)
                calls_s += speed.calls_s(work)
        return Seconds(products_s, attention_s, calls_s, engine_s)

    def _works(self, speeds: Speeds, step: StepShape) -> Iterator[tuple[str, Work]]:
        """What each kernel has to do; of the forward as one, where the backend compiles it."""
        is_whole = self.is_compiled(speeds) and step.tokens <= speeds.compiled_tokens
        if is_whole:
            yield self.compiled_name, self.whole(step)
        for use, work in self.uses.items():
            if use.op == CHOICE or not is_whole:
                yield use.kernel, work_in(use, work, step)


def costs_of(plan: Plan) -> Costs:
    """What the plan's graph and the choice of greedy tokens ask for."""
    model, dtype = plan.model, plan.model.dtype.value
    uses = work_of(plan.graph, plan.program, dtype, plan.scheduler.kv_dtype)
    choice = KernelUse(CHOICE, name_of(plan.engine_ops[CHOICE], torch.float32), is_sampled=True, window=None)
    uses[choice] = OpWork(calls=1, moved_bytes_per_row=LOGITS_BYTES * model.config.vocab_size)
    return Costs(uses)


def work_in(use: KernelUse, work: OpWork, step: StepShape) -> Work:
    """What a step asks of a kernel."""
    rows = step.samples if use.is_sampled else step.tokens
    read = 1.0 if use.routed is None else use.routed.distinct(rows) / use.routed.experts
    return Work(
        calls=work.calls,
        weight_bytes=work.weight_bytes if read == 1.0 else round(work.weight_bytes * read),
        flops=2 * work.parameters * rows,
        kv_bytes=work.kv_bytes_per_token * step.tokens_read(use.window),
        scores=work.scores_per_token * step.tokens_read(use.window),
        attention_flops=work.attention_flops_per_pair * step.pairs(use.window),
        moved_bytes=work.moved_bytes_per_row * rows,
    )


def sum_of(works: Iterable[Work]) -> Work:
    """What several uses of a kernel ask together."""
    return Work(*(sum(amounts) for amounts in zip(*map(astuple, works), strict=True)))


def _triangle(count: int) -> int:
    return count * (count + 1) // 2


__all__ = ["CHOICE", "Costs", "Seconds", "StepShape", "costs_of", "sum_of", "work_in"]
