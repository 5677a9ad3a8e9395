"""What a benchmark found, as it is written to JSON. Knows the document's form; measures nothing."""

from __future__ import annotations

from typing import Literal

import msgspec

from anychip.bench.record import Slo
from anychip.bench.summary import Figures, RunSummary
from anychip.bench.workload import Workload
from anychip_sdk.errors import IntegrityFailed

#: Changes when a figure of the same name comes to mean something else; docs/bench.md says what each means.
DEFINITIONS_VERSION = 1
LoadKind = Literal["closed", "poisson"]


class Level(msgspec.Struct, frozen=True):
    """One load: streams of a closed loop, or requests per second of a Poisson process."""

    kind: LoadKind
    value: float

    def __str__(self) -> str:
        return f"{self.value:g} at once" if self.kind == "closed" else f"{self.value:g}/s"


class WarmUp(msgspec.Struct, frozen=True):
    """What ran before anything counted."""

    windows_tok_s: tuple[float, ...] = ()
    is_stable: bool = False


class LevelResult(msgspec.Struct, frozen=True):
    """One load's figures over its runs, and each run."""

    level: Level
    figures: Figures
    runs: tuple[RunSummary, ...]


class TargetFacts(msgspec.Struct, frozen=True):
    """What was measured."""

    kind: Literal["url", "service", "recipe"]
    name: str
    url: str
    model: str
    api: str
    recipe_digest: str | None


class WorkloadFacts(msgspec.Struct, frozen=True):
    """What was sent."""

    name: str
    digest: str
    content: dict[str, object]  #: the whole file, its texts left out

    @classmethod
    def of(cls, workload: Workload) -> WorkloadFacts:
        content = workload.model_dump(mode="json", exclude={"prompt": {"texts"}})
        return cls(workload.name, workload.digest, content)


class BenchResult(msgspec.Struct, frozen=True, kw_only=True):
    """A whole benchmark."""

    is_valid: bool  #: no request failed
    failures: tuple[str, ...]  #: the first of each kind
    target: TargetFacts
    workload: WorkloadFacts
    seed: int
    slo: Slo
    warm_up: WarmUp
    levels: tuple[LevelResult, ...]
    peak_rss_bytes: int | None  #: of the service's processes; None: they are not this machine's
    service: dict[str, object]  #: what it tells about itself
    environment: dict[str, object]
    began_at: str
    wall_s: float
    definitions_version: int = DEFINITIONS_VERSION

    def to_json(self) -> dict[str, object]:
        document: dict[str, object] = msgspec.to_builtins(self)
        return document


def from_json(text: str | bytes, source: str) -> BenchResult:
    """A result that `platform bench --output json` wrote.

    Raises:
        IntegrityFailed: it is none, or of another version.
    """
    try:
        result = msgspec.json.decode(text, type=BenchResult)
    except msgspec.DecodeError as error:
        raise IntegrityFailed(f"{source} is no result of platform bench: {error}") from error
    if result.definitions_version != DEFINITIONS_VERSION:
        raise IntegrityFailed(
            f"{source} has definitions version {result.definitions_version}, this anychip {DEFINITIONS_VERSION}",
            hint="measure again with this anychip",
        )
    return result


__all__ = [
    "DEFINITIONS_VERSION",
    "BenchResult",
    "Level",
    "LevelResult",
    "LoadKind",
    "TargetFacts",
    "WarmUp",
    "WorkloadFacts",
    "from_json",
]
