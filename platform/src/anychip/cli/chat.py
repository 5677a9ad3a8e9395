"""`platform chat`: talk to a service in the terminal. Knows how a conversation is shown; keeps it in memory only."""

from __future__ import annotations

import sys
from contextlib import closing
from typing import TYPE_CHECKING, Annotated

import typer

from anychip.cli.names import NameArgument
from anychip.cli.output import fail, result_console
from anychip_sdk.errors import AnychipError

if TYPE_CHECKING:
    from collections.abc import Callable

    from anychip.deploy.client import ServiceClient

_HELP = "/reset forgets the conversation, /quit ends; Ctrl-C cancels an answer, Ctrl-D ends."


def chat(
    name: NameArgument = None,
    message: Annotated[
        str | None, typer.Option("--message", "-m", metavar="TEXT", help="Say this, print the answer and end.")
    ] = None,
    system: Annotated[str | None, typer.Option("--system", metavar="TEXT", help="The system message.")] = None,
    max_tokens: Annotated[
        int | None, typer.Option("--max-tokens", metavar="N", min=1, help="The most tokens of an answer.")
    ] = None,
) -> None:
    """Chat with a service; what it thinks before it answers is shown dimmed."""
    from anychip.deploy.services import pick, require_living
    from anychip.deploy.state import Store
    from anychip.deploy.status import connect
    from anychip_sdk.home import home

    store = Store(home())
    state = require_living(store, pick(store, name))
    with connect(store, state) as client:
        conversation = Conversation(client, state.model, system, max_tokens)
        if message is not None:
            conversation.say(message)
        else:
            emulated = f", {state.backend} EMULATED" if state.emulated else ""
            fail(f"{state.model} on {client.url}{emulated}. {_HELP}")
            _talk(conversation, _reader())


class Conversation:
    """What was said, and the next answer."""

    def __init__(self, client: ServiceClient, model: str, system: str | None, max_tokens: int | None) -> None:
        self._client = client
        self._model = model
        self._opening = [] if system is None else [{"role": "system", "content": system}]
        self._max_tokens = max_tokens
        self.messages: list[dict[str, str]] = list(self._opening)

    def reset(self) -> None:
        self.messages = list(self._opening)

    def say(self, text: str) -> None:
        """Show the answer as it comes. One that is cancelled or breaks is forgotten together with its question."""
        messages = [*self.messages, {"role": "user", "content": text}]
        console, content, thinks = result_console(), "", False
        with closing(self._client.chat(self._model, messages, self._max_tokens)) as deltas:
            for delta in deltas:
                if delta.reasoning:
                    console.print(delta.reasoning, end="", style="dim", markup=False, highlight=False, soft_wrap=True)
                    thinks = True
                if delta.content:
                    if thinks:
                        console.print()
                        thinks = False
                    console.print(delta.content, end="", markup=False, highlight=False, soft_wrap=True)
                    content += delta.content
                console.file.flush()
        console.print()
        self.messages = [*messages, {"role": "assistant", "content": content}]


def _talk(conversation: Conversation, read: Callable[[], str]) -> None:
    while True:
        try:
            text = read().strip()
        except EOFError:
            return
        except KeyboardInterrupt:  # an unfinished line is dropped
            fail("")
            continue
        if text == "/quit":
            return
        if text == "/reset":
            conversation.reset()
            fail("forgotten")
        elif text.startswith("/"):
            fail(_HELP)
        elif text:
            _answer(conversation, text)


def _answer(conversation: Conversation, text: str) -> None:
    try:
        conversation.say(text)
    except KeyboardInterrupt:
        fail("\ncancelled")
    except AnychipError as error:
        fail(f"\n{error}")


def _reader() -> Callable[[], str]:
    """Lines with history and editing on a terminal, plain lines from a pipe."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return _read_plain
    import readline  # noqa: F401  # input() edits and remembers lines once it is imported

    return lambda: input("> ")


def _read_plain() -> str:
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    return line


def register(app: typer.Typer) -> None:
    app.command()(chat)


__all__ = ["Conversation", "chat", "register"]
