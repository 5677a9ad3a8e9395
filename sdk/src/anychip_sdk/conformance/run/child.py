"""The process in which a group's cases run: reads case ids, answers with attempts. Knows no verdict.

Started as `python -c` by worker.py with the number of a pipe; the job comes pickled on stdin, then one case a line.
What the backend prints goes where the parent sent stdout, never among the answers.
"""

from __future__ import annotations

import faulthandler
import json
import os
import pickle
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NoReturn

import torch

from anychip_sdk.backend import Backend
from anychip_sdk.conformance.cases import plan_cases
from anychip_sdk.conformance.claims import Claims
from anychip_sdk.conformance.requirements import Level
from anychip_sdk.conformance.run.attempt import Bench
from anychip_sdk.device import DeviceConfig
from anychip_sdk.environment import missing_variables


@dataclass(frozen=True)
class Job:
    """What a process works with for all of its cases.

    Attributes:
        environment: what the backend names for a worker's process, which this one was started with; None: it has not
            been asked yet.
    """

    load: Callable[[], Backend]
    claims: Claims
    level: Level
    device: str | None
    config: DeviceConfig
    repro: Path
    repeat: int
    timeout_s: float
    environment: Mapping[str, str] | None = None


def main(answers: int) -> None:
    """Serve cases until stdin ends."""
    faulthandler.enable()
    torch.set_num_threads(1)
    size = int.from_bytes(sys.stdin.buffer.read(8), "little")
    job: Job = pickle.loads(sys.stdin.buffer.read(size))
    with os.fdopen(answers, "w", encoding="utf-8") as channel:

        def answer(**values: Any) -> None:
            channel.write(json.dumps(values) + "\n")
            channel.flush()

        backend = job.load()
        missing = missing_variables(backend.info.environment)
        if missing and job.environment is None:  # libraries read them as they are loaded: it is too late for this one
            answer(environment=dict(backend.info.environment))
            _end()
        bench = Bench.open(
            job.load,
            job.claims,
            job.level,
            device=job.device,
            config=job.config,
            repro=job.repro,
            repeat=job.repeat,
            backend=backend,
        )
        planned = {one.id: one for one in plan_cases(job.claims, job.level)}
        answer(ready=identity_of(bench))
        for line in sys.stdin.buffer:
            # where a case hangs is written to the log just before the parent ends it
            faulthandler.dump_traceback_later(0.9 * job.timeout_s)
            attempt = bench.try_out(planned[line.decode().strip()])
            problem = bench.canary()
            faulthandler.cancel_dump_traceback_later()
            values = asdict(attempt)
            if problem:
                text = f"afterwards the device is of no use: {problem}"
                message = f"{attempt.message}; {text}" if attempt.message else text
                values = {**values, "outcome": "failed", "message": message, "poisoned": True}
            answer(attempt=values)
    _leave(bench)


def identity_of(bench: Bench) -> dict[str, Any]:
    info, backend = bench.info, bench.backend
    return {
        "vendor": backend.info.vendor,
        "api": backend.info.api,
        "emulated": backend.emulated,
        "device": info.name,
        "product": info.product,
        "memory_bytes": info.memory_bytes_total,
        "versions": dict(info.versions),
        "attributes": dict(info.attributes),
    }


def _leave(bench: Bench) -> None:
    """Close the device, but let no destructor of a vendor's library decide how the process ends."""
    bench.device.close()
    _end()


def _end() -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


__all__ = ["Job", "identity_of", "main"]
