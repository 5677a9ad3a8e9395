"""Norms and the gated activation on the vendor's ops. Knows contiguous rows; knows no head and no cache."""

from __future__ import annotations

import torch

from anychip_kunlun.vendor import VendorOps


class Rows:
    """Ops along the last dimension; each takes contiguous rows and writes into an argument."""

    def __init__(self, vendor: VendorOps) -> None:
        self._vendor = vendor

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        x = x.contiguous()
        out = torch.empty_like(x)
        if x.numel():
            rows = (-1, x.shape[-1])
            self._norm(x.view(rows), self._weight(weight, x.dtype), out.view(rows), eps)
        return out

    def add_rms_norm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        x, residual = x.contiguous(), residual.contiguous()
        out, total = torch.empty_like(x), torch.empty_like(x)
        if x.numel():
            rows = (-1, x.shape[-1])
            self._vendor.call(
                "add_rmsnorm",
                x.view(rows),
                residual.view(rows),
                weight=self._weight(weight, x.dtype),
                eps=eps,
                output=out.view(rows),
                residual_output=total.view(rows),
            )
        return out, total

    def silu_mul(self, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        return self.swiglu(_joined(gate, up))

    def swiglu(self, both: torch.Tensor) -> torch.Tensor:
        """silu of the first half of each row times the second."""
        out = both.new_empty((*both.shape[:-1], both.shape[-1] // 2))
        if out.numel():
            x, y = both.contiguous().view(-1, both.shape[-1]), out.view(-1, out.shape[-1])
            self._vendor.call("swiglu", x=x, y=y)
        return out

    def _norm(self, x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor, eps: float) -> None:
        if self._is_older:
            self._vendor.call("rmsnorm", x, weight, out=out, eps=eps)
        else:
            self._vendor.call("rmsnorm", x, weight, out, eps)

    def _weight(self, weight: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """The older generation wants float32."""
        return weight.to(torch.float32 if self._is_older else dtype)

    @property
    def _is_older(self) -> bool:
        return "out" in self._vendor.parameters("rmsnorm")


def _joined(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """[..., gate and up] contiguous: the tensor that they are the halves of, if they are, else a copy."""
    width = gate.shape[-1]
    if (
        gate.untyped_storage().data_ptr() == up.untyped_storage().data_ptr()
        and up.storage_offset() == gate.storage_offset() + width
        and gate.dim() == up.dim() == 2
        and gate.stride() == up.stride() == (2 * width, 1)
    ):
        return gate.as_strided((gate.shape[0], 2 * width), (2 * width, 1))
    return torch.cat((gate, up), dim=-1)


__all__ = ["Rows"]
