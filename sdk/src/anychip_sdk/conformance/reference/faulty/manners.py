"""Faults of kernels' manners: what they overwrite, races, order, company, threads, old memory. Knows no check."""

from __future__ import annotations

import threading

import torch

from anychip_sdk import ops
from anychip_sdk.conformance.reference.faulty.kernels import Pair, Single, kernel_fault
from anychip_sdk.step import Step

_linear: Single = ops.linear.reference
_rms_norm: Single = ops.rms_norm.reference
_gelu: Single = ops.gelu.reference
_silu: Single = ops.silu.reference
_apply_logit_bias: Single = ops.apply_logit_bias.reference
_sample: Single = ops.sample.reference


@kernel_fault("silu", "AC-OP-010")
def the_input_is_scratch(x: torch.Tensor) -> torch.Tensor:
    """Computes in place and returns a copy."""
    return x.copy_(_silu(x)).clone()


@kernel_fault("mul", "AC-OP-010")
def a_store_runs_over(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Pads the input to a multiple of 4 elements in place."""
    if x.is_contiguous() and x.numel() % 4:
        x.as_strided((1,), (1,), x.storage_offset() + x.numel()).zero_()
    return x * y


@kernel_fault("kv_write", "AC-OP-011")
def another_slot_is_written(
    k: torch.Tensor, v: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, step: Step, group: int = 0
) -> Pair:
    """Padding tokens of a whole block go to the slot behind the last token's."""
    ops.kv_write.reference(k, v, k_cache, v_cache, step, group)
    slots = step.paged(group).slots
    if len(slots) % 4:
        v_cache.view(-1, *v_cache.shape[2:])[(slots[-1] + 1) % (v_cache.shape[0] * v_cache.shape[1])] = 0
    return k_cache, v_cache


@kernel_fault("apply_logit_bias", "AC-OP-011")
def a_copy_is_returned(
    logits: torch.Tensor, rows: torch.Tensor, token_ids: torch.Tensor, bias: torch.Tensor
) -> torch.Tensor:
    """Not in place: the caller's logits stay as they are."""
    return _apply_logit_bias(logits.clone(), rows, token_ids, bias)


@kernel_fault("rms_norm", "AC-OP-012")
class OneRunInFiftyIsWrong:
    """A race that is lost once in fifty runs."""

    def __init__(self) -> None:
        self.runs = 0

    def __call__(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        self.runs += 1
        out: torch.Tensor = _rms_norm(x, weight, eps)
        if self.runs % 50 == 37 and out.numel():
            out.view(-1)[0] += 1
        return out


@kernel_fault("linear", "AC-OP-013")
class TheOrderOfSumsChanges:
    """Adds up in the order in which threads come, claimed to be deterministic."""

    def __init__(self) -> None:
        self.generator = torch.Generator().manual_seed(1)

    def __call__(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        order = torch.randperm(x.shape[-1], generator=self.generator)
        return _linear(x[..., order], weight[:, order], bias)


@kernel_fault("rms_norm", "AC-OP-014")
def large_batches_are_split(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Sums in two parts where there are many rows, claimed to be independent of the batch."""
    if x.shape[0] < 8:
        return _rms_norm(x, weight, eps)
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    half = x.shape[-1] // 2
    squares = wide[..., half:].square().sum(-1, keepdim=True) + wide[..., :half].square().sum(-1, keepdim=True)
    return (wide / (squares / x.shape[-1] + eps).sqrt()).to(x.dtype) * weight


@kernel_fault("sample", "AC-OP-016")
def min_p_is_ignored(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    min_p: torch.Tensor,
    uniform: torch.Tensor,
) -> torch.Tensor:
    """Draws tokens that min-p rules out."""
    return _sample(logits, temperature, top_k, top_p, torch.zeros_like(min_p), uniform)


@kernel_fault("gelu", "AC-OP-017")
class ThreadsShareScratch:
    """Keeps one scratch buffer for all threads, claimed to be thread safe."""

    def __init__(self) -> None:
        self.scratch = torch.empty(0)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        self.scratch = x.clone()
        threading.Event().wait(0.0005)  # as long as a real kernel would take
        scratch = self.scratch
        return _gelu(scratch if scratch.shape == x.shape and scratch.dtype == x.dtype else x)


@kernel_fault("add_rms_norm", "AC-OP-018")
def sums_begin_with_old_memory(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> Pair:
    """Adds up in a buffer that nobody has cleared."""
    total = torch.empty(x.shape, dtype=x.dtype)
    total = torch.where(total.isnan(), total, 0.0) + x + residual
    return _rms_norm(total, weight, eps), total


@kernel_fault("embedding", "AC-OP-019")
def offsets_are_floats(step: Step, weight: torch.Tensor) -> torch.Tensor:
    """Computes offsets in float32, which stops counting at 2^24."""
    width = weight.shape[1]
    starts = (step.token_ids.float() * width).long().clamp(max=weight.numel() - width)
    return weight.reshape(-1)[starts.unsqueeze(1) + torch.arange(width)]


@kernel_fault("qk_norm_rope", "AC-OP-020", raises=["RuntimeError: no kernel image for head_dim"])
def a_head_dim_is_missing(
    q: torch.Tensor,
    k: torch.Tensor,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
    eps: float,
    step: Step,
    table: torch.Tensor,
) -> Pair:
    """Was compiled for multiples of 16, but requires nothing of the head dimension."""
    if q.shape[-1] % 16:
        message = f"no kernel image for head_dim {q.shape[-1]}"
        raise RuntimeError(message)
    pair: Pair = ops.qk_norm_rope.reference(q, k, q_weight, k_weight, eps, step, table)
    return pair


__all__: list[str] = []
