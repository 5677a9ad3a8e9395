"""The process that renders a chat template: `python -m anychip.text.template_process`. Knows frames and its own limits.

It ends itself: by a timer that no template can catch, by the limit of its memory, or when its parent is gone. Standard
input is a socket with `anychip.text.frames`. The first request is the template's source, each further one an object of
variables. Both are in `marshal`'s form, which is for two processes of one interpreter that trust each other, and which
takes a third of JSON's time, in which the server could do nothing else. An answer begins with `+` or `-` and is a text.
"""

from __future__ import annotations

import marshal
import resource
import signal
import socket

from anychip.text.frames import receive, send
from anychip.text.sandbox import Sandbox, TemplateBroken, TemplateRefused

MAX_SECONDS = 10  #: of compiling, and of one rendering
MAX_BYTES = 512 * 2**20  #: of the process's memory


def main() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MAX_BYTES, MAX_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # ends the process wherever it is, also within a call of C
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with socket.socket(fileno=0) as connection:
        sandbox: Sandbox | None = None
        while (request := receive(connection)) is not None:
            signal.setitimer(signal.ITIMER_REAL, MAX_SECONDS)
            try:
                if sandbox is None:
                    sandbox, text = Sandbox(marshal.loads(request)), ""
                else:
                    text = sandbox.render(marshal.loads(request))
                answer = b"+" + text.encode("utf-8")
            except (TemplateBroken, TemplateRefused) as error:
                answer = b"-" + str(error).encode("utf-8", "replace")
            except MemoryError:
                answer = b"-the chat template refused the messages: it needs too much memory"
            signal.setitimer(signal.ITIMER_REAL, 0)
            send(connection, answer)


if __name__ == "__main__":
    main()

__all__ = ["MAX_BYTES", "MAX_SECONDS", "main"]
