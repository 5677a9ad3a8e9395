"""Types of a recipe's values beyond numbers and text: counts, durations, versions, sources. Knows no key."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field, GetCoreSchemaHandler, GetJsonSchemaHandler, WithJsonSchema
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from anychip.recipe.errors import closest

T = TypeVar("T")

_MULTIPLES = {"Ki": 1024, "Mi": 1024**2, "Gi": 1024**3}
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_QUANTITY = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>[A-Za-z]*)")
_SCHEMES = ("hf", "modelscope", "package")
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://([a-z0-9._-]+|\[[0-9a-f:.]+\])(:[0-9]{1,5})?")
_DEFAULT_PORTS = {"http": ":80", "https": ":443"}  # browsers leave them out
_HOST_NAME = re.compile(r"\*|[A-Za-z0-9._-]+|\[?[0-9A-Fa-f:.]+\]?")
#: what a path begins with in a recipe, so that it is told from a name
PATH_STARTS = ("/", "./", "../", "~")


@dataclass(frozen=True)
class Expect:
    """What a type accepts, in words, for errors and for the reference."""

    text: str


@dataclass(frozen=True)
class Unit:
    """What a number counts."""

    text: str


class Seconds(float):
    """A duration in seconds that remembers how it was written."""

    text: str

    def __new__(cls, value: float, text: str | None = None) -> Seconds:
        self = super().__new__(cls, value)
        self.text = f"{float(value):g}s" if text is None else text
        return self

    def __str__(self) -> str:
        return self.text

    @classmethod
    def __get_pydantic_core_schema__(cls, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        shown = core_schema.plain_serializer_function_ser_schema(str, when_used="json")
        return core_schema.no_info_plain_validator_function(parse_duration, serialization=shown)

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"type": "string", "pattern": r"^[0-9]+(\.[0-9]+)?(us|ms|s|m|h)$"}


def parse_duration(value: object) -> Seconds:
    """Seconds from `500ms` or `1.5s`; a bare number is refused, since nothing says its unit."""
    if isinstance(value, Seconds):
        return value
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        raise ValueError(f"found {value} without a unit. Write {value}ms or {value}s")
    match = _QUANTITY.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise ValueError("expected a duration such as 500ms or 1.5s")
    number, unit = float(match["number"]), match["unit"]
    if not unit:
        raise ValueError(f"found {value} without a unit. Write {value}ms or {value}s")
    if unit not in _SECONDS:
        raise ValueError(f"found the unknown unit {unit!r}, expected one of {', '.join(_SECONDS)}")
    if number == 0:
        raise ValueError("found a duration of nothing, expected more than 0")
    return Seconds(number * _SECONDS[unit], str(value))


def parse_count(value: object) -> object:
    """The whole number that `32Ki` means; what is no quantity is left to the number's own check."""
    match = _QUANTITY.fullmatch(value) if isinstance(value, str) else None
    if match is None or not match["unit"]:
        return value
    if match["unit"] not in _MULTIPLES:
        raise ValueError(f"found the unit {match['unit']!r}, expected a count such as 32768 or 32Ki (Ki, Mi, Gi)")
    count = float(match["number"]) * _MULTIPLES[match["unit"]]
    if not count.is_integer():
        raise ValueError(f"found {value}, which is no whole number")
    return int(count)


def check_specifier(value: str) -> str:
    """A version range as Python packages write it."""
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    try:
        SpecifierSet(value)
    except InvalidSpecifier as error:
        raise ValueError(f"found {value!r}, expected a version range such as >=1.2 or ~=0.1") from error
    return value


def check_source(value: str) -> str:
    """A model's place: a path that looks like one, or a scheme and what it needs."""
    if value.startswith(PATH_STARTS):
        return value
    scheme, colon, rest = value.partition(":")
    if not colon:
        raise ValueError(f"found {value!r}, neither a path nor a scheme. Write ./{value} or hf:{value}")
    if scheme not in _SCHEMES:
        meant = closest(scheme, _SCHEMES)
        hint = f". Did you mean {meant}:?" if meant else ""
        raise ValueError(f"found the scheme {scheme!r}, expected one of hf:, modelscope:, package:{hint}")
    example = "package:distribution/file.gguf" if scheme == "package" else f"{scheme}:organisation/name"
    if not re.fullmatch(r"[^/\s]+(/[^/\s]+)+", rest):
        raise ValueError(f"found {value!r}, expected {example}")
    return value


def check_path(value: str) -> str:
    """A file's place that nobody takes for a name."""
    if value.startswith(PATH_STARTS):
        return value
    raise ValueError(f"found {value!r}, which is no path. Write ./{value}")


def check_origin(value: str) -> str:
    """An origin as browsers send it, or the star."""
    if value == "*":
        return value
    if not _ORIGIN.fullmatch(value.lower()):
        bare = re.sub(r"(://[^/]*)/.*", r"\1", value.lower())
        hint = f". Write {bare}" if _ORIGIN.fullmatch(bare) else ""
        raise ValueError(f"found {value!r}, expected an origin such as https://chat.example.com, or *{hint}")
    scheme, _, host = value.lower().partition("://")
    return f"{scheme}://{host.removesuffix(_DEFAULT_PORTS.get(scheme, ''))}"


def check_host_name(value: str) -> str:
    """A host's name or address without scheme and port, or the star."""
    if not _HOST_NAME.fullmatch(value):
        raise ValueError(f"found {value!r}, expected a name or an address without scheme, port and path, or *")
    return value.lower()


def as_tuple(value: object) -> object:
    """A list as the frozen tuple that recipes hold."""
    return tuple(value) if isinstance(value, list) else value


Word = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_.-]*$"), Expect("a name in lower case")]
Slug = Annotated[
    str, Field(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"), Expect("lower-case letters, digits and hyphens")
]
Text = Annotated[str, Field(min_length=1), Expect("text")]
DeviceName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]*(:[0-9]+)?$"), Expect("a device such as chip:0")]
Specifier = Annotated[str, AfterValidator(check_specifier), Expect("a version range such as >=1.2 or ~=0.1")]
Source = Annotated[
    str,
    AfterValidator(check_source),
    Expect("a path (./, ../, / or ~), hf:org/name, modelscope:org/name or package:distribution/file"),
]
FilePath = Annotated[str, AfterValidator(check_path), Expect("a path (./, ../, / or ~)")]
Origin = Annotated[str, AfterValidator(check_origin), Expect("an origin such as https://chat.example.com, or *")]
HostName = Annotated[str, AfterValidator(check_host_name), Expect("a host's name without scheme and port, or *")]
Positive = Annotated[int, Field(ge=1)]
Count = Annotated[
    int,
    Field(ge=1),
    BeforeValidator(parse_count),
    WithJsonSchema(
        {"anyOf": [{"type": "integer", "minimum": 1}, {"type": "string", "pattern": "^[0-9]+(\\.[0-9]+)?(Ki|Mi|Gi)$"}]}
    ),
    Expect("a whole number of at least 1, such as 32768 or 32Ki"),
]
Listed = Annotated[tuple[T, ...], BeforeValidator(as_tuple)]

__all__ = [
    "PATH_STARTS",
    "Count",
    "DeviceName",
    "Expect",
    "FilePath",
    "HostName",
    "Listed",
    "Origin",
    "Positive",
    "Seconds",
    "Slug",
    "Source",
    "Specifier",
    "Text",
    "Unit",
    "Word",
    "check_host_name",
    "check_origin",
    "check_path",
    "check_source",
    "check_specifier",
    "parse_count",
    "parse_duration",
]
