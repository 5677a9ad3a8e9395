"""Run fused and unfused graphs on the same random inputs and compare. Knows error bounds; loads no checkpoint.

One layer of the model's real width with random weights stands for all: every layer is rewritten alike. The yardstick is
the unfused graph run by the references in float32 or better: a fused graph may be as wrong as the unfused one is with
the backend's own kernels, times a margin, plus a few roundings of the dtype; what is beyond that is another function.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from anychip.graph.codegen import generate, weight_key
from anychip.graph.ir import ModelGraph, resolution
from anychip_sdk.device import Device
from anychip_sdk.hooks import PreparedWeight
from anychip_sdk.kv import KVPool
from anychip_sdk.ops import AttentionBatch, Op

MARGIN = 4.0  #: how much further from the truth than the unfused graph
ROUNDINGS = 8.0  #: and so many units of the dtype's precision

Prepare = Callable[[str, torch.Tensor, str], PreparedWeight]


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
    """Runs graphs of one layer on a device, each on a pool of its own."""

    def __init__(
        self, device: Device, prepare: Prepare, buffers: Mapping[str, Any], make_pool: Callable[[], KVPool]
    ) -> None:
        self._device = device
        self._prepare = prepare
        self._buffers = dict(buffers)
        self._make_pool = make_pool

    def __call__(
        self, model: ModelGraph, dtype: torch.dtype, sources: Mapping[str, torch.Tensor]
    ) -> tuple[torch.Tensor, ...]:
        """What the graph returns, on the host.

        Args:
            model: all its ops are bound.
            dtype: that weights and caches are used in.
            sources: the checkpoint's tensors by name.
        """
        pool = self._make_pool()
        try:
            generated = generate(model, self.values(model, dtype, sources, pool))
            with torch.inference_mode():
                out: Any = generated.forward(*step_inputs(pool, self._device))
            self._device.synchronize()
            return tuple(one.cpu() for one in (out if isinstance(out, tuple) else (out,)))
        finally:
            pool.close()

    def values(
        self, model: ModelGraph, dtype: torch.dtype, sources: Mapping[str, torch.Tensor], pool: KVPool
    ) -> dict[str, Any]:
        """What `generate` binds: weights and buffers."""
        return {**self._weights(model, dtype, sources), **self._bound_buffers(model, pool, dtype)}

    def _bound_buffers(self, model: ModelGraph, pool: KVPool, dtype: torch.dtype) -> dict[str, Any]:
        keys, values = (cache.zero_() for cache in pool.layer(0))  # the earlier tokens' place: a pool may hold anything
        if dtype.itemsize > keys.dtype.itemsize:  # the truth is computed on caches of its own precision
            keys, values = torch.zeros_like(keys, dtype=dtype), torch.zeros_like(values, dtype=dtype)
        caches = {"k_cache": keys, "v_cache": values}
        return {name: caches.get(name.rpartition(".")[2], self._buffers.get(name)) for name in model.buffers}

    def _weights(self, model: ModelGraph, dtype: torch.dtype, sources: Mapping[str, torch.Tensor]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for node in model.graph.nodes:
            if node.op != "get_attr" or node.target not in model.weights:
                continue
            spec = model.weights[str(node.target)]
            joined = torch.cat([sources[source] for source in spec.sources])
            plain = joined.to(device=self._device.torch_device, dtype=dtype)
            for user in node.users:
                key = weight_key(spec.name, user)
                prepared = isinstance(user.target, Op) and resolution(user).kernel.prepares_weight
                if key not in found:
                    name = user.target.name if isinstance(user.target, Op) else ""
                    found[key] = self._prepare(spec.name, plain, name).value if prepared else plain
        return found


class Verifier:
    """Holds one random layer and its true outputs; `check` compares a fused graph with them."""

    def __init__(
        self,
        unfused: ModelGraph,
        truth: ModelGraph,
        device: Device,
        prepare: Prepare,
        buffers: Mapping[str, Any],
        make_pool: Callable[[], KVPool],
        dtype: torch.dtype,
    ) -> None:
        self._run = LayerRun(device, prepare, buffers, make_pool)
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
    found = {}
    for spec in model.weights.values():
        if len(spec.shape) > 1:
            value = torch.randn(spec.shape, generator=generator) * spec.shape[-1] ** -0.5
        else:
            value = 1 + 0.5 * torch.randn(spec.shape, generator=generator)  # spread, so that swapped norms show
        found[spec.name] = value.to(dtype)
    return found


def step_inputs(pool: KVPool, device: Device, first_token: int = 3) -> tuple[Any, ...]:
    """A decode row over three earlier tokens and a prefill row of five, the earlier tokens' keys being zero."""
    page_size = pool.layout.page_size
    lengths, contexts = (1, 5), (4, 5)
    table = [pool.alloc(-(-context // page_size)) for context in contexts]
    width = max(map(len, table))
    slots, positions = [], []
    for pages, length, context in zip(table, lengths, contexts, strict=True):
        for at in range(context - length, context):
            positions.append(at)
            slots.append(pages[at // page_size] * page_size + at % page_size)
    where = device.torch_device
    batch = AttentionBatch(
        query_start=torch.tensor([0, 1, 6], dtype=torch.int32, device=where),
        context_lens=torch.tensor(contexts, dtype=torch.int32, device=where),
        page_table=torch.tensor([[*pages, *[0] * (width - len(pages))] for pages in table], dtype=torch.int32).to(
            where
        ),
        slots=torch.tensor(slots, device=where),
        page_size=page_size,
        decode_rows=1,
        query_lens_host=lengths,
        context_lens_host=contexts,
    )
    tokens = torch.arange(first_token, first_token + 6, device=where)
    return tokens, torch.tensor(positions, device=where), batch.slots, batch, torch.arange(6, device=where)


__all__ = ["MARGIN", "ROUNDINGS", "LayerRun", "Verdict", "Verifier", "random_weights", "step_inputs"]
