"""Run a backend's cases, each group in its own process, and keep every result. Knows no report.

Results go to `cases.jsonl` as they come, so that nothing is lost when the run itself ends; `resume` takes them over.
"""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import IO, Any

from anychip_sdk.backend import Backend
from anychip_sdk.conformance.cases import Planned, group_of, load_checks, plan_cases, suite_digest, suite_version
from anychip_sdk.conformance.certify.verdict import judged
from anychip_sdk.conformance.claims import Claims
from anychip_sdk.conformance.profiles import SCOPES
from anychip_sdk.conformance.requirements import Level
from anychip_sdk.conformance.results import CaseResult, Identity, Results, Suite, case_from_json, save
from anychip_sdk.conformance.run.attempt import Attempt, Bench
from anychip_sdk.conformance.run.child import Job, identity_of
from anychip_sdk.conformance.run.host import command, host_facts, now
from anychip_sdk.conformance.run.target import Target
from anychip_sdk.conformance.run.worker import StartFailed, Worker
from anychip_sdk.device import DeviceConfig
from anychip_sdk.errors import UsageError
from anychip_sdk.profiles import Profile

#: seconds that one case may take
TIMEOUT_S = {"smoke": 120.0, "std": 300.0, "deep": 1800.0, "soak": 6 * 3600.0}
STREAMED = "cases.jsonl"
#: what a run writes, and so may delete
OWN_FILES = (STREAMED, "results.json", "certificate.json", "report.html", "junit.xml", "ops.md", "numerics.csv")
OWN_FOLDERS = ("logs", "repro")
Listener = Callable[[CaseResult, int, int], None]  #: result, cases done, cases in all


@dataclass(frozen=True)
class Options:
    """How a run is limited.

    Attributes:
        only: globs over cases, requirements or tracks.
        resume: the folder of an earlier run, whose cases are taken over.
        timeout_s: for one case; None: by level.
        repeat: run each case so often; one failure is a failure.
        device: its name; None: the first.
    """

    profile: Profile = "bringup"
    level: Level = "smoke"
    only: tuple[str, ...] = ()
    resume: Path | None = None
    timeout_s: float | None = None
    repeat: int = 1
    device: str | None = None
    config: DeviceConfig = field(default_factory=lambda: DeviceConfig(threads=1))

    @property
    def limit_s(self) -> float:
        return self.timeout_s or TIMEOUT_S[self.level]


def run(target: Target, options: Options, out: Path, listen: Listener | None = None) -> Results:
    """Run all cases of a profile and write results.json.

    Args:
        target: what is tested.
        options: which cases, and how.
        out: the folder for results, logs and evidence.
        listen: is told of each case as it ends.

    Raises:
        UsageError: `only` names no case, or `resume` holds results of something else.
    """
    planned = plan_cases(target.claims, options.level, SCOPES[options.profile].tracks, options.only)
    if not planned:
        message = f"no requirement of profile {options.profile} is named by {' '.join(options.only)}"
        raise UsageError(message, hint=f"{command()} list shows them; give * for any text")
    _prepare(out, options.resume)
    return _Run(target, options, out, planned, listen).results()


def _prepare(out: Path, resume: Path | None) -> None:
    """An empty folder, but for what a resumed run needs of itself."""
    if resume is None or resume.absolute() != out.absolute():
        for name in OWN_FILES:
            (out / name).unlink(missing_ok=True)
        for name in OWN_FOLDERS:
            shutil.rmtree(out / name, ignore_errors=True)
    (out / "logs").mkdir(parents=True, exist_ok=True)


