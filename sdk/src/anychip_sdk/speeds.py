"""How long kernels take: rates of a device, measured or from a data sheet. Knows bytes and flops; knows no model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

MEMORY_NEAR = 0.15  #: figures hold while memory is at most so much faster or slower than when they were measured
COMPILED = "compiled "  #: begins the name of what a backend's compiler makes of a whole graph, as of one kernel


@dataclass(frozen=True)
class Work:
    """What a step asks of one kernel, over all its calls."""

    calls: int = 0
    weight_bytes: int = 0  #: read once, however many rows there are
    flops: int = 0  #: of products with weights
    kv_bytes: int = 0  #: keys and values that decodes read
    scores: int = 0  #: of decodes: each query head with each key that it sees
    attention_flops: int = 0  #: of attention over prompts
    moved_bytes: int = 0  #: activations read and written


@dataclass(frozen=True)
class KernelSpeed:
    """The rates of one kernel. A rate of None: such work takes no time beside the rest."""

    call_s: float = 0.0  #: what a call takes, however little there is to do
    weight_bytes_per_s: float | None = None
    flops_per_s: float | None = None
    exposed: float = 0.0  #: 0 .. 1: the share of the shorter of reading and multiplying that the longer doesn't hide
    kv_bytes_per_s: float | None = None
    scores_per_s: float | None = None
    attention_flops_per_s: float | None = None
    moved_bytes_per_s: float | None = None

    def products_s(self, work: Work) -> float:
        """Reading weights and multiplying with them."""
        shorter, longer = sorted(
            (_time(work.weight_bytes, self.weight_bytes_per_s), _time(work.flops, self.flops_per_s))
        )
        return longer + self.exposed * shorter

    def attention_s(self, work: Work) -> float:
        decodes = _time(work.kv_bytes, self.kv_bytes_per_s) + _time(work.scores, self.scores_per_s)
        return decodes + _time(work.attention_flops, self.attention_flops_per_s)

    def calls_s(self, work: Work) -> float:
        """Calling, and moving activations."""
        return work.calls * self.call_s + _time(work.moved_bytes, self.moved_bytes_per_s)

    def seconds(self, work: Work) -> float:
        return self.products_s(work) + self.attention_s(work) + self.calls_s(work)


@dataclass(frozen=True)
class Speeds:
    """What a plan may reckon with on one device.

    Attributes:
        source: where the figures come from: measured when, or whose data sheet.
        kernels: of single kernels, by `kernel_name`.
        others: of all that `kernels` doesn't name; None: nothing is known of them.
        step_s: what the engine takes for a step beside kernels.
        request_s: and for each request in it.
        compiled_ops: ops that the backend's compiler takes; a graph of no others runs as a whole, and so fast.
        compiled_tokens: in steps of so many tokens at most.
        memory_bytes_per_s: how fast the device copied within its memory when they were measured; None: nobody looked.
    """

    source: str
    kernels: Mapping[str, KernelSpeed] = field(default_factory=dict)
    others: KernelSpeed | None = None
    step_s: float = 0.0
    request_s: float = 0.0
    compiled_ops: tuple[str, ...] = ()
    compiled_tokens: int = 0
    memory_bytes_per_s: float | None = None

    @property
    def told(self) -> str:
        """Where they come from, and from when."""
        if self.memory_bytes_per_s is None:
            return self.source
        return f"{self.source}, while memory copied {self.memory_bytes_per_s / 1e9:.0f} GB/s"

    def of(self, kernel: str) -> KernelSpeed | None:
        return self.kernels.get(kernel, self.others)

    def hold_at(self, memory_bytes_per_s: float | None) -> bool:
        """Whether they were measured while memory was about as fast as that."""
        if self.memory_bytes_per_s is None or memory_bytes_per_s is None:
            return True
        return is_near(memory_bytes_per_s, self.memory_bytes_per_s)


def is_near(memory_bytes_per_s: float, other: float) -> bool:
    """Whether memory is about as fast as at another time."""
    return abs(memory_bytes_per_s / other - 1.0) <= MEMORY_NEAR


def kernel_name(op: str, provider: str, kernel: str, held: str) -> str:
    """What `Speeds.kernels` calls a kernel that multiplies weights held in one dtype, e.g. "linear cpu/packed int8"."""
    return f"{op} {provider}/{kernel} {held}"


def _time(amount: float, per_s: float | None) -> float:
    return 0.0 if per_s is None else amount / per_s


__all__ = ["COMPILED", "MEMORY_NEAR", "KernelSpeed", "Speeds", "Work", "is_near", "kernel_name"]
