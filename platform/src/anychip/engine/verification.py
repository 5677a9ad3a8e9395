"""Which fusions of a plan compute something else on this device. Knows the plan; the comparison is the graph's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from anychip.graph.fold import fold
from anychip.graph.ir import ModelGraph
from anychip.graph.verify import Verdict, Verifier, small_pool
from anychip.plan.plan import Plan
from anychip.plan.resolve import unfolded
from anychip_sdk.backend import Backend
from anychip_sdk.device import Device
from anychip_sdk.hooks import PreparedWeight
from anychip_sdk.kv import KVPool
from anychip_sdk.ops import CATALOGUE
from anychip_sdk.registry import REFERENCE, Override
from anychip_sdk.state import StateGroup

VOCAB = 32  #: words of the layers that are compared; the embedding is no matter of fusions
POSITIONS = 16


def refused_fusions(plan: Plan, backend: Backend, device: Device) -> dict[str, str]:
    """Policy -> why, for every applied fusion whose outputs differ; empty where all are right."""
    applied = [one.policy for one in plan.fusions if one.applied]
    if not applied:
        return {}
    check = _Check(plan, backend, device)
    together = check(applied)
    if together.passed:
        return {}
    alone = [verdict for verdict in (check([policy]) for policy in applied) if not verdict.passed]
    guilty = alone or [together]  # wrong only in company: none of them can be trusted
    return {policy: _words(verdict) for verdict in guilty for policy in verdict.policies}


def _words(verdict: Verdict) -> str:
    names = ", ".join(verdict.policies)
    return (
        f"fusion {names}: its outputs are off by {verdict.error:.2e} of the largest logit, "
        f"{verdict.bound:.2e} is what rounding explains"
    )


class _Check:
    """A layer of each kind of the plan's model, compared under any set of policies."""

    def __init__(self, plan: Plan, backend: Backend, device: Device) -> None:
        self._plan, self._backend, self._device = plan, backend, device
        vocab = min(VOCAB, plan.model.config.vocab_size)
        self._config = config = plan.model.config.sample(vocab)
        dtype = plan.model.dtype.value
        self._binding = replace(plan.binding, facts={**plan.binding.facts, "vocab": vocab})
        self._verifier = Verifier(
            unfolded(config, self._binding),
            self._truth(),
            device,
            self._prepare,
            self._pool,
            dtype,
            POSITIONS,
        )

    def __call__(self, policies: Sequence[str]) -> Verdict:
        fused = unfolded(self._config, self._binding)
        fold(fused, self._binding, policies, self._backend.fusions)
        return self._verifier.check(fused, policies)

    def _prepare(self, name: str, tensor: torch.Tensor, op: str) -> PreparedWeight:
        return self._backend.prepare_weight(name, tensor.to(self._binding.compute_dtype(op)), op, self._device)

    def _truth(self) -> ModelGraph:
        references = tuple(Override(name, provider=REFERENCE) for name in CATALOGUE)
        wide = torch.promote_types(self._plan.model.dtype.value, torch.float32)
        binding = replace(self._binding, dtype=wide, overrides=references, fallback_allowed=True)
        return unfolded(self._config, binding)

    def _pool(self, groups: Sequence[StateGroup]) -> KVPool:
        scheduler = self._plan.scheduler
        page_size = scheduler.page_size.value
        return self._backend.create_kv_pool(small_pool(groups, scheduler.kv_dtype, page_size), self._device)


__all__ = ["refused_fusions"]
