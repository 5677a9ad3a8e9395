"""Lone calls of kernels with the facts that a plan would know of them. Knows schemas; knows no kernel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from anychip_sdk.ops import CATALOGUE
from anychip_sdk.registry import Fact, Kernel, dtype_name, with_prepared
from anychip_sdk.step import Paged, Step


def call_facts(op: str, args: Sequence[Any]) -> dict[str, Fact]:
    """Heads, dtypes and plain arguments, from the arguments themselves."""
    schema = CATALOGUE[op].args
    named = {arg.name: value for arg, value in zip(schema[: len(args)], args, strict=True)}
    facts: dict[str, Fact] = {arg.name: named.get(arg.name) for arg in schema if arg.is_plain}
    own = [named[arg.name] for arg in schema if arg.dtype == "T" and not arg.state and arg.name in named]
    facts["dtype"] = dtype_name(next((one.dtype for one in own if isinstance(one, torch.Tensor)), torch.float32))
    if "q" in named:
        facts["heads"] = named["q"].shape[1]
    if "key_weight" in named:
        q_nope, q_rope = (named[name].shape for name in ("q_nope", "q_rope"))
        facts |= {"heads": q_nope[1], "nope_dim": q_nope[2], "rope_dim": q_rope[2]}
        facts |= {"rank": named["key_weight"].shape[1], "value_dim": len(named["value_weight"]) // q_nope[1]}
    if "cache" in named:
        facts["kv_dtype"] = dtype_name(named["cache"].dtype)
    if "k_cache" in named:
        _, _, facts["kv_heads"], facts["head_dim"] = named["k_cache"].shape
        facts["kv_dtype"] = dtype_name(named["k_cache"].dtype)
    return facts


def called(kernel: Kernel, *args: Any) -> Any:
    """What a registered kernel gives, its preparation made for this call alone; optional arguments may be left out."""
    facts = call_facts(kernel.op, args)
    return kernel.function(*with_prepared(kernel, args, facts))


def alone(op: str, kernel: Any, *args: Any) -> Any:
    """The same of a kernel that is not registered and prepares something of the step."""
    registered = Kernel(op, 1, (torch.float32,), kernel, "test", "test", prepare=kernel.prepare)
    return called(registered, *args)


def row_step(step: Step, row: int, start: int, stop: int) -> Step:
    """Positions start .. stop-1 of one row as a step of their own, for attention alone."""
    paged = step.paged(0)
    return replace(
        step,
        token_ids=step.token_ids[: stop - start],
        positions=torch.arange(start, stop),
        query_start=torch.tensor([0, stop - start], dtype=torch.int32),
        context_lens=torch.tensor([stop], dtype=torch.int32),
        logit_rows=torch.tensor([stop - start - 1]),
        groups=(Paged(paged.page_table[row : row + 1], paged.slots[:0]),),
        decode_rows=int(stop - start == 1),
        query_lens_host=(stop - start,),
        context_lens_host=(stop,),
    )


__all__ = ["alone", "call_facts", "called", "row_step"]
