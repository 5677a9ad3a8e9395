"""The suite judges backends that are wrong on purpose: each must be found, by name, and the right one pass.

Knows mutants and processes; knows no check's inside.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatchcase
from multiprocessing.connection import Connection, wait
from typing import Any

from anychip_sdk.conformance.cases import load_checks, suite_digest, suite_version
from anychip_sdk.conformance.certify.certificate import KillScore
from anychip_sdk.conformance.mutants import load_mutants
from anychip_sdk.conformance.mutants.judging import Judged, Unit, neighbours, serve
from anychip_sdk.conformance.requirements import REQUIREMENTS
from anychip_sdk.errors import UsageError

LIMIT_S = 300.0  #: for a unit, the start of a process included; half of it for the requirements beside
MESSAGE_MAX = 160


@dataclass(frozen=True)
class Row:
    """One mutant in the kill matrix.

    Attributes:
        kills: the requirements that must find it.
        survived: those that did not; empty where it is killed.
        how: what the first requirement said.
        accidents: requirements that failed by an exception which is not the fault: they may compare nothing at all.
        collateral: other requirements of its tracks that find it too; None where they took too long, or would.
    """

    name: str
    fault: str
    kills: tuple[str, ...]
    survived: tuple[str, ...]
    how: str
    collateral: tuple[str, ...] | None = None
    accidents: tuple[str, ...] = ()

    @property
    def killed(self) -> bool:
        """Whether every requirement found it, each by its fault."""
        return not self.survived and not self.accidents

    @property
    def verdict(self) -> str:
        if self.survived:
            return "SURVIVED"
        return "ACCIDENT" if self.accidents else "killed  "


@dataclass(frozen=True)
class SelfTest:
    """What the suite is worth.

    Attributes:
        rows: each mutant.
        healthy: requirement -> what it holds against the right backend; must be empty.
        vacuous: MUSTs that no mutant is declared for, or that have no case to run.
        partial: some mutants only.
    """

    rows: tuple[Row, ...]
    healthy: dict[str, str] = field(default_factory=dict)
    vacuous: tuple[str, ...] = ()
    partial: bool = False
    seconds: float = 0.0

    @property
    def passed(self) -> bool:
        return not self.healthy and not self.vacuous and all(row.killed for row in self.rows)

    @property
    def score(self) -> KillScore:
        return KillScore(sum(row.killed for row in self.rows), len(self.rows))

    def to_json(self) -> dict[str, Any]:
        return {
            "passed": self.passed,
            "killed": self.score.killed,
            "mutants": self.score.mutants,
            "partial": self.partial,
            "healthy": self.healthy,
            "vacuous": list(self.vacuous),
            "seconds": round(self.seconds, 1),
            "suite_version": suite_version(),
            "suite_digest": suite_digest(),
            "matrix": [{**asdict(row), "killed": row.killed} for row in self.rows],
        }

    def text(self) -> str:
        """The matrix and what is wrong with it."""
        width = max((len(row.name) for row in self.rows), default=0)
        lines = [
            f"{row.verdict} {row.name:<{width}} {' '.join(row.survived or row.accidents or row.kills)}"
            + (f" and {len(row.collateral)} more" if row.collateral else "")
            + ("" if row.killed else f"  {row.how}")
            for row in self.rows
        ]
        lines += [f"the healthy chip fails {key}: {message}" for key, message in self.healthy.items()]
        lines += [f"vacuous: {reason}" for reason in self.vacuous]
        summary = f"{self.score.killed} of {self.score.mutants} mutants are killed by the requirements that name them"
        by_accident = sum(bool(row.accidents) for row in self.rows)
        summary += f"; {by_accident} by accident: by an exception that is not their fault" if by_accident else ""
        healthy = "the healthy chip fails nothing" if not self.healthy else "the healthy chip fails"
        more = [row.collateral for row in self.rows if row.collateral]
        beside = f"{len(more)} of them fail {sum(map(len, more))} other requirements as well"
        return "\n".join([*lines, summary if self.partial else f"{summary}; {healthy}", beside])


def selftest(
    only: Sequence[str] = (), listen: Callable[[str], None] | None = None, *, processes: int | None = None
) -> SelfTest:
    """Let the requirements judge all mutants, and the healthy chip.

    Args:
        only: globs over mutants' names or requirements; then the healthy chip is judged by no other requirement.
        listen: is told a line for each mutant and each requirement of the healthy chip.
        processes: how many work at the same time; None: one more than there are cores, since some wait, at most four.

    Raises:
        UsageError: `only` names no mutant.
    """
    started_s = time.perf_counter()
    load_checks()
    mutants = {
        name: one
        for name, one in load_mutants().items()
        if not only or any(fnmatchcase(text, glob) for glob in only for text in (name, *one.kills))
    }
    if not mutants:
        message = f"no mutant is named by {' '.join(only)}"
        raise UsageError(message, hint="give a mutant's name or a requirement's id; * stands for any text")
    named = {key for one in mutants.values() for key in one.kills}
    healthy = [Unit(requirement=key) for key in REQUIREMENTS if not only or key in named]
    beside = [Unit(mutant=name, beside=True) for name, one in mutants.items() if neighbours(one)]
    units = [*beside, *healthy, *(Unit(mutant=name) for name in mutants)]
    count = processes or min(4, 1 + (os.cpu_count() or 1))
    found: dict[Unit, Judged] = {}
    for judged in _judge_all(units, count, {name for name, one in mutants.items() if one.pollutes}):
        found[judged.unit] = judged
        if listen is not None and not judged.unit.beside:
            listen(_line(judged))
    rows = tuple(_row(found[Unit(mutant=name)], name, found.get(Unit(mutant=name, beside=True))) for name in mutants)
    wrong = {unit.requirement: text for unit in healthy if (text := _wrong(found[unit]))}
    vacuous = _vacuous(found, healthy) if not only else ()
    return SelfTest(rows, wrong, vacuous, bool(only), time.perf_counter() - started_s)


def _row(judged: Judged, name: str, beside: Judged | None = None) -> Row:
    one = load_mutants()[name]
    survived = tuple(key for key in one.kills if key not in judged.found)
    ran = ", ".join(f"{key} passed {judged.cases.get(key, 0)} cases" for key in survived)
    accidents = tuple(judged.accidents)
    strays = "; ".join(f"{key} killed it by accident: {stray}" for key, stray in judged.accidents.items())
    how = judged.error or ran or strays or judged.found[one.kills[0]]
    collateral = tuple(beside.found) if beside is not None and not beside.error else None
    return Row(name, one.fault, one.kills, survived, _short(how), collateral, accidents)


def _wrong(judged: Judged) -> str:
    return _short(judged.error or judged.found.get(judged.unit.requirement, ""))


def _vacuous(found: dict[Unit, Judged], healthy: Sequence[Unit]) -> tuple[str, ...]:
    killing = {key for one in load_mutants().values() for key in one.kills}
    idle = [unit.requirement for unit in healthy if not found[unit].cases and not found[unit].error]
    missing = [f"no mutant is declared for {key}" for key in unkilled(killing)]
    return (*missing, *(f"the healthy chip claims nothing that {key} tests" for key in idle))


def unkilled(killing: set[str] | None = None) -> tuple[str, ...]:
    """MUSTs that no mutant is declared for."""
    known = killing if killing is not None else {key for one in load_mutants().values() for key in one.kills}
    return tuple(key for key, rule in REQUIREMENTS.items() if rule.force == "MUST" and key not in known)


def _line(judged: Judged) -> str:
    if judged.unit.mutant:
        row = _row(judged, judged.unit.mutant)
        return f"{row.verdict} {row.name} ({judged.seconds:.1f} s): {row.how}"
    wrong = _wrong(judged)
    return f"{'FAILED  ' if wrong else 'passed  '} {judged.unit.name} ({judged.seconds:.1f} s){wrong and ': ' + wrong}"


def _short(text: str) -> str:
    first = text.partition("\n")[0]
    return first if len(first) <= MESSAGE_MAX else first[: MESSAGE_MAX - 1] + "…"


class _Child:
    """A process that judges one unit after the other; ended where it hangs."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.channel, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(theirs,), daemon=False)
        self.process.start()
        theirs.close()
        self.unit: Unit | None = None
        self.until_s = 0.0

    def give(self, unit: Unit) -> None:
        self.unit, self.until_s = unit, time.perf_counter() + (LIMIT_S / 2 if unit.beside else LIMIT_S)
        self.channel.send(unit)

    def answer(self) -> Judged:
        """What came, or how it failed to come."""
        assert self.unit is not None
        unit, self.unit = self.unit, None
        try:
            found: Judged = self.channel.recv()
        except EOFError:
            self.process.join()
            return Judged(unit, error=f"its process ended with exit code {self.process.exitcode}")
        return found

    def end(self) -> None:
        self.process.kill()
        self.process.join()
        self.channel.close()


