"""The suite inside a vendor's own pytest: one test a case. Knows pytest; the worker knows the backend.

In a test file of the vendor's:

    from anychip_sdk.conformance.suite import *

    BACKEND = "acme"          # or the environment variable ANYCHIP_CONFORMANCE_BACKEND
    PROFILE = "kernel"        # or ANYCHIP_CONFORMANCE_PROFILE; bringup unless said
    LEVEL = "std"             # or ANYCHIP_CONFORMANCE_LEVEL; smoke unless said
    EMULATE = True            # or ANYCHIP_CONFORMANCE_EMULATE=1; the device itself unless said

The variables win. Cases that are not claimed are not among the tests; a failure shows the command that repeats it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from anychip_sdk.conformance.cases import Planned
from anychip_sdk.conformance.run.runner import replay
from anychip_sdk.conformance.run.sessions import VARIABLES, Chosen, Workers, choose, waiver_of


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make a test of every claimed case of the module's backend."""
    if metafunc.function is not test_requirement:
        return
    said = {
        name: os.environ.get(variable) or str(getattr(metafunc.module, name, ""))
        for name, variable in VARIABLES.items()
    }
    chosen = choose(
        said["BACKEND"],
        said["PROFILE"] or "bringup",
        said["LEVEL"] or "smoke",
        emulate=said["EMULATE"].lower() in ("1", "true"),
    )
    planned = chosen.planned()
    metafunc.parametrize(("chosen", "planned"), [(chosen, one) for one in planned], ids=[one.id for one in planned])


@pytest.fixture(scope="session")
def conformance_workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    """The process that the cases run in."""
    workers = Workers(tmp_path_factory.mktemp("conformance"))
    yield workers
    workers.end()


def test_requirement(conformance_workers: Workers, chosen: Chosen, planned: Planned) -> None:
    """One case; a waived one must fail."""
    attempt = conformance_workers.for_case(chosen, planned).run(planned.id)
    waived = waiver_of(chosen, planned)
    if waived is None:
        command = replay(chosen.target.name, planned.id, chosen.options)
        assert attempt.outcome != "failed", f"{planned.requirement.text}\n{attempt.message}\n$ {command}"
    elif waived.requirement == planned.id:
        assert attempt.outcome == "failed", f"{planned.id} passes: remove its waiver ({waived.reason})"


__all__ = ["conformance_workers", "pytest_generate_tests", "test_requirement"]
