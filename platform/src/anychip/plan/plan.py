"""What was decided, and why. Frozen data; decides nothing itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Literal, TypeVar

import torch

from anychip.graph.fold import FusionDecision
from anychip.graph.ir import ModelGraph, WeightSpec
from anychip.graph.program import Pieces
from anychip.graph.replace import Binding
from anychip.models.config import ModelConfig
from anychip.recipe.limits import LimitsSection
from anychip.recipe.watchdog import WatchdogLimits
from anychip.weights.load import Shard
from anychip_sdk.device import DeviceInfo
from anychip_sdk.profiles import Profile
from anychip_sdk.program import Program
from anychip_sdk.registry import Rejection, Resolution

T = TypeVar("T")
#: what everything says that runs on an emulator
EMULATED = "EMULATED: results are real, speed is not"


@dataclass(frozen=True)
class Decision(Generic[T]):
    """A value and the reason for it."""

    value: T
    reason: str


@dataclass(frozen=True)
class HeldCertificate:
    """The conformance certificate of a backend's installed package, as far as a plan tells it."""

    word: str  #: CONFORMANT or CONFORMANT WITH n WAIVERS
    profile: Profile
    level: str
    date: str  #: ISO 8601
    signed: bool
    emulated: bool
    problem: str = ""  #: why it doesn't count; empty where it does


@dataclass(frozen=True)
class BackendPlan:
    name: str
    distribution: str
    version: str
    reason: str
    device: DeviceInfo
    emulated: bool
    environment: Mapping[str, str]  #: variables that the worker starts with, where the user set none
    threads: int | None  #: host threads that kernels run on; None: the backend's choice
    certificate: HeldCertificate | None = None


@dataclass(frozen=True)
class ModelPlan:
    source: str  #: as the recipe names it
    path: Path
    format: str
    config: ModelConfig
    dtype: Decision[torch.dtype]
    context_length: Decision[int]
    served_name: str
    thinking: Decision[Literal["off", "on", "auto"]]
    notes: tuple[str, ...] = ()
    quantization: Decision[str] = Decision("none", "weights are held in dtype")


@dataclass(frozen=True)
class OpRow:
    """One line of the op table: an op, how often a step runs it, and who provides it."""

    op: str
    dtype: torch.dtype
    count: int
    provider: str
    kernel: str
    reason: str
    rejected: tuple[Rejection, ...]
    is_fallback: bool


@dataclass(frozen=True)
class MemoryPlan:
    """Bytes of device memory, in order of allocation."""

    capacity: int
    static_budget: int  #: for weights and KV pool
    weights: int
    kv_pool: int
    activations: int
    workspace: int
    kv_bytes_per_token: int
    kv_pages: int
    kv_reason: str
    slots: int = 0  #: of sequences' states and their snapshots
    bytes_per_slot: int = 0

    @property
    def total(self) -> int:
        return self.weights + self.kv_pool + self.activations + self.workspace

    @property
    def headroom(self) -> int:
        return self.capacity - self.total


@dataclass(frozen=True)
class SchedulerPlan:
    """What is decided about scheduling.

    A field that is named as a key of the recipe's section `scheduler` holds the key's value, or what `auto` became. The
    engine's SchedulerConfig takes the fields whose names it has, and explanations show all of them.
    """

    chunked_prefill_size: Decision[int]
    max_running_requests: Decision[int]
    max_queued_requests: int
    policy: str
    prefix_cache: bool
    overlap: Decision[bool]
    page_size: Decision[int]
    kv_dtype: torch.dtype
    kv_tokens: int
    tpot_p95_s: float | None  #: the time per output token that prompts of others may not spoil; None: none is promised


@dataclass(frozen=True)
class VerificationPlan:
    """What is done about fusions while the model loads."""

    enabled: bool  #: they are compared with the unfused graph
    refusal_is_error: bool  #: one whose outputs differ ends the load; otherwise it is left out with a warning


@dataclass(frozen=True)
class Plan:
    """All that the engine needs to know, and all that an operator may ask.

    `graph` is the rewritten graph with every op bound, `program` what it becomes, `pieces` what the backend's compiler
    takes of that; `engine_ops` are the ops outside it (sampling); `binding` is what all were bound against. Whoever has
    a plan needs no recipe.
    """

    name: str  #: the service's
    model: ModelPlan
    backend: BackendPlan
    ops: tuple[OpRow, ...]
    fusions: tuple[FusionDecision, ...]
    verification: VerificationPlan
    memory: MemoryPlan
    scheduler: SchedulerPlan
    weights: Mapping[str, WeightSpec]
    graph: ModelGraph
    program: Program
    pieces: Pieces
    binding: Binding
    engine_ops: Mapping[str, Resolution]
    shard: Shard
    warnings: tuple[str, ...]
    limits: LimitsSection  #: of the server in front of the engine
    watchdog: WatchdogLimits


__all__ = [
    "EMULATED",
    "BackendPlan",
    "Decision",
    "HeldCertificate",
    "MemoryPlan",
    "ModelPlan",
    "OpRow",
    "Plan",
    "SchedulerPlan",
    "VerificationPlan",
]