def _judge_all(units: Sequence[Unit], count: int, polluting: set[str]) -> Iterator[Judged]:
    """All units on several processes; one that hangs, dies or pollutes has its process replaced."""
    waiting = sorted(units, key=lambda unit: unit.mutant in polluting, reverse=True)
    children = [_Child() for _ in range(min(count, len(waiting)))]
    try:
        while waiting or any(child.unit for child in children):
            for child in children:
                if child.unit is None and waiting:
                    child.give(waiting.pop())
            busy: dict[object, _Child] = {child.channel: child for child in children if child.unit is not None}
            nearest_s = min(child.until_s for child in busy.values())
            ready = wait(list[Connection](child.channel for child in busy.values()), nearest_s - time.perf_counter())
            for channel in ready:
                child = busy[channel]
                judged = child.answer()
                yield judged
                if judged.unit.mutant in polluting or not child.process.is_alive():
                    _replace(children, child)
            for child in list(busy.values()):
                if child.unit is not None and time.perf_counter() > child.until_s:
                    yield Judged(child.unit, error=f"gave no answer within {LIMIT_S:g} s")
                    _replace(children, child)
    finally:
        for child in children:
            child.end()


def _replace(children: list[_Child], old: _Child) -> None:
    old.end()
    children[children.index(old)] = _Child()


__all__ = ["Row", "SelfTest", "selftest", "unkilled"]
