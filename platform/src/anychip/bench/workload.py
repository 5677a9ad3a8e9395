"""What a benchmark sends: lengths, shared prefixes, texts, read from a file. Knows no service and no result."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import ErrorDetails

from anychip.recipe.check import found, to_plain
from anychip.recipe.errors import Problems, closest, did_you_mean
from anychip.recipe.nodes import Scalar, Table, dotted, find, nearest
from anychip.recipe.origins import Origin
from anychip.recipe.parse import parse
from anychip.recipe.quantities import Listed
from anychip_sdk.errors import RecipeInvalid, UsageError

SUFFIXES = (".yaml", ".yml", ".json")
_SHIPPED = resources.files("anychip.bench") / "workloads"

Positive = Annotated[int, Field(ge=1)]


class WorkloadInvalid(RecipeInvalid):
    """Every problem of a workload's file, each with its line."""


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Range(Section):
    """A length drawn evenly from `min` to `max`."""

    min: Positive
    max: Positive

    def draw(self, numbers: random.Random) -> int:
        return numbers.randint(self.min, self.max)

    @model_validator(mode="after")
    def _in_order(self) -> Range:
        if self.min > self.max:
            raise ValueError(f"min {self.min} is more than max {self.max}")
        return self


def _as_range(value: object) -> object:
    if isinstance(value, int) and not isinstance(value, bool):
        return {"min": value, "max": value}
    if not isinstance(value, (dict, Range)):
        raise ValueError("expected a number of tokens, or a range such as {min: 32, max: 256}")
    return value


Length = Annotated[Range, BeforeValidator(_as_range)]  #: one number is a range of it alone


class Texts(Section):
    """Sentences from which prompts are put together; `{name}` in them stands for one of the values of that name."""

    head: str = ""
    sentences: Listed[Annotated[str, Field(min_length=1)]] = Field(min_length=1)
    tail: str = ""
    values: dict[str, Listed[str]] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _fills(self) -> Texts:
        try:
            for text in (self.head, *self.sentences, self.tail):
                text.format_map({name: choices[0] for name, choices in self.values.items()})
        except KeyError as missing:
            raise ValueError(f"a sentence holds {{{missing.args[0]}}}, which values doesn't have") from None
        except (IndexError, ValueError, AttributeError) as error:
            raise ValueError(f"a sentence or a list of values can't be filled in: {error}") from None
        return self


class PromptSection(Section):
    """What goes in."""

    shared_tokens: Annotated[int, Field(ge=0)] = 0  #: of a prefix that all prompts of one run begin with
    own_tokens: Length  #: after the prefix, other ones in every prompt
    texts: Texts | None = None  #: None: token ids drawn at random


class RequestsSection(Section):
    """How many requests one run sends."""

    per_stream: Positive = 4  #: times the concurrency
    at_least: Positive = 1


class Workload(Section):
    """One kind of traffic."""

    version: Literal[1]
    name: Annotated[str, Field(min_length=1)]
    description: str = ""
    prompt: PromptSection
    output_tokens: Length
    requests: RequestsSection = RequestsSection()
    concurrency: Listed[Positive] = Field(default=(1, 4, 8, 16), min_length=1)

    def requests_at(self, concurrency: int) -> int:
        return max(self.requests.at_least, self.requests.per_stream * concurrency)

    @property
    def tokens_max(self) -> int:
        """Of the longest request, prompt and output together."""
        return self.prompt.shared_tokens + self.prompt.own_tokens.max + self.output_tokens.max

    @property
    def digest(self) -> str:
        """The SHA-256 of what it says; its name and description don't count."""
        said = self.model_dump_json(exclude={"name", "description"})
        return hashlib.sha256(said.encode()).hexdigest()


def shipped() -> tuple[str, ...]:
    """The names of the workloads that come with the package."""
    files = (Path(entry.name) for entry in _SHIPPED.iterdir())
    return tuple(sorted(file.stem for file in files if file.suffix == ".yaml"))


def load(name: str) -> Workload:
    """A shipped workload by its name, or one of your own by its file.

    Raises:
        UsageError: there is none of that name, or no such file.
        WorkloadInvalid: with everything that is wrong in the file.
    """
    if name in shipped():
        return read((_SHIPPED / f"{name}.yaml").read_text(encoding="utf-8"), f"{name}.yaml")
    path = Path(name)
    if path.suffix not in SUFFIXES:
        known = ", ".join(shipped())
        raise UsageError(
            f"no workload '{name}'; shipped: {known}.{did_you_mean(name, shipped())}",
            hint="one of your own is named by its file: ./mine.yaml",
        )
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"the workload's file {path} cannot be read: {error}") from error
    return read(text, str(path))


def read(text: str, source: str) -> Workload:
    """The workload that a YAML or JSON text says.

    Raises:
        WorkloadInvalid: with everything that is wrong.
    """
    problems = Problems()
    tree = parse(text, source, problems)
    if not isinstance(tree, Table):
        if not len(problems):
            what = "nothing" if tree is None else found(tree)
            problems.add(Origin("file", source, 1, 1), "", f"found {what}, expected a mapping of {_keys()}")
        raise WorkloadInvalid(problems.error().problems)
    try:
        if not len(problems):
            return Workload.model_validate(to_plain(tree))
    except ValidationError as error:
        for detail in error.errors(include_url=False):
            _report(tree, detail, problems)
    raise WorkloadInvalid(problems.error().problems)


def _report(tree: Table, detail: ErrorDetails, problems: Problems) -> None:
    where = detail["loc"]
    node = nearest(tree, where)
    if detail["type"] == "missing":
        message = "missing"
    elif detail["type"] == "extra_forbidden":
        known = _fields(where[:-1])
        meant = closest(str(where[-1]), known)
        message = "unknown key" + (f". Did you mean {meant}?" if meant else f", expected one of {', '.join(known)}")
        parent = nearest(tree, where[:-1])
        node = Scalar(None, parent.entries[str(where[-1])].key_origin) if isinstance(parent, Table) else node
    else:
        said = detail["msg"].removeprefix("Value error, ")
        message = said if detail["type"] == "value_error" else f"found {found(node)}: {said[0].lower()}{said[1:]}"
        while find(tree, where) is None:  # inside of a number that stands for a range
            where = where[:-1]
    problems.add(node.origin, dotted(where), message)


def _fields(path: tuple[str | int, ...]) -> tuple[str, ...]:
    kinds: Mapping[str, type[Section]] = {"prompt": PromptSection, "texts": Texts, "requests": RequestsSection}
    kind = kinds.get(str(path[-1]), Range) if path else Workload
    return tuple(kind.model_fields)


def _keys() -> str:
    return ", ".join(Workload.model_fields)


__all__ = [
    "SUFFIXES",
    "PromptSection",
    "Range",
    "RequestsSection",
    "Texts",
    "Workload",
    "WorkloadInvalid",
    "load",
    "read",
    "shipped",
]
