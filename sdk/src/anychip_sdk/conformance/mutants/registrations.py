"""Backends that say what is not so: of kernels, weights, capabilities. Knows no check."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch

from anychip_sdk.conformance.mutants.base import HealthyPlugin, healthy, healthy_claims, mutant
from anychip_sdk.conformance.reference.device import CAPABILITIES, AsyncReferenceDevice
from anychip_sdk.conformance.reference.memory import ChipMemory
from anychip_sdk.device import Capabilities, Device, DeviceInfo
from anychip_sdk.hooks import PreparedWeight, hookimpl
from anychip_sdk.ops import CATALOGUE
from anychip_sdk.registry import Facts, Need, Prepare, Registrar
from anychip_sdk.step import Paged, Step, StepLimits

CLAIMS = healthy_claims()


@mutant("AC-DEVICE-020", claims=replace(CLAIMS, dtypes=(*CLAIMS.dtypes, "float8_e5m2")))
class ClaimsADtypeThatItLacks(HealthyPlugin):
    """A dtype is claimed that the device does not compute in."""


@mutant("AC-DEVICE-020", claims=replace(CLAIMS, ops={**CLAIMS.ops, "silu": ("float32", "float16")}))
class ClaimsAKernelThatItLacks(HealthyPlugin):
    """An op is claimed for a dtype that no kernel is registered for."""


class _Modest(AsyncReferenceDevice):
    @property
    def capabilities(self) -> Capabilities:
        return replace(CAPABILITIES, async_streams=False)


@mutant("AC-DEVICE-020")
class ClaimsAsyncStreamsThatItLacks(HealthyPlugin):
    """Asynchronous streams are claimed; the device says that it has none."""

    device_class = _Modest

    def describe(self, chip: ChipMemory) -> DeviceInfo:
        return replace(super().describe(chip), capabilities=replace(CAPABILITIES, async_streams=False))


@mutant("AC-DEVICE-021", "AC-OP-022", claims=replace(CLAIMS, ops={**CLAIMS.ops, "silu": ("float32",)}))
class ServesWhatItDoesNotClaim(HealthyPlugin):
    """A kernel serves a dtype that nobody claims, so that nothing tests it."""


@mutant("AC-OP-022")
class RefusesItsUsualSizes(HealthyPlugin):
    """A kernel is registered whose requirements hold for no model, so that the fallback serves."""

    @hookimpl
    def anychip_register_ops(self, registry: Registrar) -> None:
        for op, kernel in self.kernels().items():
            never = {"head_dim": Need(lambda fact: fact == 7, "7")} if op == "rope" else {}
            registry.register(op, kernel, dtypes=self.dtypes, name=op, requires=never, version=CATALOGUE[op].version)


@mutant("AC-OP-015")
class PreparedWeightsAreTransposed(HealthyPlugin):
    """The weight is laid out by columns, for a kernel that reads rows."""

    @hookimpl
    def anychip_register_ops(self, registry: Registrar) -> None:
        for op, kernel in self.kernels().items():
            registry.register(
                op, kernel, dtypes=self.dtypes, name=op, prepares_weight=op == "linear", version=CATALOGUE[op].version
            )

    @hookimpl
    def anychip_prepare_weight(self, name: str, tensor: torch.Tensor, op: str, device: Device) -> PreparedWeight:
        by_columns = tensor.T.contiguous().view(tensor.shape) if tensor.dim() == 2 else tensor
        return PreparedWeight(by_columns, by_columns.nbytes, "columns")


class PreparingPlugin(HealthyPlugin):
    """Healthy, with an attention kernel that keeps the step's page table in a buffer of its own."""

    @hookimpl
    def anychip_register_ops(self, registry: Registrar) -> None:
        for op, kernel in self.kernels().items():
            prepare = Prepare(self.make, facts=("group",)) if op == "paged_attention" else None
            registry.register(op, kernel, dtypes=self.dtypes, name=op, prepare=prepare, version=CATALOGUE[op].version)

    def make(self, facts: Facts, constants: Mapping[str, Any], limits: StepLimits) -> Callable[[Step], Step]:
        buffer = torch.zeros(limits.rows, limits.pages, dtype=torch.int32, device=limits.device)

        def prepared(step: Step) -> Step:
            entry = step.paged(0)
            rows, pages = entry.page_table.shape
            self.fill(buffer, entry.page_table)
            return replace(step, groups=(Paged(buffer[:rows, :pages], entry.slots),))

        return prepared

    def fill(self, buffer: torch.Tensor, table: torch.Tensor) -> None:
        buffer[: table.shape[0], : table.shape[1]].copy_(table)


healthy("AC-OP-023", PreparingPlugin, CLAIMS)


@mutant("AC-OP-023", op="paged_attention")
class PreparesTheFirstStepOnly(PreparingPlugin):
    """What was prepared of the first step serves all that follow."""

    def fill(self, buffer: torch.Tensor, table: torch.Tensor) -> None:
        if not bool(buffer.any()):
            super().fill(buffer, table)


@mutant("AC-OP-023", op="paged_attention")
class BufferIsNotRefreshed(PreparingPlugin):
    """A row of the page table that was written once is not written again."""

    def fill(self, buffer: torch.Tensor, table: torch.Tensor) -> None:
        part = buffer[: table.shape[0], : table.shape[1]]
        part.copy_(torch.where(part == 0, table, part))


__all__: list[str] = []
