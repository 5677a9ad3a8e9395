"""Run one case in this process and say how it ended. Knows contexts; knows no process and no verdict."""

from __future__ import annotations

import dataclasses
import math
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from anychip_sdk.backend import Backend
from anychip_sdk.conformance.cases import Planned
from anychip_sdk.conformance.claims import Claims
from anychip_sdk.conformance.context import Context, derived_seed
from anychip_sdk.conformance.requirements import Level, Violation
from anychip_sdk.conformance.results import Outcome
from anychip_sdk.device import Device, DeviceConfig, DeviceInfo
from anychip_sdk.registry import OpKey

MESSAGE_MAX = 4000
EVIDENCE = "evidence.pt"


@dataclass(frozen=True)
class Attempt:
    """How one case ended.

    Attributes:
        raised: "Type: text" of the exception behind a failure; empty where the check itself judged what it got.
    """

    outcome: Outcome
    message: str = ""
    seconds: float = 0.0
    measured: Mapping[str, float] = field(default_factory=dict)
    fallbacks: tuple[str, ...] = ()
    evidence: str = ""  #: the file's path
    poisoned: bool = False  #: the device is of no use any more
    raised: str = ""


@dataclass
class Bench:
    """A loaded backend with an opened device, on which cases are tried one after the other."""

    load: Callable[[], Backend]
    backend: Backend
    info: DeviceInfo
    config: DeviceConfig
    device: Device
    claims: Claims
    level: Level
    repro: Path | None = None  #: where evidence is kept; None: nowhere
    repeat: int = 1

    @classmethod
    def open(
        cls,
        load: Callable[[], Backend],
        claims: Claims,
        level: Level,
        *,
        device: str | None = None,
        config: DeviceConfig | None = None,
        repro: Path | None = None,
        repeat: int = 1,
        backend: Backend | None = None,
    ) -> Bench:
        """Load the backend, unless it is given, and open one of its devices.

        Raises:
            AnychipError: it can't be loaded, has no device, or can't open it.
        """
        found = backend or load()
        info = found.find_device(device)
        used = config or DeviceConfig(threads=1)
        return cls(load, found, info, used, found.open(info, used), claims, level, repro, repeat)

    def try_out(self, planned: Planned) -> Attempt:
        """The case, `repeat` times or until it fails."""
        started_s = time.perf_counter()
        attempts = []
        for _ in range(self.repeat):
            attempts.append(self._once(planned, started_s))
            if attempts[-1].outcome == "failed":
                break
        last = attempts[-1]
        if last.outcome == "failed" and len(attempts) > 1:
            return dataclasses.replace(last, message=f"run {len(attempts)} of {self.repeat}: {last.message}")
        return last

    def _once(self, planned: Planned, started_s: float) -> Attempt:
        with tempfile.TemporaryDirectory(prefix="anychip-", ignore_cleanup_errors=True) as scratch:
            seed = derived_seed(planned.id)
            context = Context(
                self.backend,
                self.info,
                self.config,
                self.device,
                self.claims,
                self.level,
                seed,
                self.load,
                Path(scratch),
            )
            torch.manual_seed(seed)
            outcome: Outcome = "failed"
            evidence: Mapping[str, Any] = {}
            message = raised = ""
            try:
                planned.requirement.check(*((context,) if planned.case is None else (context, planned.case)))
                outcome = "passed_via_fallback" if context.fallbacks else "passed"
            except Violation as violation:
                message, evidence, raised = violation.message, violation.evidence, _raised(violation)
            except Exception as error:
                message, raised = f"{type(error).__name__}: {error}\n{_where(error)}", _raised(error)
        return Attempt(
            outcome,
            message[:MESSAGE_MAX],
            time.perf_counter() - started_s,
            {name: float(value) for name, value in context.measured.items() if math.isfinite(value)},
            tuple(sorted(context.fallbacks)),
            self._keep(planned, evidence),
            raised=raised[:MESSAGE_MAX],
        )

    def _keep(self, planned: Planned, evidence: Mapping[str, Any]) -> str:
        """Save what a violation shows; the file's path, or nothing."""
        if not evidence or self.repro is None:
            return ""
        folder = self.repro / planned.id.replace("[", "-").rstrip("]")
        folder.mkdir(parents=True, exist_ok=True)
        try:
            torch.save({name: _storable(value) for name, value in evidence.items()}, folder / EVIDENCE)
        except Exception as error:  # a broken device may not even give its tensors back
            (folder / "evidence.txt").write_text(f"could not be saved: {error}\n", encoding="utf-8")
            return str(folder / "evidence.txt")
        return str(folder / EVIDENCE)

    def canary(self) -> str:
        """Use the device once: what is wrong with it, or nothing."""
        try:
            dtype = next(name for name in self.claims.dtypes if getattr(torch, name).is_floating_point)
            ones = torch.ones(64, dtype=getattr(torch, dtype))
            added = self.backend.ops.resolve(OpKey("add", 1, ones.dtype), {})
            buffer = self.device.alloc(ones.nbytes)
            back = torch.zeros_like(ones)
            self.device.copy(buffer, ones.view(torch.uint8))
            self.device.synchronize()
            self.device.copy(back.view(torch.uint8), buffer)
            self.device.synchronize()
            self.device.free(buffer)
            if added is not None:
                on_device = back.to(self.device.torch_device)
                back = added.kernel.function(on_device, on_device).cpu() / 2
                self.device.synchronize()
        except StopIteration:
            return ""  # no dtype that an op could run in
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return "" if torch.equal(back, ones) else "64 ones went to the device and other values came back"


def _storable(value: Any) -> Any:
    """Tensors on the host and plain values, so that the file loads with `weights_only`."""
    if isinstance(value, torch.Tensor):
        return value.detach().cpu()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {one.name: _storable(getattr(value, one.name)) for one in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(name): _storable(item) for name, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        return [_storable(item) for item in value]
    return value if isinstance(value, (int, float, str, bool, type(None))) else repr(value)


def _raised(error: BaseException) -> str:
    """The exception that a failure goes back to, as type and text; nothing where a comparison failed."""
    cause: BaseException | None = error
    while isinstance(cause, (Violation, AssertionError)):
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
    return "" if cause is None else f"{type(cause).__name__}: {cause}"


def _where(error: BaseException) -> str:
    """The last lines of the traceback."""
    return "".join(traceback.format_exception(type(error), error, error.__traceback__)[-4:]).rstrip()


__all__ = ["EVIDENCE", "Attempt", "Bench"]
