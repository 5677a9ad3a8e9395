"""Run a check on the reference chip, healthy or with a fault. Knows requirements by id."""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch

import anychip_sdk.conformance.checks.copy
import anychip_sdk.conformance.checks.device
import anychip_sdk.conformance.checks.memory
import anychip_sdk.conformance.checks.memory_leaks
import anychip_sdk.conformance.checks.stream
import anychip_sdk.conformance.checks.stream_events
import anychip_sdk.conformance.checks.stream_use  # noqa: F401  # all of them declare requirements
from anychip_sdk.conformance.claims import Claims
from anychip_sdk.conformance.context import Context, derived_seed
from anychip_sdk.conformance.manifest import load_claims
from anychip_sdk.conformance.reference import ReferenceLoader, reference_claims
from anychip_sdk.conformance.requirements import REQUIREMENTS, Case, Requirement, Violation
from anychip_sdk.device import DeviceConfig


def cases_of(requirement: Requirement, claims: Claims) -> list[Case | None]:
    return list(requirement.cases(claims, "smoke")) if requirement.cases else [None]


def run_check(key: str, load, claims: Claims) -> list[str]:
    """The violations of all cases of one requirement, each on a freshly opened device."""
    torch.set_num_threads(1)
    requirement = REQUIREMENTS[key]
    found = []
    for case in cases_of(requirement, claims):
        found += _run_case(requirement, case, load, claims)
    return found


def _run_case(requirement: Requirement, case: Case | None, load, claims: Claims) -> list[str]:
    backend, config = load(), DeviceConfig()
    info = backend.probe()[0]
    device = backend.open(info, config)
    name = requirement.id + (f"[{case.id}]" if case else "")
    with tempfile.TemporaryDirectory() as scratch:
        context = Context(
            backend=backend,
            info=info,
            config=config,
            device=device,
            claims=claims,
            level="smoke",
            seed=derived_seed(name),
            load=load,
            scratch=Path(scratch),
        )
        try:
            requirement.check(context, *([case] if case else []))
        except Violation as violation:
            return [f"{name}: {violation.message}"]
        finally:
            device.close()
    return []


def run_on_reference(key: str, fault: str | None = None) -> list[str]:
    return run_check(key, ReferenceLoader(fault), reference_claims())


def load_cpu():
    """The CPU backend, in this process or another."""
    import anychip_cpu.backend
    from anychip_sdk.backend import load_backend

    return load_backend("cpu", anychip_cpu.backend, distribution="anychip-cpu", version="0.1.0")


def passes_on_cpu(key: str) -> list[str]:
    """The violations of the CPU backend; none where it doesn't claim what the requirement needs."""
    claims = load_claims("anychip_cpu")
    if not all(map(claims.holds, REQUIREMENTS[key].needs)):
        return []
    return run_check(key, load_cpu, claims)


def uncaught(track: str, keys) -> list[str]:
    """The requirements of a track that are not among the keys."""
    return sorted({one.id for one in REQUIREMENTS.values() if one.track == track} - set(keys))
