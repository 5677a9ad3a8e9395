"""Which kernel runs which op, and why not another. Knows kernels and facts; knows no model and no graph."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Union

import torch

from anychip_sdk.ops.base import CATALOGUE, Catalogue
from anychip_sdk.reasons import why_fallback, why_own
from anychip_sdk.step import Step, StepLimits

REFERENCE = "reference"  #: the provider of the SDK's own kernels: the fallback

Fact = Union[int, float, str, bool, None]
Facts = Mapping[str, Fact]
KernelFunction = Callable[..., Any]


@dataclass(frozen=True)
class OpKey:
    """What identifies an op to a backend."""

    name: str
    version: int
    dtype: torch.dtype

    def __str__(self) -> str:
        return f"{self.name} v{self.version} {dtype_name(self.dtype)}"


@dataclass(frozen=True)
class Need:
    """A kernel's requirement on one fact."""

    test: Callable[[Fact], bool]
    text: str  #: completes "needs ..."


def one_of(*values: Fact) -> Need:
    """The fact is one of the values."""
    return Need(lambda fact: fact in values, "one of " + ", ".join(map(str, values)))


def at_most(limit: float) -> Need:
    return Need(lambda fact: isinstance(fact, (int, float)) and fact <= limit, f"at most {limit}")


def at_least(limit: float) -> Need:
    return Need(lambda fact: isinstance(fact, (int, float)) and fact >= limit, f"at least {limit}")


def multiple_of(divisor: int) -> Need:
    return Need(lambda fact: isinstance(fact, int) and fact % divisor == 0, f"a multiple of {divisor}")


MakePreparation = Callable[[Facts, Mapping[str, Any], StepLimits], Callable[[Step], Any]]


@dataclass(frozen=True)
class Prepare:
    """What a kernel derives from a step once, before the forward, instead of in each layer.

    The kernel gets the result in the place of the step. Calls whose facts and constants are equal share one result, so
    name only those that are read.

    Attributes:
        make: called once at load with the facts, the constants by argument name, and the limits of any step; buffers
            are made here. What it returns is called with each step.
        facts: the facts that `make` reads.
        constants: the arguments bound at load (weights, tables, caches) that `make` reads.
    """

    make: MakePreparation
    facts: tuple[str, ...] = ()
    constants: tuple[str, ...] = ()


@dataclass(frozen=True)
class Kernel:
    """One implementation of an op.

    `prepares_weight`: its weights go through `anychip_prepare_weight` first; other kernels get them as they are.
    `prepare`: what it gets in the place of the step; None: the step itself.
    """

    op: str
    version: int
    dtypes: tuple[torch.dtype, ...]
    function: KernelFunction
    provider: str
    name: str
    requires: Mapping[str, Need] = field(default_factory=dict)
    prepares_weight: bool = False
    prepare: Prepare | None = None


@dataclass(frozen=True)
class Rejection:
    """A kernel that was considered and why it doesn't run."""

    provider: str
    kernel: str
    reason: str


@dataclass(frozen=True)
class Override:
    """The recipe's word on one op: ban providers, insist on one, or compute in another dtype."""

    op: str
    dtype: torch.dtype | None = None  #: applies to this dtype only; None: to all
    provider: str | None = None
    ban: tuple[str, ...] = ()
    compute_dtype: torch.dtype | None = None


@dataclass(frozen=True)
class Resolution:
    """Which kernel an op got, and the reason for each other candidate's rejection."""

    key: OpKey
    kernel: Kernel
    reason: str
    rejected: tuple[Rejection, ...]
    compute_dtype: torch.dtype | None = None

    @property
    def provider(self) -> str:
        return self.kernel.provider

    @property
    def is_fallback(self) -> bool:
        return self.kernel.provider == REFERENCE