class _Run:
    """One run while it goes on."""

    def __init__(
        self, target: Target, options: Options, out: Path, planned: Sequence[Planned], listen: Listener | None
    ) -> None:
        self.target, self.options, self.out, self.planned, self.listen = target, options, out, planned, listen
        self.done: dict[str, CaseResult] = {}
        self.ready: dict[str, Any] = {}
        self.environment: Mapping[str, str] | None = None  #: what the backend names for its process, once it was asked
        self.started = now()

    def results(self) -> Results:
        earlier = _earlier(self.options, self._key())
        with (self.out / STREAMED).open("w", encoding="utf-8") as stream:
            stream.write(json.dumps(self._key()) + "\n")
            for one in self.planned:
                if one.missing:
                    self._add(one, result_of(one, Attempt("not_claimed")), stream)
                elif one.id in earlier:
                    self._add(one, self._taken_over(earlier[one.id]), stream)
            for group in dict.fromkeys(group_of(one, self.options.level) for one in self.planned):
                members = [one for one in self.planned if group_of(one, self.options.level) == group]
                self._run_group(group, [one for one in members if one.id not in self.done], stream)
        found = judged(self._results())
        save(found, self.out)
        return found

    def _taken_over(self, case: CaseResult) -> CaseResult:
        """An earlier run's result, its evidence copied."""
        if case.evidence and self.options.resume is not None:
            source, target = self.options.resume / case.evidence, self.out / case.evidence
            if source.is_file() and source.absolute() != target.absolute():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, target)
        return case

    def _run_group(self, group: str, members: Sequence[Planned], stream: IO[str]) -> None:
        if not members:
            return
        with self._worker(group) as worker:
            dead = ""
            for one in members:
                try:
                    attempt = Attempt("failed", dead) if dead else worker.run(one.id)
                except StartFailed as error:
                    dead, attempt = error.message, Attempt("failed", error.message)
                self.ready = worker.ready or self.ready
                if one is members[-1] and attempt.outcome != "failed":
                    problem = worker.close()
                    attempt = replace(attempt, outcome="failed", message=problem) if problem else attempt
                self._add(one, self._named(one, attempt), stream)

    @contextmanager
    def _worker(self, group: str) -> Iterator[Worker]:
        options = self.options
        job = Job(
            self.target.load,
            self.target.claims,
            options.level,
            options.device,
            options.config,
            self.out.absolute() / "repro",
            options.repeat,
            options.limit_s,
            self.environment,
        )
        worker = Worker(job, self.out / "logs" / f"{group}.log", options.limit_s)
        try:
            yield worker
        finally:
            self.environment = worker.environment
            worker.kill()

    def _named(self, one: Planned, attempt: Attempt) -> CaseResult:
        """With the command that runs it again, and the evidence's place in the folder."""
        found = result_of(one, attempt)
        if attempt.outcome != "failed":
            return found
        evidence = Path(attempt.evidence).relative_to(self.out.absolute()).as_posix() if attempt.evidence else ""
        return replace(found, replay=replay(self.target.name, one.id, self.options), evidence=evidence)

    def _add(self, one: Planned, result: CaseResult, stream: IO[str]) -> None:
        self.done[one.id] = result
        stream.write(json.dumps(asdict(result)) + "\n")
        stream.flush()
        if self.listen is not None:
            self.listen(result, len(self.done), len(self.planned))

    def _key(self) -> dict[str, str]:
        """What must be the same for results to be taken over."""
        facts = host_facts()
        return {
            "plugin": self.target.digest,
            "suite": suite_digest(),
            "level": self.options.level,
            "device": self.options.device or "",
            "emulate": str(self.options.config.emulate),
            "claims": repr(self.target.claims),
            "torch": facts["torch"],
            "python": facts["python"],
        }

    def _ask(self) -> None:
        """Learn what the device is, where no case had to be run."""
        with self._worker("device") as worker:
            try:
                worker.start()
            except StartFailed:
                return  # the cases say so
            self.ready = worker.ready

    def _results(self) -> Results:
        target = self.target
        if not self.ready:
            self._ask()
        unknown = {"vendor": "", "api": "", "device": "", "product": "", "memory_bytes": 0}
        ready = self.ready or {**unknown, "emulated": self.options.config.emulate}
        identity = Identity(target.claims.name, target.distribution, target.version, target.digest, **ready)
        return Results(
            identity=identity,
            host=host_facts(),
            suite=suite_of(self.options.profile),
            profile=self.options.profile,
            level=self.options.level,
            only=self.options.only,
            claims=target.claims,
            started=self.started,
            finished=now(),
            cases=tuple(self.done[one.id] for one in self.planned),
        )


def run_in_process(
    load: Callable[[], Backend],
    claims: Claims,
    *,
    only: Sequence[str] = (),
    profile: Profile = "kernel",
    level: Level = "smoke",
    config: DeviceConfig | None = None,
) -> Results:
    """Run cases in this process: fast, for backends that are known to neither crash nor hang.

    Args:
        load: gives the backend; must be picklable, since some checks load it in processes of their own.
        claims: what is claimed of it.
        only: globs over cases, requirements or tracks.
    """
    started = now()
    planned = plan_cases(claims, level, SCOPES[profile].tracks, only)
    bench = Bench.open(load, claims, level, config=config)
    try:
        cases = tuple(result_of(one, Attempt("not_claimed") if one.missing else bench.try_out(one)) for one in planned)
    finally:
        bench.device.close()
    backend = bench.backend
    identity = Identity(claims.name, backend.distribution, backend.version, "", **identity_of(bench))
    suite = suite_of(profile)
    return judged(Results(identity, host_facts(), suite, profile, level, tuple(only), claims, started, now(), cases))


def result_of(one: Planned, attempt: Attempt) -> CaseResult:
    rule = one.requirement
    return CaseResult(
        one.id,
        rule.id,
        rule.track,
        rule.force,
        attempt.outcome,
        attempt.outcome,
        attempt.message,
        round(attempt.seconds, 4),
        one.op,
        one.dtype,
        one.shape_class,
        one.missing,
        attempt.measured,
        attempt.fallbacks,
    )


def suite_of(profile: Profile) -> Suite:
    """This suite, and which of the profile's tracks it lacks here."""
    present = load_checks()
    absent: dict[str, str] = {
        track: "its checks come with the package anychip, which is not installed"
        if track in ("graph", "e2e")
        else "it has no checks here"
        for track in SCOPES[profile].tracks
        if track not in present
    }
    return Suite(suite_version(), suite_digest(), absent)


def replay(name: str, case: str, options: Options) -> str:
    """The one command that runs a case again, just so."""
    more = ["--device", options.device] if options.device else []
    more += ["--emulate"] if options.config.emulate else []
    profile = ["--profile", options.profile, "--level", options.level]
    return f"{command()} run {shlex.join([name, '--only', case, *profile, *more])}"


def _earlier(options: Options, key: dict[str, str]) -> dict[str, CaseResult]:
    if options.resume is None:
        return {}
    path = options.resume / STREAMED
    try:
        first, *lines = path.read_text(encoding="utf-8").splitlines()
        before = json.loads(first)
    except (OSError, ValueError) as error:
        message = f"{options.resume} holds no run that could be resumed: {error}"
        raise UsageError(message) from error
    changed = [name for name in key if before.get(name) != key[name]]
    if changed:
        message = f"{options.resume} can't be resumed: {', '.join(changed)} changed since"
        raise UsageError(message, hint="start a new run without --resume")
    found: dict[str, CaseResult] = {}
    for line in lines:
        try:
            case = case_from_json(json.loads(line))
        except (ValueError, TypeError, KeyError):
            continue  # the last line of a run that was killed while it wrote
        found[case.id] = case
    return {name: case for name, case in found.items() if case.outcome != "not_claimed"}


__all__ = ["TIMEOUT_S", "Listener", "Options", "replay", "result_of", "run", "run_in_process", "suite_of"]
