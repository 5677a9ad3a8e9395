"""Render a chat template in processes that can be ended. Knows processes and sockets; knows no messages.

A template comes from strangers, and no thread can be ended from outside. So each rendering runs in a process with
limits of its own, which is kept for the next one and replaced after it was ended.
"""

from __future__ import annotations

import asyncio
import marshal
import signal
import socket
import subprocess
import sys
import weakref
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

from anychip.text.sandbox import TemplateBroken, TemplateRefused
from anychip.text.template_process import MAX_FRAME_BYTES, MAX_SECONDS, receive, send

MAX_RENDERINGS = 4  #: at a time, of those that a server asks for; others wait
GRACE_SECONDS = 5.0  #: beyond its own limit, until a process counts as stuck


class TemplateRenderer:
    """One template and its processes. May be used by several threads; processes end with the last reference.

    Raises:
        TemplateBroken: a syntax error, or compiling exceeds the limits.
    """

    def __init__(self, source: str) -> None:
        self._source = source
        self._idle: list[_Process] = [self._started()]
        self._threads = ThreadPoolExecutor(MAX_RENDERINGS, "template")
        self._finalizer = weakref.finalize(self, _end_all, self._idle)

    def render(self, variables: Mapping[str, object]) -> str:
        """The text; blocks for up to MAX_SECONDS.

        Raises:
            TemplateRefused: with the template's own words, or what it exceeds.
        """
        request = _encoded(variables)
        try:
            process = self._idle.pop()
        except IndexError:
            process = self._started()
        try:
            text = process.ask(request)
        except TemplateRefused:
            self._give_back(process)
            raise
        except BaseException as error:
            process.end()
            if isinstance(error, _Ended):
                raise TemplateRefused(f"the chat template refused the messages: {error}") from error
            raise
        self._give_back(process)
        return text

    async def soon(self, work: Callable[[], str]) -> str:
        """What renders, without keeping the event loop or its threads."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def close(self) -> None:
        """End the processes."""
        self._finalizer()

    def _give_back(self, process: _Process) -> None:
        if self._finalizer.alive:
            self._idle.append(process)
        else:
            process.end()

    def _started(self) -> _Process:
        process = _Process()
        try:
            process.ask(marshal.dumps(self._source))
        except TemplateRefused as error:
            process.end()
            raise TemplateBroken(str(error)) from error
        except BaseException as error:
            process.end()
            if isinstance(error, _Ended):
                raise TemplateBroken(f"can't be compiled: {error}") from error
            raise
        return process


class _Ended(Exception):
    """A process was ended by its limits; says by which."""


class _Process:
    """One process of `anychip.text.template_process`."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair()
        self._socket.settimeout(MAX_SECONDS + GRACE_SECONDS)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "anychip.text.template_process"],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C in a terminal is for the server, which may still render
            )

    def ask(self, request: bytes) -> str:
        """The text that answers a request.

        Raises:
            TemplateRefused: the sandbox says no.
            _Ended: the process is gone, or doesn't answer.
        """
        try:
            send(self._socket, request)
            answer = receive(self._socket)
        except (OSError, ValueError) as error:
            raise _Ended(f"its process doesn't answer ({error or type(error).__name__})") from error
        if not answer:
            raise _Ended(self._why())
        text = answer[1:].decode("utf-8", "replace")
        if answer[:1] != b"+":
            raise TemplateRefused(text)
        return text

    def end(self) -> None:
        self._socket.close()
        self._process.kill()
        self._process.wait()

    def _why(self) -> str:
        try:
            code = self._process.wait(GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            return "its process doesn't answer"
        if code == -signal.SIGALRM:
            return f"it takes more than {MAX_SECONDS} seconds"
        return f"its process ended with code {code}, most likely for want of memory"


def _encoded(variables: Mapping[str, object]) -> bytes:
    try:
        request = marshal.dumps(dict(variables))
    except (ValueError, RecursionError) as error:
        raise TemplateRefused(f"what the chat template would be given is no plain data: {error}") from error
    if len(request) > MAX_FRAME_BYTES:
        raise TemplateRefused(f"the messages have {len(request):,} bytes, expected at most {MAX_FRAME_BYTES:,}")
    return request


def _end_all(processes: list[_Process]) -> None:
    while processes:
        processes.pop().end()


__all__ = ["MAX_RENDERINGS", "TemplateRenderer"]
