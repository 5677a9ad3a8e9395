"""Render a conversation into a prompt as the model's own template says. Knows messages; knows no token ids.

Templates come with checkpoints, and their inputs with requests, so both run in a sandbox with bounded work: what
a template may loop, multiply and write is counted, since a thread that hangs can't be ended from outside.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from time import monotonic
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from anychip.text.messages_text import plain_messages
from anychip.weights.checkpoint import Checkpoint
from anychip.weights.template import template_source
from anychip_sdk.errors import CheckpointInvalid, RequestInvalid

MAX_LOOPS = 1_000_000  # iterations of all loops of one rendering
MAX_SECONDS = 10.0  # for templates whose loops are few but slow
MAX_CHARACTERS = 16_000_000  # of the prompt, and of any text that is put together on the way

_TICK, _JOIN = "anychip_tick", "anychip_join"


class ChatTemplate:
    """One compiled template.

    `special_tokens` (bos_token, eos_token ...) are variables that templates may use.
    """

    def __init__(self, source: str, special_tokens: Mapping[str, str], where: str = "chat template") -> None:
        self.source = source
        self._special_tokens = dict(special_tokens)
        environment = _Environment()
        try:
            tree = _Bounded().visit(environment.parse(source))
            tree.set_environment(environment)
            self._template = environment.from_string(tree)
        except (jinja2.TemplateSyntaxError, RecursionError) as error:
            line = f", line {error.lineno}" if isinstance(error, jinja2.TemplateSyntaxError) else ""
            raise CheckpointInvalid(f"{where}: the chat template has a syntax error{line}: {error}") from error

    @classmethod
    def from_checkpoint(cls, checkpoint: Checkpoint, special_tokens: Mapping[str, str]) -> ChatTemplate | None:
        """The checkpoint's template, None where it has none (completions still work then)."""
        source = template_source(checkpoint)
        return None if source is None else cls(source, special_tokens, f"checkpoint {checkpoint.path}")

    def render(
        self, messages: Sequence[Mapping[str, object]], /, *, add_generation_prompt: bool = True, **variables: object
    ) -> str:
        """The prompt of a conversation.

        `variables` go to the template (tools, documents, enable_thinking ...). Content that is a list of text
        parts is joined with newlines first.

        Raises:
            RequestInvalid: the messages are malformed, or the template refuses them; with its own words.
        """
        budget = _Budget()
        try:
            prompt = budget.collect(
                self._template.generate(
                    {
                        "tools": None,
                        "documents": None,
                        **self._special_tokens,
                        **variables,
                        "messages": plain_messages(messages),
                        "add_generation_prompt": add_generation_prompt,
                        _TICK: budget.tick,
                        _JOIN: budget.join,
                    }
                )
            )
            prompt.encode("utf-8")
        except jinja2.TemplateError as error:
            raise RequestInvalid(f"the chat template refused the messages: {error}", param="messages") from error
        except UnicodeEncodeError as error:
            raise RequestInvalid("messages hold half a surrogate pair, no Unicode text", param="messages") from error
        except (
            ArithmeticError,
            AttributeError,
            LookupError,
            MemoryError,
            RuntimeError,
            TypeError,
            ValueError,
        ) as error:
            # a template that adds a text to None raises whatever Python raises
            raise RequestInvalid(
                f"the chat template failed on these messages: {type(error).__name__}: {error}", param="messages"
            ) from error
        return prompt


class _Budget:
    """What one rendering may still do."""

    def __init__(self) -> None:
        self._loops = 0
        self._deadline_s = monotonic() + MAX_SECONDS

    def tick(self) -> bool:
        """Count one iteration of any loop; always true, so that it can stand before a loop's condition."""
        self._loops += 1
        if self._loops > MAX_LOOPS:
            raise jinja2.TemplateRuntimeError(f"it loops more than {MAX_LOOPS:,} times")
        if monotonic() > self._deadline_s:
            raise jinja2.TemplateRuntimeError(f"it takes more than {MAX_SECONDS:g} seconds")
        return True

    def join(self, *parts: object) -> str:
        """The `~` of templates."""
        text = "".join(map(str, parts))
        _check_length(len(text))
        return text

    def collect(self, pieces: Any) -> str:
        found: list[str] = []
        characters = 0
        for piece in pieces:
            characters += len(piece)
            if characters > MAX_CHARACTERS:
                raise jinja2.TemplateRuntimeError(f"it writes more than {MAX_CHARACTERS:,} characters")
            found.append(piece)
        return "".join(found)


def _check_length(length: int) -> None:
    if length > MAX_CHARACTERS:
        raise jinja2.TemplateRuntimeError(f"it makes a text of more than {MAX_CHARACTERS:,} characters")


class _Bounded(NodeTransformer):
    """Puts a count into every loop's body and makes every `~` a checked call."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        node.body.insert(0, nodes.ExprStmt(_call(_TICK, [], node.lineno), lineno=node.lineno))
        if node.test is not None:
            node.test = nodes.And(_call(_TICK, [], node.lineno), node.test, lineno=node.lineno)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _call(_JOIN, node.nodes, node.lineno)


def _call(name: str, arguments: list[nodes.Expr], lineno: int) -> nodes.Call:
    return nodes.Call(nodes.Name(name, "load", lineno=lineno), arguments, [], None, None, lineno=lineno)


class _GenerationTag(Extension):
    """`{% generation %}` marks what a model wrote, for training; here it only holds its body."""

    tags = {"generation"}  # noqa: RUF012 - jinja2's interface

    def parse(self, parser: Parser) -> nodes.Node:
        lineno = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=lineno)


class _Environment(ImmutableSandboxedEnvironment):
    """The environment that templates are written for: transformers' settings, filters and functions."""

    intercepted_binops = frozenset(("+", "*", "**"))

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _GenerationTag])
        self.filters["tojson"] = _to_json
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now
        self.globals.pop("lipsum")  # makes text of any length

    def call_binop(self, context: jinja2.runtime.Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "**" and abs(right) > 64:
            raise jinja2.TemplateRuntimeError("it raises a number to a power above 64")
        if operator == "*":
            for text, times in ((left, right), (right, left)):
                if isinstance(text, (str, list, tuple)) and isinstance(times, int):
                    _check_length(len(text) * times)
        result = super().call_binop(context, operator, left, right)
        if isinstance(result, (str, list, tuple)):
            _check_length(len(result))
        return result


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Unlike jinja2's own filter, this escapes neither HTML nor anything beyond ASCII."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


__all__ = ["ChatTemplate"]
