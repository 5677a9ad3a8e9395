"""What the chip's own torch computes as well as a fused op would, and sampling. Knows no vendor op.

Tokens are what a step waits for, so these kernels wait for the device in a way that names what failed.
"""

from __future__ import annotations

import torch
from torch.nn import functional

from anychip_kunlun.vendor import VendorOps
from anychip_sdk.ops import embedding, select_rows
from anychip_sdk.ops import sample as sample_op
from anychip_sdk.registry import KernelFunction


def gelu(x: torch.Tensor) -> torch.Tensor:
    return functional.gelu(x, approximate="tanh")


def gelu_mul(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return functional.gelu(gate, approximate="tanh") * up


class Sampling:
    """From logits to tokens."""

    def __init__(self, vendor: VendorOps) -> None:
        self._vendor = vendor

    def argmax(self, logits: torch.Tensor) -> torch.Tensor:
        self._vendor.trail.last_op = "argmax"
        tokens = logits.max(dim=-1).indices
        self._wait()
        return tokens

    def sample(
        self,
        logits: torch.Tensor,
        temperature: torch.Tensor,
        top_k: torch.Tensor,
        top_p: torch.Tensor,
        min_p: torch.Tensor,
        uniform: torch.Tensor,
    ) -> torch.Tensor:
        """On the host: the op is defined in float64, which the chip has not, and its samplers draw on their own."""
        arguments = (logits, temperature, top_k, top_p, min_p, uniform)
        self._wait()
        drawn: torch.Tensor = sample_op.reference(*(argument.cpu() for argument in arguments))
        return drawn.to(logits.device)

    def _wait(self) -> None:
        vendor = self._vendor
        vendor.trail.waiting(lambda: vendor.stack.accelerator.synchronize(vendor.device_index))


PLAIN: dict[str, KernelFunction] = {
    "add": torch.add,
    "embedding": embedding.reference,  # plain torch already
    "gelu": gelu,
    "gelu_mul": gelu_mul,
    "select_rows": select_rows.reference,
}

__all__ = ["PLAIN", "Sampling"]