class OpRegistry:
    """The kernels of one backend, the SDK's references behind them."""

    def __init__(self, catalogue: Catalogue = CATALOGUE) -> None:
        self.catalogue = catalogue
        self._kernels: dict[str, list[Kernel]] = {name: [] for name in catalogue}

    def registrar(self, provider: str) -> Registrar:
        """What `anychip_register_ops` is called with: registers in that provider's name."""
        return Registrar(self, provider)

    def add(self, kernel: Kernel) -> None:
        """Take a kernel in; the first registered of a provider that fits wins.

        Raises:
            ValueError: unknown op or version, no dtype, or the same name twice.
        """
        known = self.catalogue.get(kernel.op)
        if known is None:
            near = difflib.get_close_matches(kernel.op, self.catalogue, n=1)
            hint = f" Did you mean '{near[0]}'?" if near else ""
            message = f"backend '{kernel.provider}' registers op '{kernel.op}', which is not in the catalogue.{hint}"
            raise ValueError(message)
        if kernel.version != known.version:
            message = (
                f"backend '{kernel.provider}' registers '{kernel.op}' v{kernel.version}; "
                f"the catalogue has v{known.version}"
            )
            raise ValueError(message)
        if not kernel.dtypes:
            message = f"backend '{kernel.provider}' registers '{kernel.op}' ({kernel.name}) for no dtype"
            raise ValueError(message)
        if kernel.prepare is not None and known.step_index is None:
            message = f"backend '{kernel.provider}' registers '{kernel.op}' with `prepare`; the op takes no step"
            raise ValueError(message)
        others = self._kernels[kernel.op]
        if any(other.provider == kernel.provider and other.name == kernel.name for other in others):
            message = f"backend '{kernel.provider}' registers '{kernel.op}' twice under the name '{kernel.name}'"
            raise ValueError(message)
        others.append(kernel)

    def kernels(self, op: str) -> tuple[Kernel, ...]:
        """All kernels of an op in the order in which they are tried: the vendor's, then the reference."""
        found = self._kernels[op]
        return tuple(sorted(found, key=lambda kernel: kernel.provider == REFERENCE))

    def resolve(self, key: OpKey, facts: Facts, overrides: Sequence[Override] = ()) -> Resolution | None:
        """The kernel for an op under these facts; None if every candidate is rejected (see `reject_all`)."""
        chosen = _override_for(key, overrides)
        dtype = chosen.compute_dtype or key.dtype
        judged = [(kernel, _why_not(kernel, dtype, facts, chosen)) for kernel in self.kernels(key.name)]
        found = next((kernel for kernel, reason in judged if reason is None), None)
        if found is None:
            return None
        others = [(kernel, reason) for kernel, reason in judged if kernel is not found]
        rejected = [
            Rejection(kernel.provider, kernel.name, reason or f"{found.name} comes first") for kernel, reason in others
        ]
        reason = _why(found, others, chosen)
        compute = chosen.compute_dtype if chosen.compute_dtype not in (None, key.dtype) else None
        return Resolution(key, found, reason, tuple(rejected), compute)

    def preferred(self, key: OpKey, choices: Sequence[Facts], overrides: Sequence[Override] = ()) -> int:
        """Which of several facts an op had best be asked for under: the one whose kernel is tried before the others'.

        The first of equals, so that what a backend has no kernel for at all is as the first says.
        """
        order = self.kernels(key.name)
        found = [self.resolve(key, facts, overrides) for facts in choices]
        places = [len(order) if one is None else order.index(one.kernel) for one in found]
        return places.index(min(places))

    def reject_all(self, key: OpKey, facts: Facts, overrides: Sequence[Override] = ()) -> tuple[Rejection, ...]:
        """Why no kernel fits, candidate by candidate."""
        chosen = _override_for(key, overrides)
        dtype = chosen.compute_dtype or key.dtype
        reasons = ((kernel, _why_not(kernel, dtype, facts, chosen)) for kernel in self.kernels(key.name))
        return tuple(Rejection(kernel.provider, kernel.name, reason) for kernel, reason in reasons if reason)


class Registrar:
    """The registry as one provider sees it."""

    def __init__(self, registry: OpRegistry, provider: str) -> None:
        self._registry = registry
        self.provider = provider

    def register(
        self,
        op: str,
        function: KernelFunction,
        *,
        dtypes: Sequence[torch.dtype],
        requires: Mapping[str, Need] | None = None,
        prepares_weight: bool = False,
        prepare: Prepare | None = None,
        name: str | None = None,
        version: int = 1,
    ) -> None:
        """Offer a kernel for an op.

        Args:
            op: the catalogue's name.
            function: takes the op's arguments in the catalogue's order and returns what the reference returns.
            dtypes: the values of "T" that it is right for.
            requires: fact -> need, e.g. {"head_dim": one_of(64, 128)}; a kernel whose needs don't hold is passed over.
            prepares_weight: hand its weights to `anychip_prepare_weight` first.
            prepare: what the kernel gets in the place of the step, for ops that take one.
            name: tells several kernels of one op apart; the function's name by default.
            version: the op's version that it implements.

        Raises:
            ValueError: unknown op or version, no dtype, the same name twice, or `prepare` for an op without a step.
            TypeError: an argument of another type.
        """
        _check_types(op, function, dtypes, requires or {}, prepare)
        label: str = name or getattr(function, "__name__", None) or type(function).__name__
        kernel = Kernel(
            op, version, tuple(dtypes), function, self.provider, label, requires or {}, prepares_weight, prepare
        )
        self._registry.add(kernel)


