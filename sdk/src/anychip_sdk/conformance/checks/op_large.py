"""Offsets that don't fit small integers. Knows which ops look up rows; needs memory at the deep level only."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from anychip_sdk.conformance.claims import Claims
from anychip_sdk.conformance.context import Context
from anychip_sdk.conformance.requirements import Case, Level, expect, requirement
from anychip_sdk.conformance.trial.oracle import launch, same_bits
from anychip_sdk.conformance.trial.placing import Placed, keys_and_values, make_pool
from anychip_sdk.conformance.trial.trials import resolved
from anychip_sdk.step import Paged, Step

WIDTH = 64  #: of a slot
ODD = 65  #: of a table, so that offsets are no multiples of powers of two
PAGE_SIZE = 16
LOOK_UPS = ("embedding", "kv_write", "select_rows")


def _cases(claims: Claims, level: Level) -> Iterator[Case]:
    """2^24 is where float32 stops counting; 2^31, where int32 does, takes gigabytes and is a claim of its own."""
    powers = (24, 31) if level in ("deep", "soak") else (24,)
    for op in LOOK_UPS:
        dtype = claims.ops[op][0] if claims.ops.get(op) else next(iter(claims.dtypes), "float32")
        for power in powers:
            needs = (f"op:{op}:{dtype}", *(("large_index",) if power > 24 else ()))
            yield Case(f"{op}-2p{power}".replace("_", "-"), {"op": op, "dtype": dtype, "power": power}, needs)


@requirement(
    "AC-OP-019",
    level="MUST",
    text="Rows and slots MUST be found at offsets beyond 2^24 elements, and beyond 2^31 where large indices are "
    "claimed.",
    cases=_cases,
)
def large_offsets_are_found(context: Context, case: Case) -> None:
    dtype: torch.dtype = getattr(torch, case.params["dtype"])
    width = WIDTH if case.params["op"] == "kv_write" else ODD
    rows = (1 << case.params["power"]) // width + 40
    places = torch.tensor([0, rows - 1, rows - 2, rows - 33, rows // 2, 17])
    values = torch.randn(len(places), width, generator=context.generator(), dtype=torch.float64).to(dtype)
    if case.params["op"] == "kv_write":
        _write(context, dtype, places, values, rows)
    else:
        _look_up(context, case.params["op"], dtype, places, values, rows)


def _look_up(
    context: Context, op: str, dtype: torch.dtype, places: torch.Tensor, values: torch.Tensor, rows: int
) -> None:
    device = context.device.torch_device
    table = torch.zeros(rows, ODD, dtype=dtype, device=device)
    table[places.to(device)] = values.to(device)
    step = _step(places)
    args: tuple[Any, ...] = (step, table) if op == "embedding" else (table, step)
    one = resolved(context, op, dtype, args, {"hidden": ODD, "vocab": rows})
    (got,) = launch(context, one, Placed([value.to(device) for value in args]))
    expect(same_bits(got.cpu(), values), f"{one}: other rows than those at {places.tolist()} came back")


def _write(context: Context, dtype: torch.dtype, places: torch.Tensor, values: torch.Tensor, rows: int) -> None:
    device = context.device.torch_device
    pages = -(-rows // PAGE_SIZE)
    pool = make_pool(context, pages, page_size=PAGE_SIZE, groups=(keys_and_values(1, WIDTH),), dtype=dtype)
    try:
        new = values.unsqueeze(1).to(device)
        args = (new, new, *pool.tensors(0, 0), _step(places).to(device), 0)
        one = resolved(context, "kv_write", dtype, args, {"heads": 1, "kv_heads": 1, "head_dim": WIDTH})
        launch(context, one, Placed(list(args)))
        for name, cache in zip(("keys", "values"), pool.tensors(0, 0), strict=True):
            for place, value in zip(places.tolist(), values, strict=True):
                found = cache[place // PAGE_SIZE, place % PAGE_SIZE, 0].cpu()
                expect(same_bits(found, value), f"{one}: slot {place} does not hold the {name} written there")
    finally:
        context.device.synchronize()
        pool.close()


def _step(places: torch.Tensor) -> Step:
    """A token for each place: its id, its slot and its row of logits are the place."""
    count = len(places)
    table = (places // PAGE_SIZE).to(torch.int32).unsqueeze(1)
    return Step(
        token_ids=places,
        positions=torch.zeros(count, dtype=torch.int64),
        query_start=torch.arange(count + 1, dtype=torch.int32),
        context_lens=torch.ones(count, dtype=torch.int32),
        logit_rows=places,
        groups=(Paged(table, places),),
        page_size=PAGE_SIZE,
        decode_rows=count,
        query_lens_host=(1,) * count,
        context_lens_host=(1,) * count,
    )


__all__: list[str] = []
