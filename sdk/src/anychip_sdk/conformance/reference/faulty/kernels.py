"""Faults of kernels' values: tails, heads, layouts, special numbers. Knows no check."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from anychip_sdk import ops
from anychip_sdk.conformance.reference.faulty.base import FAULTS, Fault
from anychip_sdk.conformance.reference.plugin import AsyncReferencePlugin
from anychip_sdk.ops.rope import angles
from anychip_sdk.registry import KernelFunction
from anychip_sdk.step import Step

Single = Callable[..., torch.Tensor]
Pair = tuple[torch.Tensor, torch.Tensor]

_linear: Single = ops.linear.reference
_rms_norm: Single = ops.rms_norm.reference
_paged_attention: Single = ops.paged_attention.reference
_silu_mul: Single = ops.silu_mul.reference
_gelu: Single = ops.gelu.reference
_silu: Single = ops.silu.reference
_embedding: Single = ops.embedding.reference


def kernel_fault(op: str, *kills: str, raises: Sequence[str] = ()) -> Callable[[KernelFunction], KernelFunction]:
    """Declare a broken kernel, a function or a class of callables; its name and docstring name the fault."""

    def wrap(broken: KernelFunction) -> KernelFunction:
        def kernels(self: AsyncReferencePlugin) -> Mapping[str, KernelFunction]:
            return {**AsyncReferencePlugin.kernels(self), op: broken() if isinstance(broken, type) else broken}

        plugin = type(f"{broken.__name__}_plugin", (AsyncReferencePlugin,), {"kernels": kernels, "broken_op": op})
        name = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in broken.__name__).strip("_")
        FAULTS[name] = Fault(name, kills, plugin, (broken.__doc__ or "").strip(), tuple(raises))
        return broken

    return wrap


@kernel_fault("linear", "AC-OP-001")
def linear_forgets_the_tail(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """Sums over whole blocks of 4 inputs; what is behind the last one is left out."""
    whole = x.shape[-1] // 4 * 4
    return _linear(x[..., :whole], weight[:, :whole], bias)


@kernel_fault("rms_norm", "AC-OP-001")
def norm_is_biased(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Divides by one less than the width."""
    n = x.shape[-1]
    return (_rms_norm(x.double(), weight.double(), eps) * ((n - 1) / n if n > 1 else 1) ** 0.5).to(x.dtype)


