"""One call of a kernel: an op, its arguments on the host, and the kernel that the registry chose. Runs nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from anychip_sdk.conformance.context import Context, derived_seed
from anychip_sdk.conformance.requirements import Violation
from anychip_sdk.ops.base import CATALOGUE, Op
from anychip_sdk.ops.facts import argument_facts, product_facts
from anychip_sdk.ops.quantized import BLOCKS
from anychip_sdk.registry import Fact, Kernel, OpKey, dtype_name
from anychip_sdk.testing.cases import DIMENSIONS, random_case

#: sizes that a plan knows of the model and the pool
SIZE_FACTS = (
    *("heads", "kv_heads", "head_dim", "hidden", "page_size"),
    *("rank", "rope_dim", "nope_dim", "value_dim"),
)


@dataclass(frozen=True)
class Trial:
    """One call: an op, its arguments on the host, and the kernel that the registry chose for it."""

    op: Op
    dtype: torch.dtype
    args: tuple[Any, ...]
    kernel: Kernel
    sizes: Mapping[str, int]
    facts: Mapping[str, Fact]

    def named(self) -> dict[str, Any]:
        """The arguments by name, as evidence."""
        return {arg.name: value for arg, value in zip(self.op.args, self.args, strict=True)}

    def __str__(self) -> str:
        shapes = ", ".join(
            f"{name} {list(value.shape)}" for name, value in self.named().items() if isinstance(value, torch.Tensor)
        )
        return f"{self.op.name} {dtype_name(self.dtype)} by {self.kernel.provider}/{self.kernel.name} on {shapes}"


def trial(
    context: Context,
    op_name: str,
    dtype: str | torch.dtype,
    sizes: Mapping[str, int],
    salt: str | int = "",
    *,
    strided: bool = False,
) -> Trial:
    """A random case of the given sizes with the kernel that serves it; `salt` tells trials of a check apart."""
    chosen: torch.dtype = getattr(torch, dtype) if isinstance(dtype, str) else dtype
    seed = derived_seed(f"{context.seed}/{op_name}/{salt}/{sorted(sizes.items())}")
    args = random_case(op_name, chosen, seed, strided=strided, bias=seed % 3 != 0, **sizes)
    return resolved(context, op_name, chosen, _in_blocks(context, CATALOGUE[op_name], chosen, args, sizes), sizes)


def _in_blocks(
    context: Context, op: Op, dtype: torch.dtype, args: tuple[Any, ...], sizes: Mapping[str, int]
) -> tuple[Any, ...]:
    """The arguments with activations rounded in the blocks that a plan would have this backend round them in."""
    names = [arg.name for arg in op.args]
    if "block" not in names:
        return args
    facts = facts_of(op, args, dtype, {**DIMENSIONS, **sizes})
    choices = [{**facts, "block": block} for block in BLOCKS]
    place = context.backend.ops.preferred(OpKey(op.name, op.version, dtype), choices)
    at = names.index("block")
    return (*args[:at], BLOCKS[place], *args[at + 1 :])


def resolved(
    context: Context, op_name: str, dtype: torch.dtype, args: Sequence[Any], sizes: Mapping[str, int]
) -> Trial:
    """The trial of these arguments; what the reference serves is noted in the context."""
    op = CATALOGUE[op_name]
    facts = facts_of(op, args, dtype, {**DIMENSIONS, **sizes})
    found = context.backend.ops.resolve(OpKey(op.name, op.version, dtype), facts)
    if found is None:
        message = f"{op.name} {dtype_name(dtype)}: no kernel fits, not even the reference"
        raise Violation(message, facts=dict(facts))
    if found.is_fallback:
        context.fallbacks.add(op.name)
    return Trial(op, dtype, tuple(args), found.kernel, dict(sizes), facts)


def facts_of(op: Op, args: Sequence[Any], dtype: torch.dtype, sizes: Mapping[str, int]) -> dict[str, Fact]:
    """What a plan knows of a call: the model's sizes, the pool's, and plain arguments by name."""
    facts: dict[str, Fact] = {name: sizes[name] for name in SIZE_FACTS}
    facts.update(
        heads_per_kv_head=sizes["heads"] // sizes["kv_heads"],
        vocab=sizes["vocab"],
        kv_dtype=dtype_name(dtype),
        dtype=dtype_name(dtype),
    )
    facts.update(argument_facts(op, args))
    named = zip(op.args, args, strict=True)
    shapes = {arg.name: value.shape for arg, value in named if arg.weight and isinstance(value, torch.Tensor)}
    return {**facts, **product_facts(op, shapes)}


__all__ = ["Trial", "facts_of", "resolved", "trial"]
