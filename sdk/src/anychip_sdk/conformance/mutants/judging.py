"""Run one requirement's or one mutant's cases in this process, and serve a parent that wants many. Knows no score."""

from __future__ import annotations

import time
from contextlib import nullcontext
from dataclasses import dataclass, field
from multiprocessing.connection import Connection

import torch

from anychip_sdk.conformance.cases import Planned, load_checks, plan_cases
from anychip_sdk.conformance.mutants.accidents import accident
from anychip_sdk.conformance.mutants.base import Mutant, healthy_for, load_mutants
from anychip_sdk.conformance.requirements import REQUIREMENTS, Level
from anychip_sdk.conformance.run.attempt import Bench
from anychip_sdk.device import DeviceConfig
from anychip_sdk.errors import AnychipError

LEVEL: Level = "smoke"
#: where a mutant's other failures are looked for; the other tracks start processes or whole models for each case
QUICK_TRACKS = ("memory", "copy", "stream", "op", "kv")
BESIDE_CASES = 4  #: of each of those requirements


@dataclass(frozen=True)
class Unit:
    """What is judged at once: a mutant by the requirements that must find it, or the healthy chip by one."""

    mutant: str = ""
    requirement: str = ""  #: of the healthy chip
    beside: bool = False  #: the mutant by the other requirements of its tracks

    @property
    def name(self) -> str:
        return self.mutant or f"healthy, {self.requirement}"


@dataclass(frozen=True)
class Judged:
    """What became of a unit.

    Attributes:
        unit: the same.
        found: requirement -> the first violation's case and message; requirements that passed are not there.
        cases: requirement -> how many cases were run.
        error: why nothing could be run; empty where it could.
        accidents: requirement -> the exception by which it fails, where that is not the mutant's fault.
    """

    unit: Unit
    found: dict[str, str] = field(default_factory=dict)
    cases: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    error: str = ""
    accidents: dict[str, str] = field(default_factory=dict)


def judge(unit: Unit) -> Judged:
    """Run the unit's cases, of each requirement until one fails."""
    started_s = time.perf_counter()
    load_checks()
    mutants = load_mutants()
    mutant = mutants[unit.mutant] if unit.mutant else None
    keys = (unit.requirement,) if mutant is None else neighbours(mutant) if unit.beside else mutant.kills
    healthy = healthy_for(unit.requirement)
    claims = mutant.claims if mutant is not None else healthy.claims
    load = mutant.load if mutant is not None else healthy.load()
    found: dict[str, str] = {}
    accidents: dict[str, str] = {}
    cases: dict[str, int] = {}
    with mutant.around() if mutant is not None else nullcontext():
        try:
            bench = Bench.open(load, claims, LEVEL, config=DeviceConfig(threads=1))
        except AnychipError as error:
            return Judged(unit, error=f"it can't be loaded: {error}")
        for key in keys:
            planned = _planned(mutant, key, bench)
            for one in planned[:BESIDE_CASES] if unit.beside else planned:
                attempt = bench.try_out(one)
                cases[key] = cases.get(key, 0) + 1
                if attempt.outcome == "failed":
                    found[key] = f"{one.id}: {attempt.message}"
                    if mutant is not None and (stray := accident(mutant, attempt)):
                        accidents[key] = stray
                    break
        bench.device.close()
    return Judged(unit, found, cases, time.perf_counter() - started_s, accidents=accidents)


def neighbours(mutant: Mutant) -> tuple[str, ...]:
    """The requirements of its quick tracks that need not find it, but may."""
    tracks = {REQUIREMENTS[key].track for key in mutant.kills if REQUIREMENTS[key].track in QUICK_TRACKS}
    return tuple(key for key, rule in REQUIREMENTS.items() if rule.track in tracks and key not in mutant.kills)


def _planned(mutant: Mutant | None, key: str, bench: Bench) -> list[Planned]:
    """A requirement's claimed cases, without those of ops that are right."""
    planned = [one for one in plan_cases(bench.claims, LEVEL, only=(key,)) if not one.missing]
    if mutant is None or not mutant.op:
        return planned
    return [one for one in planned if one.op in ("", mutant.op)]


def serve(requests: Connection) -> None:
    """Judge the units that come, until None does."""
    torch.set_num_threads(1)
    while True:
        unit = requests.recv()
        if unit is None:
            return
        requests.send(judge(unit))


__all__ = ["LEVEL", "Judged", "Unit", "judge", "neighbours", "serve"]
