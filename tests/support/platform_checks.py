"""Runs requirements of the platform's tracks on a backend, in this process. Knows contexts; knows no report."""

from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import torch

import anychip.conformance.checks  # noqa: F401  registers the requirements
from anychip_sdk.backend import Backend
from anychip_sdk.conformance.claims import Claims
from anychip_sdk.conformance.context import Context, derived_seed
from anychip_sdk.conformance.requirements import REQUIREMENTS, Case, Violation
from anychip_sdk.device import DeviceConfig

ALL_FUSIONS = ("mha", "ffn", "qkv_proj", "gate_up_proj", "add_rms_norm", "qk_norm_rope", "silu_mul")


def claims(backend: Backend, dtypes=("float32",), fusions=(), **capabilities: bool) -> Claims:
    return Claims(backend.name, tuple(dtypes), capabilities={"serving": True, **capabilities}, fusions=tuple(fusions))


def context_of(backend: Backend, said: Claims, scratch: Path, level="smoke", case="case") -> Context:
    torch.set_num_threads(1)
    info, config = backend.probe()[0], DeviceConfig(threads=1)
    folder = scratch / case
    folder.mkdir(parents=True, exist_ok=True)
    device = backend.open(info, config)
    return Context(backend, info, config, device, said, level, derived_seed(case), lambda: backend, folder)


def cases_of(key: str, said: Claims, level="smoke") -> list[Case | None]:
    """A requirement's claimed cases; [None] for one without cases."""
    rule = REQUIREMENTS[key]
    if not all(map(said.holds, rule.needs)):
        return []
    if rule.cases is None:
        return [None]
    return [case for case in rule.cases(said, level) if all(map(said.holds, case.needs))]


def run(
    key: str, backend: Backend, said: Claims, scratch: Path, level="smoke", only="*"
) -> Iterator[tuple[str, str, Context]]:
    """(case, "" or what is violated, context) for each case whose name matches."""
    for number, case in enumerate(cases_of(key, said, level)):
        name = case.id if case else key
        if case and not fnmatch(name, only):
            continue
        context = context_of(backend, said, scratch, level, f"{key}-{number}")
        problem = ""
        try:
            REQUIREMENTS[key].check(*([context] if case is None else [context, case]))
        except Violation as violation:
            problem = violation.message
        yield name, problem, context


def failures(key: str, backend: Backend, said: Claims, scratch: Path, level="smoke", only="*") -> dict[str, str]:
    """Case -> what is violated."""
    return {name: problem for name, problem, _ in run(key, backend, said, scratch, level, only) if problem}
