"""Turn what stands in a YAML scalar into text and a value, by YAML 1.2's core schema. Knows no key of a recipe."""

from __future__ import annotations

import re

from anychip.recipe.nodes import Value

_NULL = {"", "~", "null", "Null", "NULL"}
_TRUE = {"true", "True", "TRUE"}
_FALSE = {"false", "False", "FALSE"}
# A leading zero is octal in YAML 1.1 and decimal in 1.2, so such a number stays text and its key's type refuses it.
_INT = re.compile(r"[-+]?(0|[1-9][0-9]*)")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_LEADING_ZERO = re.compile(r"[-+]?0[0-9]+")
_SPECIAL = {".inf": "inf", "+.inf": "inf", "-.inf": "-inf", ".nan": "nan"}
_HALF = re.compile("[\ud800-\udfff]")  # of a surrogate pair
_NUMBER_CHARACTERS = 64  # longer than any number that a recipe can mean


def is_text(value: str) -> bool:
    """Whether it is Unicode: escapes and the environment may hold halves of surrogate pairs."""
    return _HALF.search(value) is None


def join_halves(value: str) -> str:
    r"""The text that is meant where a character is escaped as a surrogate pair, as JSON does: "\ud83d\ude00".

    Raises:
        ValueError: half a pair stands alone.
    """
    return value if is_text(value) else value.encode("utf-16-le", "surrogatepass").decode("utf-16-le")


def resolve(text: str) -> Value:
    """The value of an unquoted scalar: null, a boolean, a number, else the text itself."""
    if text in _NULL:
        return None
    if text in _TRUE or text in _FALSE:
        return text in _TRUE
    return _number(text)


def _number(text: str) -> Value:
    if len(text) > _NUMBER_CHARACTERS or _LEADING_ZERO.fullmatch(text):
        return text
    if _INT.fullmatch(text):
        return int(text)
    if text.startswith("0o") and re.fullmatch("0o[0-7]+", text):
        return int(text[2:], 8)
    if text.startswith("0x") and re.fullmatch("0x[0-9a-fA-F]+", text):
        return int(text[2:], 16)
    if _FLOAT.fullmatch(text):
        return float(text)
    special = _SPECIAL.get(text.lower())
    return text if special is None else float(special)


__all__ = ["is_text", "join_halves", "resolve"]