@kernel_fault("lm_head", "AC-OP-001")
def logits_are_summed_in_half(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Adds up the products in the inputs' dtype, which is not claimed."""
    total = torch.zeros(x.shape[0], weight.shape[0], dtype=x.dtype)
    for column in range(x.shape[1]):
        total += x[:, column : column + 1] * weight[:, column]
    return total.to(torch.promote_types(x.dtype, torch.float32))


@kernel_fault("add", "AC-OP-001")
def one_element_is_wrong(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """In results of at least 4096 elements one is a hundredth too large: no average would show it."""
    out = x + y
    if out.numel() >= 4096:
        out.view(-1)[-2] += 0.1
    return out


@kernel_fault("rope", "AC-OP-002")
def rope_turns_neighbours(q: torch.Tensor, k: torch.Tensor, step: Step, table: torch.Tensor) -> Pair:
    """Pairs (x[2i], x[2i + 1]) instead of the two halves."""
    cos, sin = angles(table, step.positions, q.dtype)

    def turn(x: torch.Tensor) -> torch.Tensor:
        rotary = 2 * cos.shape[-1]
        first, second = x[..., 0:rotary:2].to(cos.dtype), x[..., 1:rotary:2].to(cos.dtype)
        turned = torch.stack((first * cos - second * sin, second * cos + first * sin), -1).flatten(-2).to(x.dtype)
        return torch.cat((turned, x[..., rotary:]), -1)

    return turn(q), turn(k)


@kernel_fault("paged_attention", "AC-OP-002")
def heads_are_interleaved(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    step: Step,
    scale: float,
    *rest: Any,
) -> torch.Tensor:
    """Head h reads kv head h % kv_heads instead of h // group."""
    heads, kv_heads = q.shape[1], k.shape[2]
    order = torch.arange(heads).view(-1, kv_heads).t().flatten()
    out = torch.empty_like(q)
    out[:, order] = _paged_attention(q[:, order], k, v, step, scale, *rest)
    return out


@kernel_fault("paged_attention", "AC-OP-002")
def window_is_ignored(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    step: Step,
    scale: float,
    window: int | None = None,
    *rest: Any,
) -> torch.Tensor:
    """A query sees its whole context."""
    return _paged_attention(q, k, v, step, scale, None, *rest)


@kernel_fault("paged_attention", "AC-KV-008")
def attention_reads_whole_pages(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    step: Step,
    scale: float,
    window: int | None = None,
    group: int = 0,
    *rest: Any,
) -> torch.Tensor:
    """The last page is weighed with zeros behind the end, but read: not a number times zero is none."""
    out: torch.Tensor = _paged_attention(q, k, v, step, scale, window, group, *rest)
    start = 0
    table = step.paged(group).page_table
    for row, length in enumerate(step.query_lens_host):
        last = table[row, (step.context_lens_host[row] - 1) // step.page_size]
        out[start : start + length] += (0 * v[last].sum()).to(out.dtype)
        start += length
    return out


@kernel_fault("silu_mul", "AC-OP-003")
def strides_of_gates_are_ignored(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """Reads a view as if its rows lay next to each other."""
    dense = torch.empty(gate.shape, device="meta").stride()
    out: torch.Tensor = _silu_mul(*(x.as_strided(x.shape, dense, x.storage_offset()) for x in (gate, up)))
    return out


@kernel_fault("linear", "AC-OP-003")
def loads_are_rounded_down(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """Vector loads begin at a multiple of 16 bytes below the input."""
    off = x.data_ptr() % 16 // x.element_size()
    moved = x.as_strided(x.shape, x.stride(), x.storage_offset() - off)
    return _linear(moved, weight, bias)


@kernel_fault("gelu", "AC-OP-004", raises=["RuntimeError: invalid launch: a grid of 0 blocks"])
def nothing_is_refused(x: torch.Tensor) -> torch.Tensor:
    """An input without rows is an error."""
    if not x.numel():
        raise RuntimeError("invalid launch: a grid of 0 blocks")
    return _gelu(x)


@kernel_fault("mul", "AC-OP-005")
def transposed_inputs_are_misread(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Reads a transposed input in the order of its memory."""
    return (x * y) if x.stride(-1) == 1 else (x.t().reshape(x.shape) * y)


@kernel_fault("silu", "AC-OP-006")
def not_a_number_becomes_zero(x: torch.Tensor) -> torch.Tensor:
    """A maximum on the way drops what is not a number."""
    return _silu(x.nan_to_num(0.0, posinf=torch.inf, neginf=-torch.inf))


@kernel_fault("add", "AC-OP-006")
def sums_saturate(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """What doesn't fit becomes the largest number."""
    return (x + y).clamp(-torch.finfo(x.dtype).max, torch.finfo(x.dtype).max)


@kernel_fault("mul", "AC-OP-007")
def products_are_flushed(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Subnormal results become zero, though they are claimed to be kept."""
    out = x * y
    return torch.where(out.abs() < torch.finfo(out.dtype).smallest_normal, out * 0, out)


@kernel_fault("embedding", "AC-OP-007")
def rows_pass_arithmetic(step: Step, weight: torch.Tensor) -> torch.Tensor:
    """Rows go through an arithmetic unit that flushes subnormal numbers."""
    out = _embedding(step, weight)
    return torch.where(out.abs() < torch.finfo(out.dtype).smallest_normal, 0.0, out)


@kernel_fault("add", "AC-OP-008")
def negative_zero_is_lost(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Sums begin with +0, so that -0 never comes out."""
    return 0.0 + x + y


@kernel_fault("argmax", "AC-OP-009")
def the_last_of_equals_wins(logits: torch.Tensor) -> torch.Tensor:
    """Compares with "at least" instead of "above"."""
    return logits.shape[-1] - 1 - logits.flip(-1).argmax(-1)


__all__ = [
    "Pair",
    "Single",
    "attention_reads_whole_pages",
    "heads_are_interleaved",
    "kernel_fault",
    "linear_forgets_the_tail",
    "loads_are_rounded_down",
    "logits_are_summed_in_half",
    "negative_zero_is_lost",
    "norm_is_biased",
    "not_a_number_becomes_zero",
    "nothing_is_refused",
    "one_element_is_wrong",
    "products_are_flushed",
    "rope_turns_neighbours",
    "rows_pass_arithmetic",
    "strides_of_gates_are_ignored",
    "sums_saturate",
    "the_last_of_equals_wins",
    "transposed_inputs_are_misread",
    "window_is_ignored",
]
