"""Norms and activations of kunlun_ops. Knows rows; knows no position and no cache."""

from __future__ import annotations

from collections.abc import Callable

import torch

from anychip_kunlun.emulator.contract import FLOATS, Contract, vendor_op
from anychip_kunlun.emulator.machine import Machine


class DenseOps:
    """Out-of-place ops on contiguous rows; each writes into an argument."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine

    @vendor_op
    def rmsnorm(
        self,
        x: torch.Tensor,
        weight: torch.Tensor | None,
        output: torch.Tensor,
        eps: float = 1e-5,
        interweave: bool = False,
        store_output_before_norm: bool = True,
        bias: torch.Tensor | None = None,
        residual_output: torch.Tensor | None = None,
        output_max: torch.Tensor | None = None,
    ) -> None:
        """The newer generation: the weight has the dtype of x; None: ones."""
        _no_extras("rmsnorm", interweave=interweave, bias=bias, residual=residual_output, output_max=output_max)
        self._norm(x, weight, output, eps, (x.dtype,))

    @vendor_op
    def rmsnorm_with_out(
        self, x: torch.Tensor, weight: torch.Tensor, eps: float = 1e-5, out: torch.Tensor | None = None
    ) -> None:
        """The older generation's `rmsnorm`: another name and place for the output, a float32 weight."""
        if out is None:
            message = "rmsnorm() needs out"
            raise TypeError(message)
        self._norm(x, weight, out, eps, (torch.float32,))

    @vendor_op
    def add_rmsnorm(
        self,
        x: torch.Tensor,
        y: torch.Tensor,
        weight: torch.Tensor,
        output: torch.Tensor,
        eps: float = 1e-5,
        interweaved: bool = False,
        store_output_before_norm: bool = True,
        bias: torch.Tensor | None = None,
        smooth: torch.Tensor | None = None,
        residual_output: torch.Tensor | None = None,
        output_max: torch.Tensor | None = None,
    ) -> None:
        """residual_output <- x + y, output <- its norm; they may be y and x."""
        _no_extras("add_rmsnorm", interweaved=interweaved, bias=bias, smooth=smooth, output_max=output_max)
        contract = Contract("add_rmsnorm")
        _check_rows(contract, x=x, y=y, output=output)
        contract.contiguous(weight=weight, residual_output=residual_output)
        contract.dtype(self._weights_of(x.dtype), weight=weight)
        contract.shape(x.shape[-1:], weight=weight)
        contract.shape(x.shape, y=y, output=output, residual_output=residual_output)

        def run() -> None:
            # the sum is rounded before it is normed: the kernel stores it first
            total = (x.float() + y.float()).to(x.dtype)
            normed = norm(total, weight, eps)
            if residual_output is not None:
                residual_output.copy_(total)
            output.copy_(normed)

        writes = [output] if residual_output is None else [residual_output, output]
        self.machine.launch("add_rmsnorm", (x, y, weight), writes, run)

    @vendor_op
    def swiglu(self, x: torch.Tensor, y: torch.Tensor, axis: int = -1, turn: bool = True) -> None:
        """y <- silu(first half of x) * second half; without `turn` the halves change places."""
        self._swiglu("swiglu", x, y, axis, turn)

    @vendor_op
    def silu_and_mul(self, x: torch.Tensor, axis: int = -1, turn: bool = True, out: torch.Tensor | None = None) -> None:
        """The older name of `swiglu`."""
        if out is None:
            message = "silu_and_mul() needs out"
            raise TypeError(message)
        self._swiglu("silu_and_mul", x, out, axis, turn)

    @vendor_op
    def gelu(self, x: torch.Tensor, out: torch.Tensor) -> None:
        self._elementwise("gelu", x, out, torch.nn.functional.gelu)

    @vendor_op
    def quick_gelu(self, x: torch.Tensor, out: torch.Tensor) -> None:
        self._elementwise("quick_gelu", x, out, lambda one: one * torch.sigmoid(1.702 * one))

    def _norm(
        self,
        x: torch.Tensor,
        weight: torch.Tensor | None,
        output: torch.Tensor,
        eps: float,
        weights: tuple[torch.dtype, ...],
    ) -> None:
        contract = Contract("rmsnorm")
        _check_rows(contract, x=x, output=output)
        contract.contiguous(weight=weight)
        contract.dtype(weights, weight=weight)
        contract.shape(x.shape[-1:], weight=weight)
        contract.shape(x.shape, output=output)
        reads = (x,) if weight is None else (x, weight)
        self.machine.launch("rmsnorm", reads, (output,), lambda: _store(output, norm(x, weight, eps)))

    def _weights_of(self, dtype: torch.dtype) -> tuple[torch.dtype, ...]:
        return (torch.float32,) if self.machine.profile.generation == "torch251" else (dtype,)

    def _swiglu(self, op: str, x: torch.Tensor, y: torch.Tensor, axis: int, turn: bool) -> None:
        contract = Contract(op)
        _check_rows(contract, x=x, y=y)
        contract.need(axis in (-1, x.dim() - 1), f"axis {axis} is not the last")
        contract.need(x.shape[-1] % 2 == 0, f"{x.shape[-1]} columns have no halves")
        contract.shape((*x.shape[:-1], x.shape[-1] // 2), y=y)
        first_is_gate = turn != self.machine.profile.turned_swiglu

        def run() -> None:
            first, second = x.float().chunk(2, dim=-1)
            gate, value = (first, second) if first_is_gate else (second, first)
            y.copy_(torch.nn.functional.silu(gate) * value)

        self.machine.launch(op, (x,), (y,), run)

    def _elementwise(
        self, op: str, x: torch.Tensor, y: torch.Tensor, function: Callable[[torch.Tensor], torch.Tensor]
    ) -> None:
        contract = Contract(op)
        _check_rows(contract, x=x, y=y)
        contract.shape(x.shape, y=y)
        self.machine.launch(op, (x,), (y,), lambda: _store(y, function(x.float())))


def norm(x: torch.Tensor, weight: torch.Tensor | None, eps: float) -> torch.Tensor:
    """RMSNorm over the last dimension, in float32."""
    wide = x.float()
    normed = wide * torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + eps)
    return normed if weight is None else normed * weight.float()


def _store(target: torch.Tensor, value: torch.Tensor) -> None:
    target.copy_(value)


def _check_rows(contract: Contract, **tensors: torch.Tensor) -> None:
    """Contiguous rows of one floating dtype."""
    first = next(iter(tensors.values()))
    contract.dtype(FLOATS, **tensors)
    contract.dtype((first.dtype,), **tensors)
    contract.contiguous(**tensors)


def _no_extras(op: str, **extras: object) -> None:
    """Arguments that the emulator knows by name only."""
    given = [name for name, value in extras.items() if value is not None and value is not False]
    if given:
        message = f"the emulator's {op} has no {', '.join(given)}"
        raise NotImplementedError(message)


__all__ = ["DenseOps", "norm"]
