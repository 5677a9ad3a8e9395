"""Faults of plugins around their kernels: registrations, prepared weights, a layout of their own. Knows no check."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from anychip_sdk import ops
from anychip_sdk.conformance.reference.faulty.base import plugin_fault
from anychip_sdk.conformance.reference.faulty.kernels import Pair, Single
from anychip_sdk.conformance.reference.plugin import AsyncReferencePlugin
from anychip_sdk.hooks import PreparedWeight, hookimpl
from anychip_sdk.registry import KernelFunction, Need, Registrar
from anychip_sdk.step import Step

FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)

_paged_attention: Single = ops.paged_attention.reference


@plugin_fault("AC-KV-007")
class PagesOf32AreTransposed(AsyncReferencePlugin):
    """With 32 tokens per page, kernels keep heads before slots: they agree with each other, not with the pool."""

    broken_op = "kv_write"

    def kernels(self) -> Mapping[str, KernelFunction]:
        twisted: Mapping[str, KernelFunction] = {"kv_write": _twisted_write, "paged_attention": _twisted_attention}
        return {**super().kernels(), **twisted}


def _twisted(cache: torch.Tensor) -> torch.Tensor:
    pages, page_size, heads, dim = cache.shape
    return cache.view(pages, heads, page_size, dim).transpose(1, 2) if page_size == 32 else cache


def _twisted_write(
    k: torch.Tensor, v: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, step: Step, group: int = 0
) -> Pair:
    page_size, slots = k_cache.shape[1], step.paged(group).slots
    _twisted(k_cache)[slots // page_size, slots % page_size] = k.to(k_cache.dtype)
    _twisted(v_cache)[slots // page_size, slots % page_size] = v.to(v_cache.dtype)
    return k_cache, v_cache


def _twisted_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    step: Step,
    *rest: Any,
) -> torch.Tensor:
    return _paged_attention(q, _twisted(k), _twisted(v), step, *rest)


class _Registers(AsyncReferencePlugin):
    """The reference chip with another registration in front of its own."""

    @hookimpl
    def anychip_register_ops(self, registry: Registrar) -> None:
        self.offer(registry)
        AsyncReferencePlugin.anychip_register_ops(self, registry)

    def offer(self, registry: Registrar) -> None:
        """What is registered first."""


@plugin_fault("AC-OP-021")
class EveryDtypeIsAccepted(_Registers):
    """A kernel for floats is registered for integers too."""

    broken_op = "gelu"

    def offer(self, registry: Registrar) -> None:
        registry.register("gelu", ops.gelu.reference, dtypes=(*FLOATS, torch.int8), name="any_dtype")


@plugin_fault("AC-OP-021")
class RequirementsAreSilent(_Registers):
    """A requirement that says nothing of itself and breaks on facts that are not there."""

    broken_op = "silu"

    def offer(self, registry: Registrar) -> None:
        need = Need(lambda fact: fact % 2 == 0, "")  # type: ignore[operator]
        registry.register("silu", ops.silu.reference, dtypes=FLOATS, requires={"hidden": need}, name="picky")


@plugin_fault("AC-OP-022")
class AClaimHasNoKernel(AsyncReferencePlugin):
    """Claims mul, but leaves it to the fallback."""

    broken_op = "mul"

    def kernels(self) -> Mapping[str, KernelFunction]:
        return {name: kernel for name, kernel in super().kernels().items() if name != "mul"}


class _Prepares(_Registers):
    """The reference chip with a linear kernel on prepared weights."""

    broken_op = "linear"

    def offer(self, registry: Registrar) -> None:
        registry.register("linear", ops.linear.reference, dtypes=FLOATS, prepares_weight=True, name="prepared")

    @hookimpl
    def anychip_prepare_weight(self, name: str, tensor: torch.Tensor, op: str) -> PreparedWeight | None:
        plain = PreparedWeight(tensor.clone(), tensor.nbytes, "copied")
        return self.prepare(tensor, plain) if op == "linear" and tensor.dim() == 2 else None

    def prepare(self, tensor: torch.Tensor, plain: PreparedWeight) -> PreparedWeight:
        return plain


@plugin_fault("AC-OP-015")
class PreparingSpoilsTheWeight(_Prepares):
    """Packs the weight in place: whatever shares it gets the packed one."""

    def prepare(self, tensor: torch.Tensor, plain: PreparedWeight) -> PreparedWeight:
        tensor.copy_(tensor.flip(0))
        return plain


@plugin_fault("AC-OP-015")
class PreparedBytesAreHidden(_Prepares):
    """States no bytes for the prepared weights."""

    def prepare(self, tensor: torch.Tensor, plain: PreparedWeight) -> PreparedWeight:
        return replace(plain, nbytes=0)


@plugin_fault("AC-OP-015")
class PreparingAgainDiffers(_Prepares):
    """Every second preparation is in another blocking, which the kernel doesn't know."""

    times = 0

    def prepare(self, tensor: torch.Tensor, plain: PreparedWeight) -> PreparedWeight:
        self.times += 1
        value: torch.Tensor = plain.value
        return replace(plain, value=value.roll(1, 0) if self.times % 2 == 0 else value)


__all__: list[str] = []
