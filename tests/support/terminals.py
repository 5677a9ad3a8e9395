"""Run a command on a terminal that can be hung up, as a closed SSH session does. Knows terminals; knows no test."""

import contextlib
import os
import pty
import subprocess
import sys

#: Makes standard input the controlling terminal of the new session, then becomes the command.
_ATTACH = "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"


class Terminal:
    """One command on a terminal of its own."""

    def __init__(self, command, environ):
        self._controller, terminal = pty.openpty()
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-c", _ATTACH, *command],
                stdin=terminal,
                stdout=terminal,
                stderr=terminal,
                env=environ,
                start_new_session=True,
            )
        finally:
            os.close(terminal)

    def read_until(self, text):
        """What was written up to and with the text; raises EOFError where the command ends before."""
        seen = b""
        while text.encode() not in seen:
            with contextlib.suppress(OSError):  # how Linux says that nobody has the terminal open any more
                if more := os.read(self._controller, 4096):
                    seen += more
                    continue
            raise EOFError(seen.decode(errors="replace"))
        return seen.decode(errors="replace")

    def hang_up(self):
        """Take the terminal away: the system sends SIGHUP, and every write to it fails from now on."""
        os.close(self._controller)
