"""torch.distributed as the stack presents it: "nccl" outside, gloo inside. Knows no tensor's meaning."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from anychip_kunlun.emulator.contract import vendor_op
from anychip_kunlun.emulator.machine import Machine

NAME = "nccl"
CHECK_VARIABLE = "BKCL_CHECK_AW"


class Collectives:
    """Groups of processes, over gloo."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine

    def init_process_group(
        self,
        backend: str = NAME,
        init_method: str | None = None,
        timeout: timedelta | None = None,
        world_size: int = -1,
        rank: int = -1,
        store: Any = None,
    ) -> None:
        if backend != NAME:
            message = f"the emulator knows backend '{NAME}' only, not '{backend}'"
            raise ValueError(message)
        dist.init_process_group(
            "gloo", init_method=init_method, timeout=timeout, world_size=world_size, rank=rank, store=store
        )

    def destroy_process_group(self) -> None:
        dist.destroy_process_group()

    def is_initialized(self) -> bool:
        return dist.is_initialized()

    def get_backend(self) -> str:
        return NAME

    def get_rank(self) -> int:
        return dist.get_rank()

    def get_world_size(self) -> int:
        return dist.get_world_size()

    @vendor_op
    def all_reduce(self, tensor: torch.Tensor) -> None:
        self._check_windows()
        self.machine.launch("all_reduce", (tensor,), (tensor,), lambda: _reduce(tensor))

    @vendor_op
    def all_gather_into_tensor(self, output_tensor: torch.Tensor, input_tensor: torch.Tensor) -> None:
        self._check_windows()
        parts = list(output_tensor.view(dist.get_world_size(), *input_tensor.shape))

        def run() -> None:
            dist.all_gather(parts, input_tensor)

        self.machine.launch("all_gather", (input_tensor,), (output_tensor,), run)

    def _check_windows(self) -> None:
        """Boards whose cards are not behind one switch lack a window unless the check is switched off."""
        if not self.machine.profile.has_address_windows and self.machine.environ.get(CHECK_VARIABLE) != "0":
            message = f"BKCL error: addr_window not properly set ({CHECK_VARIABLE}=0 skips the check)"
            raise RuntimeError(message)


def _reduce(tensor: torch.Tensor) -> None:
    dist.all_reduce(tensor)


__all__ = ["CHECK_VARIABLE", "NAME", "Collectives"]
