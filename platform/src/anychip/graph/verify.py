"""Run fused and unfused graphs on the same random inputs and compare. Knows error bounds; loads no checkpoint.

One layer of each kind, of the model's real width and with random weights, stands for all: layers of a kind are
rewritten alike. The yardstick is the unfused graph run by the references in float32 or better: a fused graph may be as
wrong as the unfused one is with the backend's own kernels, times a margin, plus a few roundings of the dtype; what is
beyond that is another function.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch

from anychip.graph.codegen import generate
from anychip.graph.ir import ModelGraph
from anychip.graph.program import program_of, weight_uses
from anychip.weights.pieces import assembled
from anychip_sdk.device import Device
from anychip_sdk.hooks import PreparedWeight
from anychip_sdk.kv import KVPool, PoolSpec
from anychip_sdk.state import StateGroup, bytes_per_slot, bytes_per_token
from anychip_sdk.step import Paged, Slots, Step

MARGIN = 4.0  #: how much further from the truth than the unfused graph
ROUNDINGS = 8.0  #: and so many units of the dtype's precision
#: (new tokens, tokens in all) of the rows of the step that is run: a decode behind three tokens, a prefill of five
STEP_ROWS = ((1, 4), (5, 5))
PAGES = 16  #: of the pool that it is run on; enough for nine tokens with a page each

Prepare = Callable[[str, torch.Tensor, str], PreparedWeight]
MakePool = Callable[[Sequence[StateGroup]], KVPool]


@dataclass(frozen=True)
class Verdict:
    """The outcome for one set of policies; errors relative to the largest logit."""

    policies: tuple[str, ...]
    error: float
    bound: float

    @property
    def passed(self) -> bool:
        return self.error <= self.bound


class LayerRun:
    """Runs graphs of one layer on a device, each on a pool of its own.

    Args:
        device: that everything runs on.
        prepare: a weight's form for a kernel: name, tensor and op in.
        make_pool: a pool for a graph's groups of states.
        positions: that tables are computed for.
    """

    def __init__(self, device: Device, prepare: Prepare, make_pool: MakePool, positions: int) -> None:
        self._device = device
        self._prepare = prepare
        self._make_pool = make_pool
        self._positions = positions

    def __call__(
        self, model: ModelGraph, dtype: torch.dtype, sources: Mapping[str, torch.Tensor]
    ) -> tuple[torch.Tensor, ...]:
        """What the graph returns, on the host.

        Args:
            model: all its ops are bound.
            dtype: that weights and states are used in.
            sources: the checkpoint's tensors by name.
        """
        pool = self._make_pool(model.groups)
        try:
            step = step_of(pool, self._device)
            generated = generate(program_of(model), self.values(model, dtype, sources, pool), step.limits())
            with torch.inference_mode():
                out = generated.function(step)
            self._device.synchronize()
            return tuple(one.cpu() for one in out)
        finally:
            pool.close()

    def values(
        self, model: ModelGraph, dtype: torch.dtype, sources: Mapping[str, torch.Tensor], pool: KVPool
    ) -> dict[str, Any]:
        """What `generate` binds: weights, states and tables."""
        where = self._device.torch_device
        tables = {name: table.compute(self._positions).to(where) for name, table in model.tables.items()}
        return {**self._weights(model, dtype, sources), **_states(model, pool, dtype), **tables}

    def _weights(self, model: ModelGraph, dtype: torch.dtype, sources: Mapping[str, torch.Tensor]) -> dict[str, Any]:
        plain: dict[str, torch.Tensor] = {}
        found: dict[str, Any] = {}
        for use in weight_uses(model):
            name = use.spec.name
            if name not in plain:
                joined = assembled(use.spec.sources, sources).view(use.spec.shape)
                plain[name] = joined.to(device=self._device.torch_device, dtype=use.spec.dtype or dtype)
            found[use.key] = self._prepare(name, plain[name], use.op).value if use.is_prepared else plain[name]
        return found


def _states(model: ModelGraph, pool: KVPool, dtype: torch.dtype) -> dict[str, Any]:
    """The pool's tensors, zeroed; wider ones of their own where the truth is computed."""
    found = {}
    for name, (group, layer, index) in model.states.items():
        tensor = pool.tensors(group, layer)[index].zero_()  # the earlier tokens' place: a pool may hold anything
        wide = tensor.is_floating_point() and dtype.itemsize > tensor.itemsize
        found[name] = torch.zeros_like(tensor, dtype=dtype) if wide else tensor
    return found


