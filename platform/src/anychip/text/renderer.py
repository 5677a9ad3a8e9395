"""Render a chat template in processes that can be ended. Knows what is asked of them; knows no messages.

A template comes from strangers, and no thread can be ended from outside. So each rendering runs in a process with
limits of its own.
"""

from __future__ import annotations

import asyncio
import marshal
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

from anychip.text.frames import MAX_FRAME_BYTES
from anychip.text.helper import Helper, HelperEnded, Helpers
from anychip.text.sandbox import TemplateBroken, TemplateRefused
from anychip.text.template_process import MAX_SECONDS

MAX_RENDERINGS = 4  #: at a time, of those that a server asks for; others wait


class TemplateRenderer:
    """One template and its processes. May be used by several threads; processes end with the last reference.

    Raises:
        TemplateBroken: a syntax error, or compiling exceeds the limits.
    """

    def __init__(self, source: str) -> None:
        self._helpers = Helpers(lambda: _started(source))
        self._helpers.warm()
        self._threads = ThreadPoolExecutor(MAX_RENDERINGS, "template")

    def render(self, variables: Mapping[str, object]) -> str:
        """The text; blocks for up to MAX_SECONDS.

        Raises:
            TemplateRefused: with the template's own words, or what it exceeds.
        """
        request = _encoded(variables)
        try:
            with self._helpers.one() as helper:
                answer = helper.ask(request)
        except HelperEnded as error:
            raise TemplateRefused(f"the chat template refused the messages: {error}") from error
        return _text(answer)

    async def soon(self, work: Callable[[], str]) -> str:
        """What renders, without keeping the event loop or its threads."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def close(self) -> None:
        """End the processes."""
        self._helpers.close()


def _started(source: str) -> Helper:
    """A process that has compiled the template."""
    helper = Helper("anychip.text.template_process", MAX_SECONDS)
    try:
        _text(helper.ask(marshal.dumps(source)))
    except TemplateRefused as error:
        helper.end()
        raise TemplateBroken(str(error)) from error
    except BaseException as error:
        helper.end()
        if isinstance(error, HelperEnded):
            raise TemplateBroken(f"can't be compiled: {error}") from error
        raise
    return helper


def _text(answer: bytes) -> str:
    text = answer[1:].decode("utf-8", "replace")
    if answer[:1] != b"+":
        raise TemplateRefused(text)
    return text


def _encoded(variables: Mapping[str, object]) -> bytes:
    try:
        request = marshal.dumps(dict(variables))
    except (ValueError, RecursionError) as error:
        raise TemplateRefused(f"what the chat template would be given is no plain data: {error}") from error
    if len(request) > MAX_FRAME_BYTES:
        raise TemplateRefused(f"the messages have {len(request):,} bytes, expected at most {MAX_FRAME_BYTES:,}")
    return request


__all__ = ["MAX_RENDERINGS", "TemplateRenderer"]
