"""Read typed values out of a raw JSON object and collect every problem. Knows JSON; knows no model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from anychip_sdk.errors import CheckpointInvalid


class Fields:
    """Typed access to one JSON object. A wrong value is noted in `problems` and answered with the default.

    An explicit null reads as absent: Hugging Face writes null for "not set".
    """

    def __init__(self, raw: Mapping[str, object], problems: list[str], where: str) -> None:
        self.raw = raw
        self.problems = problems
        self.where = where

    def __contains__(self, key: str) -> bool:
        return self.raw.get(key) is not None

    def complain(self, key: str, expected: str) -> None:
        self.problems.append(f"{self.where}: {key} is {self.raw.get(key)!r}, expected {expected}")

    def integer(self, key: str, default: int, *, minimum: int = 1) -> int:
        value = self.optional_integer(key, minimum=minimum)
        return default if value is None else value

    def optional_integer(self, key: str, *, minimum: int = 0) -> int | None:
        value = self.raw.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
            self.complain(key, f"a whole number of at least {minimum}")
            return None
        return value

    def number(self, key: str, default: float) -> float:
        value = self.optional_number(key)
        return default if value is None else value

    def optional_number(self, key: str) -> float | None:
        value = self.raw.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            self.complain(key, "a number")
            return None
        return float(value)

    def boolean(self, key: str, default: bool) -> bool:
        value = self.raw.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            self.complain(key, "true or false")
            return default
        return value

    def string(self, key: str, default: str) -> str:
        value = self.raw.get(key)
        if value is None:
            return default
        if not isinstance(value, str):
            self.complain(key, "a string")
            return default
        return value

    def strings(self, key: str) -> tuple[str, ...] | None:
        value = self.raw.get(key)
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            self.complain(key, "a list of strings")
            return None
        return tuple(value)

    def section(self, key: str) -> Fields | None:
        value = self.raw.get(key)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            self.complain(key, "an object")
            return None
        return Fields(value, self.problems, f"{self.where}: {key}")

    def token_ids(self, key: str) -> tuple[int, ...]:
        """One id or a list of ids, as a tuple; empty where the key is absent."""
        value = self.raw.get(key)
        if value is None:
            return ()
        items = value if isinstance(value, list) else [value]
        if not all(isinstance(item, int) and not isinstance(item, bool) and item >= 0 for item in items):
            self.complain(key, "a token id or a list of token ids")
            return ()
        return tuple(items)


def foreign_ids(where: str, key: str, ids: Sequence[int], rows: int) -> list[str]:
    """What is to be said of token ids for which a model with so many rows has none."""
    wrong = [token for token in ids if not 0 <= token < rows]
    if not wrong:
        return []
    named = ", ".join(map(str, wrong))
    return [f"{where}: {key} is {named}, expected ids from 0 to {rows - 1}, as the embedding has {rows} rows"]


def refuse(where: str, problems: Sequence[str], *, hint: str | None = None) -> CheckpointInvalid:
    """The error that lists every problem of one checkpoint."""
    if len(problems) == 1:
        return CheckpointInvalid(f"checkpoint {where}: {problems[0]}", hint=hint)
    lines = "\n".join(f"  - {problem}" for problem in problems)
    return CheckpointInvalid(f"checkpoint {where} has {len(problems)} problems:\n{lines}", hint=hint)


__all__ = ["Fields", "foreign_ids", "refuse"]