class Verifier:
    """Holds one random layer and its true outputs; `check` compares a fused graph with them."""

    def __init__(
        self,
        unfused: ModelGraph,
        truth: ModelGraph,
        device: Device,
        prepare: Prepare,
        make_pool: MakePool,
        dtype: torch.dtype,
        positions: int,
    ) -> None:
        self._run = LayerRun(device, prepare, make_pool, positions)
        self._dtype = dtype
        self._sources = random_weights(unfused, dtype)
        [self._truth] = self._run(truth, torch.promote_types(dtype, torch.float32), self._sources)
        self._scale = float(self._truth.abs().max())
        self._unfused_error = self._error(unfused)

    def check(self, fused: ModelGraph, policies: Sequence[str]) -> Verdict:
        bound = MARGIN * self._unfused_error + ROUNDINGS * torch.finfo(self._dtype).eps
        return Verdict(tuple(policies), self._error(fused), bound)

    def _error(self, model: ModelGraph) -> float:
        [found] = self._run(model, self._dtype, self._sources)
        out = found.to(self._truth.dtype)
        if not bool(torch.isfinite(out).all()):
            return float("inf")
        return float((out - self._truth).abs().max()) / self._scale


def random_weights(model: ModelGraph, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """A tensor per checkpoint name, rounded to the dtype; matrices keep the size of what they multiply."""
    generator = torch.Generator().manual_seed(0)
    found: dict[str, torch.Tensor] = {}
    for source in (one for spec in model.weights.values() for one in spec.sources):
        if source.tensor in found:
            continue
        if len(source.shape) > 1:
            value = torch.randn(source.shape, generator=generator) * source.matrix[1] ** -0.5
        else:
            value = 1 + 0.5 * torch.randn(source.shape, generator=generator)  # spread, so that swapped norms show
        found[source.tensor] = value.to(dtype)
    return found


def small_pool(
    groups: Sequence[StateGroup], dtype: torch.dtype, page_size: int, rows: int = len(STEP_ROWS)
) -> PoolSpec:
    """What `step_of` needs: a page for each of its nine tokens at most, and a slot for each row."""
    slots = rows if any(group.spec.kind == "slot" for group in groups) else 0
    token_bytes, slot_bytes = bytes_per_token(groups, dtype), bytes_per_slot(groups, dtype)
    budget = PAGES * page_size * token_bytes + slots * slot_bytes
    return PoolSpec(tuple(groups), dtype, budget, page_size, PAGES, slots)


def step_of(pool: KVPool, device: Device, first_token: int = 3, rows: Sequence[tuple[int, int]] = STEP_ROWS) -> Step:
    """A step of those rows, over earlier tokens whose entries are what the pool's pages hold; all logits are wanted.

    Its pages are the pool's: free them with `free_step` where the pool is used again.

    Args:
        first_token: the others follow it.
        rows: new tokens and tokens in all of each, those with one new token first.
    """
    page_size = pool.layout.page_size
    lengths, contexts = zip(*rows, strict=True)
    count = sum(lengths)
    table = [pool.alloc(-(-context // page_size)) for context in contexts]
    width = max(map(len, table))
    slots, positions = [], []
    for pages, length, context in zip(table, lengths, contexts, strict=True):
        for at in range(context - length, context):
            positions.append(at)
            slots.append(pages[at // page_size] * page_size + at % page_size)
    padded = [[*pages, *[0] * (width - len(pages))] for pages in table]
    paged = Paged(torch.tensor(padded, dtype=torch.int32), torch.tensor(slots))
    slotted = Slots(torch.arange(len(lengths)))
    return Step(
        token_ids=torch.arange(first_token, first_token + count),
        positions=torch.tensor(positions),
        query_start=torch.tensor([0, *accumulate(lengths)], dtype=torch.int32),
        context_lens=torch.tensor(contexts, dtype=torch.int32),
        logit_rows=torch.arange(count),
        groups=tuple(paged if group.spec.kind == "paged" else slotted for group in pool.groups),
        page_size=page_size,
        decode_rows=lengths.count(1),
        query_lens_host=lengths,
        context_lens_host=contexts,
    ).to(device.torch_device)


def free_step(pool: KVPool, step: Step) -> None:
    """Give the pages of `step_of` back."""
    size = step.page_size
    for entry in step.groups:
        if isinstance(entry, Paged):
            used = [-(-context // size) for context in step.context_lens_host]
            pool.free([page for row, count in enumerate(used) for page in entry.page_table[row, :count].tolist()])
            return


__all__ = [
    "MARGIN",
    "ROUNDINGS",
    "STEP_ROWS",
    "LayerRun",
    "MakePool",
    "Verdict",
    "Verifier",
    "free_step",
    "random_weights",
    "small_pool",
    "step_of",
]
