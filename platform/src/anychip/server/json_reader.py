"""Read bodies of JSON; large ones in another process. Knows sizes and processes; knows no field.

Parsing keeps the interpreter from every other thread until it is done: 30 ms for a body of 10 MB on a core of its own,
and several times that where cores are busy. Taking up the value that another process has found takes a few.
"""

from __future__ import annotations

import marshal
from typing import Any

from anychip.recipe.limits import LimitsSection
from anychip.server.json_process import MAX_SECONDS
from anychip.server.json_text import decoded
from anychip.text.frames import MAX_FRAME_BYTES
from anychip.text.helper import Helper, HelperEnded, Helpers
from anychip_sdk.errors import RequestInvalid

#: A millisecond's parsing, or two; more is another process's.
LARGE_BYTES = 256 * 1024
#: A value may have several times the bytes of its text: what is beyond that is read here, where an operator allows it.
HUGE_BYTES = MAX_FRAME_BYTES // 5


class JsonReader:
    """For several threads; its processes begin with the first large body, and end with the last reference."""

    def __init__(self, limits: LimitsSection) -> None:
        self._limits = limits
        self._helpers = Helpers(lambda: _started(limits))

    def read(self, data: bytes) -> object:
        """The value; blocks while another process reads it.

        Raises:
            RequestInvalid: it is no JSON, or too much.
        """
        if not LARGE_BYTES < len(data) <= HUGE_BYTES:
            return decoded(data, self._limits)
        try:
            with self._helpers.one() as helper:
                answer = helper.ask(data)
        except HelperEnded as error:
            raise RequestInvalid(f"the body can't be read: {error}", code="invalid_json") from error
        value: Any = marshal.loads(memoryview(answer)[1:])
        if answer[:1] == b"+":
            return value
        message, code, status = value
        raise RequestInvalid(message, code=code, status=status)


def _started(limits: LimitsSection) -> Helper:
    helper = Helper("anychip.server.json_process", MAX_SECONDS)
    try:
        helper.ask(marshal.dumps((limits.body_values, limits.body_keys)))
    except BaseException:
        helper.end()
        raise
    return helper


__all__ = ["LARGE_BYTES", "JsonReader"]
