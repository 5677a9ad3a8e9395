"""The process that reads large bodies: `python -m anychip.server.json_process`. Knows frames and JSON; knows no field.

The first request is the limits, (body_values, body_keys), each further one a body. An answer begins with `+` or `-`:
the value, or (message, code, status) of what refuses it. All but bodies is in `marshal`'s form. It ends itself by a
timer, by the limit of its memory, or when its parent is gone, and gives way to whoever else wants to compute.
"""

from __future__ import annotations

import marshal
import os
import resource
import signal
import socket

from anychip.recipe.limits import LimitsSection
from anychip.server.json_text import decoded
from anychip.text.frames import receive, send
from anychip_sdk.errors import RequestInvalid

MAX_SECONDS = 30  #: of reading one body, on a machine that has other things to do
MAX_BYTES = 2 * 2**30  #: of the process's memory
NICENESS = 5


def main() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MAX_BYTES, MAX_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(NICENESS)
    with socket.socket(fileno=0) as connection:
        if (first := receive(connection)) is None:
            return
        values, keys = marshal.loads(first)
        limits = LimitsSection(body_values=values, body_keys=keys)
        send(connection, b"+")
        while (data := receive(connection)) is not None:
            signal.setitimer(signal.ITIMER_REAL, MAX_SECONDS)
            answer = answered(data, limits)
            signal.setitimer(signal.ITIMER_REAL, 0)
            send(connection, answer)


def answered(data: bytes, limits: LimitsSection) -> bytes:
    try:
        return b"+" + marshal.dumps(decoded(data, limits))  # type: ignore[arg-type]  # JSON is plain data
    except RequestInvalid as error:
        return b"-" + marshal.dumps((error.message, error.code, error.status))


if __name__ == "__main__":
    main()

__all__ = ["MAX_BYTES", "MAX_SECONDS", "answered", "main"]
