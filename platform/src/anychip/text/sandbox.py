"""Compile and render one chat template in jinja2's sandbox, counting its work. Knows no checkpoint and no process.

Counting makes clear errors of the usual excesses; it can't bound what single calls of Python's take. Who renders
templates of strangers does it in a process that can be ended: `anychip.text.template_process`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

MAX_STEPS = 1_000_000  #: iterations of loops and calls of one rendering
MAX_CHARACTERS = 16_000_000  #: of the prompt, and of any text that is put together on the way
MAX_WORDS = 2000  #: characters of a template's own words that an error repeats

_TICK, _JOIN = "anychip_tick", "anychip_join"


class TemplateBroken(Exception):
    """The template itself is wrong."""


class TemplateRefused(Exception):
    """A rendering failed, or the template refused what it was given."""


class Sandbox:
    """One compiled template.

    Raises:
        TemplateBroken: it has a syntax error.
    """

    def __init__(self, source: str) -> None:
        self._environment = _Environment()
        try:
            tree = _Counted().visit(self._environment.parse(source))
            tree.set_environment(self._environment)
            self._template = self._environment.from_string(tree)
        except jinja2.TemplateSyntaxError as error:
            raise TemplateBroken(f"has a syntax error, line {error.lineno}: {_words(error)}") from error
        except Exception as error:  # constants are computed while it is compiled, and nested too deeply it fails
            raise TemplateBroken(f"can't be compiled: {_named(error)}") from error

    def render(self, variables: Mapping[str, object]) -> str:
        """The text.

        Raises:
            TemplateRefused: with the template's own words, or what it exceeds.
        """
        budget = self._environment.budget = _Budget()
        ours = {_TICK: budget.tick, _JOIN: budget.join}
        try:
            prompt = budget.collect(self._template.generate({**variables, **ours}))
            prompt.encode("utf-8")
        except jinja2.TemplateError as error:
            raise TemplateRefused(f"the chat template refused the messages: {_words(error)}") from error
        except UnicodeEncodeError as error:
            raise TemplateRefused("messages hold half a surrogate pair, no Unicode text") from error
        except MemoryError as error:
            raise TemplateRefused("the chat template refused the messages: it needs too much memory") from error
        except Exception as error:  # a template that adds a text to None raises whatever Python raises
            raise TemplateRefused(f"the chat template failed on these messages: {_named(error)}") from error
        return prompt


def _words(error: jinja2.TemplateError) -> str:
    text = error.message or ""
    return text if len(text) <= MAX_WORDS else f"{text[:MAX_WORDS]}..."


def _named(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:MAX_WORDS]


class _Budget:
    """What one rendering may still do."""

    def __init__(self) -> None:
        self._steps = 0

    def tick(self) -> bool:
        """Count an iteration of any loop, or a call; always true, so that it can stand before a loop's condition."""
        self._steps += 1
        if self._steps > MAX_STEPS:
            raise jinja2.TemplateRuntimeError(f"it loops and calls more than {MAX_STEPS:,} times")
        return True

    def join(self, *parts: object) -> str:
        """The `~` of templates."""
        text = "".join(map(str, parts))
        _check_length(len(text))
        return text

    def collect(self, pieces: Iterable[str]) -> str:
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


class _Counted(NodeTransformer):
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

    intercepted_binops = frozenset(("+", "*", "**", "%"))

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _GenerationTag])
        self.budget = _Budget()
        self.filters["tojson"] = _to_json
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now
        self.globals.pop("lipsum")  # makes text of any length

    def call(self, context: jinja2.runtime.Context, called: Any, /, *args: Any, **kwargs: Any) -> Any:
        self.budget.tick()
        return super().call(context, called, *args, **kwargs)

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
    raise jinja2.TemplateError(str(message))


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


__all__ = ["MAX_CHARACTERS", "MAX_STEPS", "Sandbox", "TemplateBroken", "TemplateRefused"]
