"""Where a value of a recipe came from: a place in a file, `--set`, a variable, or the default. Knows no values."""

from __future__ import annotations

from dataclasses import dataclass, replace

_ORDER = {"file": 0, "env": 1, "set": 2, "default": 3}


@dataclass(frozen=True)
class Origin:
    """The place that a value was written at.

    Attributes:
        kind: file, env, set or default.
        source: the file's path as the user would write it, the variable's name, or `--set`.
        line: from 1; None outside files.
        column: from 1; None outside files.
        variables: the environment variables that the value was interpolated from.
        is_reset: a null put the default back.
    """

    kind: str
    source: str
    line: int | None = None
    column: int | None = None
    variables: tuple[str, ...] = ()
    is_reset: bool = False

    def __str__(self) -> str:
        place = self.source if self.line is None else f"{self.source}:{self.line}:{self.column}"
        if self.variables:
            place += " through " + ", ".join(f"${name}" for name in self.variables)
        return f"default (null at {place})" if self.is_reset else place

    @property
    def position(self) -> str:
        """The place alone, as errors start with it."""
        return self.source if self.line is None else f"{self.source}:{self.line}:{self.column}"

    @property
    def sort_key(self) -> tuple[int, str, int, int]:
        return (_ORDER[self.kind], self.source, self.line or 0, self.column or 0)

    def through(self, variables: tuple[str, ...]) -> Origin:
        return replace(self, variables=self.variables + variables)

    def reset(self) -> Origin:
        return replace(self, is_reset=True)


DEFAULT = Origin("default", "default")

__all__ = ["DEFAULT", "Origin"]
