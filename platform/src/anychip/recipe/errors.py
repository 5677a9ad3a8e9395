"""Collect the problems of a recipe and word them all alike. Knows how a problem reads; knows no rule."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass

from anychip.recipe.origins import Origin
from anychip_sdk.errors import RecipeInvalid


@dataclass(frozen=True)
class Problem:
    """One thing wrong, at one place."""

    origin: Origin
    path: str
    message: str

    def __str__(self) -> str:
        subject = f"{self.path}: " if self.path else ""
        return f"{self.origin.position}  {subject}{self.message}"


class Problems:
    """The problems found so far; `is_fatal` once what was read can't be judged any further."""

    def __init__(self) -> None:
        self._found: list[Problem] = []
        self.is_fatal = False

    def add(self, origin: Origin, path: str, message: str) -> None:
        problem = Problem(origin, path, message)
        if problem not in self._found:
            self._found.append(problem)

    def add_fatal(self, origin: Origin, message: str, path: str = "") -> None:
        self.is_fatal = True
        self.add(origin, path, message)

    def __len__(self) -> int:
        return len(self._found)

    def error(self) -> RecipeInvalid:
        ordered = sorted(self._found, key=lambda p: (*p.origin.sort_key, p.path))
        return RecipeInvalid([str(problem) for problem in ordered])


def closest(word: str, words: Iterable[str]) -> str | None:
    """The word meant by a misspelt one; `-`, `_` and case don't count."""
    plain = {_plain(candidate): candidate for candidate in words}
    if _plain(word) in plain:
        return plain[_plain(word)]
    match = difflib.get_close_matches(_plain(word), list(plain), n=1, cutoff=0.65)
    return plain[match[0]] if match else None


def did_you_mean(word: str, words: Iterable[str]) -> str:
    """` Did you mean x?`, or nothing."""
    meant = closest(word, words)
    return "" if meant is None else f" Did you mean {meant}?"


def _plain(word: str) -> str:
    return word.lower().replace("-", "_").strip()


__all__ = ["Problem", "Problems", "closest", "did_you_mean"]
