"""int8 of kunlun_ops: quantise rows, multiply. A "scale" here is the absolute maximum; the kernel divides by 127."""

from __future__ import annotations

import torch

from anychip_kunlun.emulator.contract import FLOATS, Contract, vendor_op
from anychip_kunlun.emulator.machine import Machine
from anychip_kunlun.emulator.ops.cache import INT8_MAX


class QuantOps:
    """Dynamic per-token and static per-channel absmax."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine

    @vendor_op
    def quant2d(self, x: torch.Tensor, y: torch.Tensor, max: torch.Tensor, force_sdnn: bool = False) -> None:  # noqa: A002
        """y <- int8 of the rows of x, max <- their absmax."""
        contract = Contract("quant2d")
        contract.contiguous(x=x, y=y, max=max)
        contract.dtype(FLOATS, x=x)
        contract.dtype((torch.int8,), y=y)
        contract.dtype((torch.float32,), max=max)
        contract.need(x.dim() == 2, f"x is {tuple(x.shape)}, not [rows, columns]")
        contract.shape(x.shape, y=y)
        contract.need(max.numel() == x.shape[0], f"max is {tuple(max.shape)}, there are {x.shape[0]} rows")

        def run() -> None:
            absmax = x.float().abs().amax(dim=1, keepdim=True)
            y.copy_((x.float() / absmax.clamp_min(1e-30) * INT8_MAX).round().clamp(-INT8_MAX, INT8_MAX))
            max.copy_(absmax.view(max.shape))

        self.machine.launch("quant2d", (x,), (y, max), run)

    @vendor_op
    def dequant2d_per_token(
        self,
        x: torch.Tensor,
        scale: torch.Tensor,
        y: torch.Tensor,
        is_absmax: bool = True,
    ) -> None:
        """y <- the rows of int8 x times scale / 127, or times scale itself without `is_absmax`."""
        contract = Contract("dequant2d_per_token")
        contract.contiguous(x=x, scale=scale, y=y)
        contract.dtype((torch.int8,), x=x)
        contract.dtype((torch.float32,), scale=scale)
        contract.dtype(FLOATS, y=y)
        contract.shape(x.shape, y=y)
        contract.need(scale.numel() == x.shape[0], f"scale is {tuple(scale.shape)}, there are {x.shape[0]} rows")
        factor = INT8_MAX if is_absmax else 1

        def run() -> None:
            y.copy_(x.float() * (scale.view(-1, 1) / factor))

        self.machine.launch("dequant2d_per_token", (x, scale), (y,), run)

    @vendor_op
    def matmul(
        self,
        x: torch.Tensor,
        w: torch.Tensor,
        out: torch.Tensor,
        x_trans: bool = False,
        w_trans: bool = True,
        alpha: float = 1.0,
        beta: float = 0.0,
        bias: torch.Tensor | None = None,
        x_max: torch.Tensor | None = None,
        w_max: torch.Tensor | None = None,
        x_pc_max: torch.Tensor | None = None,
        w_pc_max: torch.Tensor | None = None,
    ) -> None:
        """out <- x w^T + bias; int8 operands with the absmax of each row of x (x_pc_max) and of w (w_pc_max)."""
        contract = Contract("matmul")
        contract.contiguous(x=x, w=w, out=out, bias=bias, x_pc_max=x_pc_max, w_pc_max=w_pc_max)
        contract.need(not x_trans and w_trans, "only x times w transposed is supported")
        contract.need(alpha == 1.0 and beta == 0.0, f"alpha {alpha}, beta {beta}")
        contract.need(x_max is None and w_max is None, "absmax per tensor is not emulated")
        contract.need(x.dim() == w.dim() == 2 and x.shape[1] == w.shape[1], f"{tuple(x.shape)} by {tuple(w.shape)}")
        contract.shape((x.shape[0], w.shape[0]), out=out)
        contract.dtype(FLOATS, out=out, bias=bias)
        contract.dtype((*FLOATS, torch.int8), x=x)
        contract.dtype((x.dtype,), w=w)
        if bias is not None:
            contract.shape((w.shape[0],), bias=bias)
        if x.dtype == torch.int8:
            _check_absmax(contract, x, w, x_pc_max, w_pc_max)

        def run() -> None:
            product = _product(x, w, x_pc_max, w_pc_max)
            out.copy_(product if bias is None else product + bias.float())

        optional = tuple(one for one in (bias, x_pc_max, w_pc_max) if one is not None)
        self.machine.launch("matmul", (x, w, *optional), (out,), run)


def _check_absmax(
    contract: Contract, x: torch.Tensor, w: torch.Tensor, x_absmax: torch.Tensor | None, w_absmax: torch.Tensor | None
) -> None:
    contract.need(x_absmax is not None and w_absmax is not None, "int8 needs x_pc_max and w_pc_max")
    assert x_absmax is not None
    assert w_absmax is not None
    contract.dtype((torch.float32,), x_pc_max=x_absmax, w_pc_max=w_absmax)
    contract.need(x_absmax.numel() == x.shape[0], f"x_pc_max is {tuple(x_absmax.shape)}")
    contract.need(w_absmax.numel() == w.shape[0], f"w_pc_max is {tuple(w_absmax.shape)}")


def _product(
    x: torch.Tensor, w: torch.Tensor, x_absmax: torch.Tensor | None, w_absmax: torch.Tensor | None
) -> torch.Tensor:
    if x_absmax is None or w_absmax is None:
        return x.float() @ w.float().t()
    # a copy: of a single column torch reads a view's strides wrongly
    columns = w.t().clone(memory_format=torch.contiguous_format)
    sums = torch._int_mm(x, columns).float()
    return sums * (x_absmax.view(-1, 1) / INT8_MAX) * (w_absmax.view(1, -1) / INT8_MAX)


__all__ = ["QuantOps"]
