"""Join the parts of a GGUF file that was split. Knows how parts are named and numbered; knows no model."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from anychip.weights.gguf import GGUFFile, parse_gguf
from anychip.weights.names import shorten
from anychip_sdk.errors import CheckpointInvalid

_PART = re.compile(r"^(.*)-(\d{5})-of-(\d{5})\.gguf$", re.ASCII)


class _Series(NamedTuple):
    """What a part's name says."""

    stem: str
    number: int  # from 1
    parts: int

    def names(self) -> list[str]:
        return [f"{self.stem}-{number:05}-of-{self.parts:05}.gguf" for number in range(1, self.parts + 1)]


def first_parts(files: Iterable[Path]) -> list[Path]:
    """One file for each model: of the parts of a split one the first that is there."""
    found: dict[object, Path] = {}
    for file in sorted(files):
        series = _series(file)
        found.setdefault((series.stem, series.parts) if series else file, file)
    return list(found.values())


def parse_parts(path: Path) -> GGUFFile:
    """A file, with the other parts where its name says that it is one; the metadata is the first part's.

    Raises:
        CheckpointInvalid: a part is missing, or a header can't be read.
    """
    series = _series(path)
    if series is None:
        return _alone(path)
    parts = [path.with_name(name) for name in series.names()]
    missing = [f"part {at} of {series.parts}: {part.name}" for at, part in enumerate(parts, 1) if not part.is_file()]
    if missing:
        raise CheckpointInvalid(f"checkpoint {path}: {len(missing)} parts are missing: {shorten(missing)}")
    parsed: list[GGUFFile] = []
    try:
        for part in parts:
            parsed.append(parse_gguf(part))
        problems = [problem for file in parsed for problem in file.problems]
        for at, (part, file) in enumerate(zip(parts, parsed, strict=True)):
            said = file.metadata.get("split.no"), file.metadata.get("split.count")
            if said != (at, series.parts):
                problems.append(
                    f"{part.name}: split.no and split.count are {said[0]!r:.40} and {said[1]!r:.40}, "
                    f"expected {at} and {series.parts}"
                )
        tensors = tuple(tensor for file in parsed for tensor in file.tensors)
        total = parsed[0].metadata.get("split.tensors.count", len(tensors))
        if not problems and total != len(tensors):
            problems.append(f"the parts hold {len(tensors):,} tensors, split.tensors.count is {total!r:.40}")
    except BaseException:
        for file in parsed:
            file.close()
        raise
    return GGUFFile(parsed[0].metadata, tensors, tuple(problems), tuple(one for file in parsed for one in file.mapped))


def _alone(path: Path) -> GGUFFile:
    file = parse_gguf(path)
    count, number = file.metadata.get("split.count"), file.metadata.get("split.no")
    if isinstance(count, int) and count > 1:
        file.close()
        at = number + 1 if isinstance(number, int) else "unknown"
        raise CheckpointInvalid(
            f"checkpoint {path}: is part {at} of {count}, and its name doesn't say so",
            hint=f"name the parts as they were, such as {path.stem}-00001-of-{count:05}.gguf",
        )
    return file


def _series(path: Path) -> _Series | None:
    match = _PART.match(path.name)
    if match is None or not 0 < int(match[2]) <= int(match[3]):
        return None
    return _Series(match[1], int(match[2]), int(match[3]))


__all__ = ["first_parts", "parse_parts"]
