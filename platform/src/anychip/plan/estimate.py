"""What a checkpoint would take on a device, in each precision that a recipe can ask for. Reads no weights."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple, get_args

from anychip.plan.memory import MemoryNeeds, budget
from anychip.plan.resolve import CheckpointFacts, resolve
from anychip.recipe.schema import Dtype, Recipe
from anychip.weights.schemes import EIGHT_BITS, FOUR_BITS, Quantization
from anychip_sdk.backend import Backend
from anychip_sdk.device import DeviceInfo
from anychip_sdk.errors import AnychipError, MemoryInsufficient
from anychip_sdk.registry import dtype_name

ENDLESS = 2**60  #: bytes of a device on which everything fits


class Precision(NamedTuple):
    """What a recipe says of it: model.dtype and model.quantization."""

    dtype: str
    quantization: str

    @property
    def name(self) -> str:
        return self.dtype if self.quantization == "none" else self.quantization


@dataclass(frozen=True)
class Need:
    """What one precision takes, in bytes and tokens.

    Attributes:
        dtype: of activations, and of what is not quantized.
        needed: weights, states of a token and of a sequence, and what a step holds beside them.
        largest_context: of one request alone, prompt and output together; 0: not even a short one fits.
        problem: why there is no room or no such precision; empty where there is.
    """

    precision: Precision
    dtype: str
    needed: MemoryNeeds | None
    largest_context: int = 0
    problem: str = ""

    def bytes_of_states(self, context: int) -> int:
        """Of one request with so many tokens."""
        assert self.needed is not None
        return context * self.needed.kv_bytes_per_token + self.needed.bytes_per_slot


def precisions(device: DeviceInfo, storages: Iterable[str]) -> tuple[Precision, ...]:
    """Those that a device and a checkpoint stored so have."""
    plain = [Precision(name, "none") for name in map(dtype_name, device.capabilities.dtypes) if name in get_args(Dtype)]
    has_integers = bool(set(storages) & (EIGHT_BITS | FOUR_BITS))
    offered = [name for name in get_args(Quantization) if name != "none" and (name != "auto" or has_integers)]
    return (*plain, *(Precision("auto", name) for name in offered))


def estimate(
    recipe: Recipe, checkpoint: CheckpointFacts, backend: Backend, device: DeviceInfo, precision: Precision
) -> Need:
    """What the recipe's model takes in a precision, by the plan that an endless device would get."""
    wanted = {"dtype": precision.dtype, "quantization": precision.quantization, "context_length": None}
    said = recipe.model_copy(update={"model": recipe.model.model_copy(update=wanted)})
    endless = replace(device, memory_bytes_total=ENDLESS, memory_bytes_free=ENDLESS)
    try:
        plan = resolve(said, checkpoint, backend, endless, "asked for")
    except AnychipError as error:
        return Need(precision, precision.dtype, None, problem=error.message)
    memory = plan.memory
    needed = MemoryNeeds(
        memory.weights, memory.activations, memory.workspace, memory.kv_bytes_per_token, memory.bytes_per_slot
    )
    dtype, page_size = dtype_name(plan.model.dtype.value), plan.scheduler.page_size.value
    try:
        return Need(precision, dtype, needed, _largest(said, checkpoint, needed, device, page_size))
    except MemoryInsufficient as error:
        return Need(precision, dtype, needed, problem=str(error))


def _largest(
    recipe: Recipe, checkpoint: CheckpointFacts, needed: MemoryNeeds, device: DeviceInfo, page_size: int
) -> int:
    """The tokens of one request, by the device's capacity: what is free now may be so no longer tomorrow."""
    longest = checkpoint.config.longest_context
    empty = replace(device, memory_bytes_free=device.memory_bytes_total)
    fraction = recipe.memory.static_fraction
    fit = budget(needed, empty, fraction=fraction, page_size=page_size, context=longest, kv_tokens_max=None, running=1)
    return min(longest, fit.kv_pages * page_size)


__all__ = ["Need", "Precision", "estimate", "precisions"]