def _check_types(
    op: str, function: object, dtypes: Sequence[object], requires: Mapping[str, Need], prepare: object
) -> None:
    """What a plan would trip over much later, where nobody knows the plugin any more."""
    wrong = []
    if not callable(function):
        wrong.append(f"function is {function!r}, expected a callable")
    if isinstance(dtypes, str) or not all(isinstance(one, torch.dtype) for one in dtypes):
        wrong.append(f"dtypes is {dtypes!r}, expected torch dtypes")
    if not isinstance(requires, Mapping) or not all(isinstance(one, Need) for one in requires.values()):
        wrong.append(f"requires is {requires!r}, expected a Need for each fact")
    if prepare is not None and not isinstance(prepare, Prepare):
        wrong.append(f"prepare is {prepare!r}, expected Prepare or None")
    if wrong:
        message = f"op '{op}': {'; '.join(wrong)}"
        raise TypeError(message)


def with_prepared(kernel: Kernel, args: Sequence[Any], facts: Facts, limits: StepLimits | None = None) -> list[Any]:
    """An op's arguments as the kernel takes them: what it prepares of the step in the step's place.

    For a lone call; a graph's calls share what they prepare.

    Args:
        kernel: that will be called.
        args: the op's, in the catalogue's order, constants among them.
        facts: as the kernel was resolved with.
        limits: of the buffers; None: what this step just fits.
    """
    op, given = CATALOGUE[kernel.op], list(args)
    at = op.step_index
    if kernel.prepare is None or at is None:
        return given
    names = [arg.name for arg in op.args]
    constants = {name: given[names.index(name)] for name in kernel.prepare.constants}
    step: Step = given[at]
    given[at] = kernel.prepare.make(facts, constants, limits or step.limits())(step)
    return given


def dtype_name(dtype: torch.dtype) -> str:
    """`bfloat16` for torch.bfloat16."""
    return str(dtype).removeprefix("torch.")


def _override_for(key: OpKey, overrides: Sequence[Override]) -> Override:
    """The overrides that apply, merged: later ones win, bans add up."""
    merged = Override(key.name)
    for override in overrides:
        if override.op == key.name and override.dtype in (None, key.dtype):
            merged = Override(
                key.name,
                None,
                override.provider or merged.provider,
                merged.ban + override.ban,
                override.compute_dtype or merged.compute_dtype,
            )
    return merged


def _why_not(kernel: Kernel, dtype: torch.dtype, facts: Facts, chosen: Override) -> str | None:
    if kernel.provider in chosen.ban:
        return "banned by the recipe's ops.overrides"
    if chosen.provider is not None and kernel.provider != chosen.provider:
        return f"the recipe's ops.overrides insist on '{chosen.provider}'"
    if dtype not in kernel.dtypes:
        return f"dtype is {dtype_name(dtype)}, it has " + ", ".join(map(dtype_name, kernel.dtypes))
    for name, need in kernel.requires.items():
        fact = facts.get(name)
        try:
            holds = need.test(fact)
        except Exception as error:  # the vendor's own function; a kernel that can't be judged is passed over
            return f"{name} is {fact}, and asking whether that will do raised {type(error).__name__}: {error}"
        if not holds:
            return f"{name} is {fact}, it needs {need.text}"
    return None


def _why(found: Kernel, others: Sequence[tuple[Kernel, str | None]], chosen: Override) -> str:
    """What the kernel was preferred to and why; `others` come with the reasons against them, None if they fit too."""
    if chosen.provider == found.provider:
        return f"the recipe's ops.overrides insist on '{found.provider}'"
    own = [(kernel.name, reason) for kernel, reason in others if kernel.provider != REFERENCE]
    rejected = [(name, reason) for name, reason in own if reason is not None]
    if found.provider == REFERENCE:
        return why_fallback(rejected)
    return why_own([name for name, reason in own if reason is None], rejected)


__all__ = [
    "REFERENCE",
    "Fact",
    "Facts",
    "Kernel",
    "KernelFunction",
    "Need",
    "OpKey",
    "OpRegistry",
    "Override",
    "Prepare",
    "Registrar",
    "Rejection",
    "Resolution",
    "at_least",
    "at_most",
    "dtype_name",
    "multiple_of",
    "one_of",
    "with_prepared",
]
