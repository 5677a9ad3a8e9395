"""Small runs, made up or real, on backends that behave and on ones that don't. Knows results; judges nothing."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, replace
from datetime import date

import torch

from anychip_sdk import ops
from anychip_sdk.backend import BackendInfo, load_backend
from anychip_sdk.conformance.claims import Claims, Waiver
from anychip_sdk.conformance.profiles import CORE_OPS
from anychip_sdk.conformance.results import CaseResult, Identity, Results, Suite
from anychip_sdk.conformance.run.target import Target
from anychip_sdk.hooks import hookimpl
from anychip_sdk.testing import ReferencePlugin

STARTED = "2026-03-01T10:00:00+00:00"
NAME = "odd"
ENVIRONMENT = {"ODD_FAST_PATH": "1", "ODD_CACHE": "8"}


def waiver(requirement: str, expires: str = "2027-01-01", versions: str = "") -> Waiver:
    return Waiver(requirement, "known", "https://example.org/1", date.fromisoformat(expires), versions)


def case(key: str = "AC-OP-001[linear-float32]", outcome="passed", **more) -> CaseResult:
    requirement = key.partition("[")[0]
    values = {"force": "MUST", "status": outcome, **more}
    return CaseResult(key, requirement, requirement.split("-")[1].lower(), outcome=outcome, **values)


def made_up(*cases: CaseResult, profile="kernel", only=(), absent=None, waivers=(), claims=None) -> Results:
    """Results of every track of the kernel profile, with these cases among them."""
    said = claims or Claims(NAME, ("float32",), ops=dict.fromkeys(CORE_OPS, ("float32",)))
    usual = [case(f"AC-{track}-001") for track in ("DEVICE", "MEMORY", "COPY", "STREAM")]
    usual.append(case("AC-OP-002[rope-float32]", op="rope", dtype="float32", measured={"headroom": 0.25}))
    return Results(
        identity=Identity(NAME, "anychip-odd", "1.2", "ab" * 32, "Odd", "~=1.0", "odd:0", "Odd One", 1 << 30),
        host={"os": "test"},
        suite=Suite("0.1.0", "cd" * 32, absent or {}),
        profile=profile,
        level="smoke",
        only=tuple(only),
        claims=replace(said, waivers=tuple(waivers)),
        started=STARTED,
        finished=STARTED,
        cases=(*usual, *cases),
    )


class OddPlugin(ReferencePlugin):
    """Right, but for the kernels given."""

    def __init__(self, kernels, environment=None) -> None:
        super().__init__(NAME, 1 << 28)
        self._kernels = kernels
        self._environment = environment or {}

    @hookimpl
    def anychip_backend(self) -> BackendInfo:
        return BackendInfo(name=NAME, vendor="Odd", api="~=1.0", environment=self._environment)

    @hookimpl
    def anychip_register_ops(self, registry) -> None:
        for op, kernel in self._kernels.items():
            registry.register(op, kernel, dtypes=[torch.float32], name=f"odd_{op}")


def right(x):
    return ops.CATALOGUE["silu"].reference(x)


def crashes(*values):
    os.abort()


def hangs(*values):
    time.sleep(600)


def leaves(x):
    os._exit(0)


def by_variables(x):
    """Right where the process was started with the variables that the backend names."""
    with open("/proc/self/environ", encoding="utf-8") as file:
        started_with = file.read().split("\0")
    return right(x) if {f"{name}={value}" for name, value in ENVIRONMENT.items()} <= set(started_with) else x


@dataclass(frozen=True)
class WrongOnce:
    """Wrong in one call of fifty, the same one each time."""

    counter: list

    def __call__(self, x):
        self.counter.append(0)
        result = right(x)
        return result + 1 if len(self.counter) % 50 == 37 else result


KERNELS = {
    "right": lambda: {"silu": right},
    "ends": lambda: {"gelu": crashes, "mul": hangs, "silu": right},
    "leaves": lambda: {"silu": leaves},
    "by_variables": lambda: {"silu": by_variables},
    "wrong_once": lambda: {"silu": WrongOnce([])},
}


@dataclass(frozen=True)
class OddLoader:
    """Loads the plugin with the kernels of that name; can be pickled."""

    kernels: str

    def __call__(self):
        environment = ENVIRONMENT if self.kernels == "by_variables" else {}
        plugin = OddPlugin(KERNELS[self.kernels](), environment)
        return load_backend(NAME, plugin, distribution="anychip-odd", version="1.2")


def odd_claims(*operations: str) -> Claims:
    return Claims(NAME, ("float32",), ops=dict.fromkeys(operations or ("silu",), ("float32",)))


def odd_target(kernels: str, *operations: str) -> Target:
    return Target(NAME, OddLoader(kernels), odd_claims(*operations), "anychip-odd", "1.2", "ab" * 32)
