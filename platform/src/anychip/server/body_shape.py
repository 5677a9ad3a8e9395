"""Bound a JSON body by its shape: before it is parsed by the text, then by its lists and objects.

Parsing and validating keep the interpreter to themselves until they are done, so what is too much for that is refused
here, where the work is cut into pieces. Knows JSON's syntax and the limits; knows no field's meaning.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

from anychip.recipe.limits import LimitsSection
from anychip_sdk.errors import RequestInvalid

_PIECE_BYTES = 32 * 1024
#: the key of server.limits that bounds a field; of a field that is an object with limits, all of them
Limited: TypeAlias = "Mapping[str, str | Mapping[str, Any]]"

_AS_NINES = bytes.maketrans(b"012345678", b"999999999")
_LONG_NUMBER = b"9" * 100


def over_limit(key: str, limit: object, said: str, *, param: str | None = None, status: int = 400) -> RequestInvalid:
    """The refusal of a request that exceeds the limit `server.limits.<key>`."""
    message = f"{said}; the limit is {limit} (server.limits.{key})"
    return RequestInvalid(message, param=param, code="limit_exceeded", status=status)


def check_text(data: bytes, limits: LimitsSection) -> None:
    """Refuse a body with too many values or keys, or with a number of a hundred digits.

    Raises:
        RequestInvalid: with status 413, naming the limit.
    """
    if len(data) <= min(limits.body_values, limits.body_keys):
        return
    values = keys = 0
    for outside in _outside_of_texts(data):
        named, opened = outside.count(b":"), outside.count(b"{") + outside.count(b"[")
        values += outside.count(b",") + opened
        keys += named + opened
        if keys > limits.body_keys:
            raise over_limit("body_keys", limits.body_keys, "the body has too many objects, lists and keys", status=413)
        if values > limits.body_values:
            raise over_limit("body_values", limits.body_values, "the body has too many values", status=413)
        if _LONG_NUMBER in outside.translate(_AS_NINES):  # a pattern would count each number again at each digit
            raise RequestInvalid("the body holds a number of 100 digits or more", code="invalid_json")


def _outside_of_texts(data: bytes) -> Iterator[bytes]:
    """The body without its texts, piece by piece."""
    start, is_in_text = 0, False
    while start < len(data):
        end = min(start + _PIECE_BYTES, len(data))
        while end < len(data) and data[end - 1] == ord("\\"):  # an escape stays whole: a run of them is taken on
            end += 1
        piece = data[start:end].replace(b"\\\\", b"").replace(b'\\"', b"")
        parts = piece.split(b'"')
        yield b" ".join(parts[is_in_text::2])
        is_in_text ^= len(parts) % 2 == 0
        start = end


def check_objects(value: Mapping[str, object], limits: LimitsSection, limited: Limited, path: str = "") -> None:
    """Refuse fields with more entries than their limit says, and any other object with too many keys.

    Args:
        value: the decoded body, or an object in it.
        limited: the limit of each field that has one of its own, by the field's name.
        path: where `value` lies in the body.

    Raises:
        RequestInvalid: naming the field, the limit and its value.
    """
    for name, given in value.items():
        key, where = limited.get(name), path + name[:80]
        if isinstance(key, Mapping):
            if isinstance(given, dict):
                check_objects(given, limits, key, f"{where}.")
        elif key is not None:
            _check_field(given, where, key, limits)
        if not isinstance(key, Mapping):
            _check_keys(given, where, limits, is_counted=key is not None)
    _check_count(value, path.rstrip(".") or "the body", limits)


def _check_keys(given: object, where: str, limits: LimitsSection, *, is_counted: bool) -> None:
    for one in _objects(given):
        if not (is_counted and one is given):
            _check_count(one, where, limits)


def _check_count(one: Mapping[str, object], where: str, limits: LimitsSection) -> None:
    if len(one) > limits.object_keys:
        raise over_limit("object_keys", limits.object_keys, f"{where}: an object with {len(one)} keys")


def _check_field(given: object, where: str, key: str, limits: LimitsSection) -> None:
    """A number may be as high, a list or object as long, as the limit says."""
    limit: int = getattr(limits, key)
    texts = [given] if isinstance(given, str) else given if isinstance(given, list) else []
    if isinstance(given, (int, float)) and given > limit:  # 5.0 is 5 in JSON
        raise over_limit(key, limit, f"{where}: asked for {given if given < 10**12 else 'far more'}", param=where)
    if isinstance(given, (list, dict)) and len(given) > limit and not _is_one_prompt(key, given):
        raise over_limit(key, limit, f"{where}: {len(given)} entries", param=where)
    if key.endswith("_characters") and isinstance(given, str) and len(given) > limit:
        raise over_limit(key, limit, f"{where}: {len(given)} characters", param=where)
    if key == "stop_strings" and any(isinstance(text, str) and len(text) > limits.stop_characters for text in texts):
        raise over_limit("stop_characters", limits.stop_characters, f"{where}: a stop string too long", param=where)


def _is_one_prompt(key: str, given: list[object] | dict[str, object]) -> bool:
    """A list of token ids is one prompt, however many it has."""
    return key == "prompts" and isinstance(given, list) and type(given[0]) is int


def _objects(value: object) -> Iterator[dict[str, object]]:
    """All objects in a value, at any depth."""
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict):
            yield one
            waiting += [inner for inner in one.values() if isinstance(inner, (dict, list))]
        elif isinstance(one, list):
            waiting += [inner for inner in one if isinstance(inner, (dict, list))]


__all__ = ["Limited", "check_objects", "check_text", "over_limit"]
