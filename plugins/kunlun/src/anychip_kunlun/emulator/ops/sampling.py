"""Samplers of kunlun_ops: draw from the likeliest. Knows probabilities; knows no logits and no seeds per request."""

from __future__ import annotations

import torch

from anychip_kunlun.emulator.contract import Contract, vendor_op
from anychip_kunlun.emulator.machine import Machine


class SamplingOps:
    """Each takes probs [rows, vocabulary] in float32 and returns int32 ids; torch's generator draws."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine

    @vendor_op
    def top_k_sampling_from_probs(
        self, probs: torch.Tensor, top_k: torch.Tensor | int, deterministic: bool = True
    ) -> torch.Tensor:
        return self._draw("top_k_sampling_from_probs", probs, top_k, None)

    @vendor_op
    def top_p_sampling_from_probs(
        self, probs: torch.Tensor, top_p: torch.Tensor | float, deterministic: bool = True
    ) -> torch.Tensor:
        return self._draw("top_p_sampling_from_probs", probs, None, top_p)

    @vendor_op
    def top_k_top_p_sampling_from_probs(
        self,
        probs: torch.Tensor,
        top_k: torch.Tensor | int,
        top_p: torch.Tensor | float,
        deterministic: bool = True,
    ) -> torch.Tensor:
        return self._draw("top_k_top_p_sampling_from_probs", probs, top_k, top_p)

    def _draw(
        self, op: str, probs: torch.Tensor, top_k: torch.Tensor | int | None, top_p: torch.Tensor | float | None
    ) -> torch.Tensor:
        contract = Contract(op)
        contract.contiguous(probs=probs)
        contract.dtype((torch.float32,), probs=probs)
        contract.need(probs.dim() == 2, f"probs is {tuple(probs.shape)}, not [rows, vocabulary]")
        if isinstance(top_k, torch.Tensor):
            contract.dtype((torch.int32,), top_k=top_k)
            contract.shape((probs.shape[0],), top_k=top_k)
        if isinstance(top_p, torch.Tensor):
            contract.dtype((torch.float32,), top_p=top_p)
            contract.shape((probs.shape[0],), top_p=top_p)
        ids = torch.empty(probs.shape[0], dtype=torch.int32)
        given = [one for one in (top_k, top_p) if isinstance(one, torch.Tensor)]

        def run() -> None:
            ordered, order = kept(probs, top_k, top_p)
            chosen = torch.multinomial(ordered, 1)
            ids.copy_(order.gather(1, chosen).squeeze(1))

        self.machine.launch(op, (probs, *given), (ids,), run)
        return ids


def kept(
    probs: torch.Tensor, top_k: torch.Tensor | int | None, top_p: torch.Tensor | float | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Probabilities in falling order with what is cut off at 0, and the ids in that order."""
    ordered, order = probs.sort(dim=1, descending=True)
    if top_k is not None:
        most = top_k.long().unsqueeze(1) if isinstance(top_k, torch.Tensor) else top_k
        ordered = ordered.masked_fill(torch.arange(probs.shape[1]) >= most, 0.0)
    if top_p is not None:
        share = top_p.unsqueeze(1) if isinstance(top_p, torch.Tensor) else top_p
        ordered = ordered / ordered.sum(dim=1, keepdim=True)
        ordered = ordered.masked_fill(ordered.cumsum(dim=1) - ordered >= share, 0.0)
    return ordered, order


__all__ = ["SamplingOps", "kept"]
