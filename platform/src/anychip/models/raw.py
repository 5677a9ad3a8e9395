"""Read typed values out of a raw JSON object and collect every problem. Knows JSON; knows no model."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Mapping, Sequence

from anychip_sdk.errors import CheckpointInvalid

MAX_SIZE = 2**24  #: of anything that a config counts, where nothing less is said
_SHOWN = 20  # problems of a list that may have any length
_MAX_CHARS = 1000  # of one problem, parts of which come from the file


class Fields:
    """Typed access to one JSON object. A wrong value is noted in `problems` and answered with the default.

    An explicit null reads as absent: Hugging Face writes null for "not set". `read` has every key that was asked for,
    of this object and of those within it, whether it is there or not: `anychip.models.keys` judges the others.
    """

    def __init__(
        self, raw: Mapping[str, object], problems: list[str], where: str, read: set[str] | None = None
    ) -> None:
        self.raw = raw
        self.problems = problems
        self.where = where
        self.read = set[str]() if read is None else read

    def __contains__(self, key: str) -> bool:
        return self._value(key) is not None

    def settle(self, *keys: str) -> None:
        """Count keys as read: another key's value has decided that they mean nothing."""
        self.read.update(keys)

    def _value(self, key: str) -> object:
        self.read.add(key)
        return self.raw.get(key)

    def complain(self, key: str, expected: str) -> None:
        shown = reprlib.Repr()
        shown.maxstring = shown.maxother = shown.maxlong = 100
        self.problems.append(f"{self.where}: {key} is {shown.repr(self.raw.get(key))}, expected {expected}")

    def integer(self, key: str, default: int, *, minimum: int = 1, maximum: int = MAX_SIZE) -> int:
        value = self.optional_integer(key, minimum=minimum, maximum=maximum)
        return default if value is None else value

    def optional_integer(self, key: str, *, minimum: int = 0, maximum: int = MAX_SIZE) -> int | None:
        value = self._value(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
            self.complain(key, f"a whole number of at least {minimum}")
            return None
        if value > maximum:
            self.complain(key, f"at most {maximum:,}")
            return None
        return value

    def number(
        self,
        key: str,
        default: float,
        *,
        minimum: float = -math.inf,
        above: float = -math.inf,
        maximum: float = math.inf,
    ) -> float:
        value = self.optional_number(key, minimum=minimum, above=above, maximum=maximum)
        return default if value is None else value

    def optional_number(
        self, key: str, *, minimum: float = -math.inf, above: float = -math.inf, maximum: float = math.inf
    ) -> float | None:
        """A finite number of at least `minimum`, more than `above` and at most `maximum`."""
        value = self._value(key)
        if value is None:
            return None
        number = _finite(value)
        if number is None:
            self.complain(key, "a finite number")
        elif number < minimum or number <= above or number > maximum:
            least = f"at least {minimum:g}" if above == -math.inf else f"above {above:g}"
            most = f" and at most {maximum:g}" if maximum < math.inf else ""
            self.complain(key, f"a number {least}{most}")
        else:
            return number
        return None

    def numbers(self, key: str, *, above: float = -math.inf, maximum: float = math.inf) -> tuple[float, ...] | None:
        """A list of finite numbers, each more than `above` and at most `maximum`."""
        value = self._value(key)
        if value is None:
            return None
        found = [_finite(item) for item in value] if isinstance(value, list) else [None]
        kept = tuple(one for one in found if one is not None and above < one <= maximum)
        if len(kept) != len(found):
            self.complain(key, f"a list of numbers above {above:g} and at most {maximum:g}")
            return None
        return kept

    def boolean(self, key: str, default: bool) -> bool:
        value = self._value(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            self.complain(key, "true or false")
            return default
        return value

    def string(self, key: str, default: str) -> str:
        value = self._value(key)
        if value is None:
            return default
        if not isinstance(value, str):
            self.complain(key, "a string")
            return default
        return value

    def strings(self, key: str) -> tuple[str, ...] | None:
        value = self._value(key)
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            self.complain(key, "a list of strings")
            return None
        return tuple(value)

    def section(self, key: str) -> Fields | None:
        value = self._value(key)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            self.complain(key, "an object")
            return None
        return Fields(value, self.problems, f"{self.where}: {key}", self.read)

    def token_ids(self, key: str) -> tuple[int, ...]:
        """One id or a list of ids, as a tuple; empty where the key is absent."""
        value = self._value(key)
        if value is None:
            return ()
        items = value if isinstance(value, list) else [value]
        if not all(isinstance(item, int) and not isinstance(item, bool) and item >= 0 for item in items):
            self.complain(key, "a token id or a list of token ids")
            return ()
        return tuple(items)


def _finite(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def foreign_ids(where: str, key: str, ids: Sequence[int], rows: int) -> list[str]:
    """What is to be said of token ids for which a model with so many rows has none."""
    wrong = [token for token in ids if not 0 <= token < rows]
    if not wrong:
        return []
    named = ", ".join(map(str, wrong))
    return [f"{where}: {key} is {named}, expected ids from 0 to {rows - 1}, as the embedding has {rows} rows"]


def refuse(where: str, problems: Sequence[str], *, hint: str | None = None) -> CheckpointInvalid:
    """The error that lists the problems of one checkpoint: all of a checkpoint that somebody made in earnest."""
    told = printable(problems)
    if len(problems) == 1:
        return CheckpointInvalid(f"checkpoint {where}: {told[0]}", hint=hint)
    lines = "\n".join(f"  - {problem}" for problem in told)
    return CheckpointInvalid(f"checkpoint {where} has {len(problems)} problems:\n{lines}", hint=hint)


def printable(problems: Sequence[str]) -> list[str]:
    """Problems of a file as they may be shown: not too many, none too long, no control characters."""
    more = [f"and {len(problems) - _SHOWN} more"] if len(problems) > _SHOWN else []
    return [*(_printable(problem[:_MAX_CHARS]) for problem in problems[:_SHOWN]), *more]


def _printable(text: str) -> str:
    """Names of keys and tensors come from the file; in a terminal some characters do more than being shown."""
    return "".join(one if one.isprintable() or one == "\n" else repr(one)[1:-1] for one in text)


__all__ = ["MAX_SIZE", "Fields", "foreign_ids", "printable", "refuse"]
