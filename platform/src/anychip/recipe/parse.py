"""Read YAML text into a tree that knows its lines. Knows YAML; knows no key of a recipe and opens no file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.reader import ReaderError

from anychip.recipe.errors import Problems
from anychip.recipe.nodes import Entry, Items, Node, Scalar, Table, children
from anychip.recipe.origins import Origin
from anychip.recipe.scalars import join_halves, resolve

_DEPTH = 24  # a recipe nests four deep
_NODES = 20_000  # counted with aliases written out, against files that explode

_SYNTAX = (
    (r"found character '\t'", "a tab; indent with spaces"),
    ("mapping values are not allowed", "a `:` that does not belong here; check the indentation, or quote the value"),
    ("expected <block end>", "the indentation does not match the lines above"),
    ("expected ',' or ']'", "a list in [brackets] is not closed, lacks a comma, or holds a ${VAR} without quotes"),
    ("expected ',' or '}'", "a mapping in {braces} is not closed, lacks a comma, or holds a ${VAR} without quotes"),
    ("unexpected end of stream", "a quote is not closed"),
    ("expected the node content", "a value is missing"),
    ("could not find expected ':'", "a key without a `:`"),
    ("found undefined alias", "an alias (*name) of an anchor that is not defined above"),
    ("cannot start any token", "a character that can't start a value; quote the value"),
    ("special characters are not allowed", "a control character"),
)


class _Refused(Exception):
    """Reading stops here."""

    def __init__(self, origin: Origin, message: str) -> None:
        super().__init__(message)
        self.origin = origin
        self.message = message


class _Builder:
    """Builds the tree from the parser's events, which are untyped."""

    def __init__(self, events: Iterator[Any], place: Callable[[Any], Origin], problems: Problems) -> None:
        self._events = events
        self._place = place
        self._problems = problems
        self._anchors: dict[str, tuple[Node, int]] = {}
        self._open: set[str] = set()
        self._count = 0
        self._path: list[str] = []

    def document(self) -> Node | None:
        """The only document's tree; None when there is none."""
        tree: Node | None = None
        for event in self._events:
            kind = type(event).__name__
            if kind == "DocumentStartEvent":
                if event.version not in {None, (1, 2)}:
                    raise _Refused(self._place(event), "a %YAML directive; recipes are YAML 1.2")
                if tree is not None:
                    raise _Refused(self._place(event), "a second document; a recipe is one document")
            elif kind not in {"StreamStartEvent", "StreamEndEvent", "DocumentEndEvent"}:
                tree = self._node(event, 0)
        return tree

    def _node(self, event: Any, depth: int) -> Node:
        kind, origin = type(event).__name__, self._place(event)
        if depth > _DEPTH:
            raise _Refused(origin, f"nested more than {_DEPTH} deep")
        if kind == "AliasEvent":
            return self._alias(event.anchor, origin)
        if event.tag is not None:
            raise _Refused(origin, "a tag (!...); recipes have none, quote what must stay text")
        before = self._count
        self._add(1, origin)
        if event.anchor is not None:
            self._open.add(event.anchor)
        node: Node
        if kind == "ScalarEvent":
            text, is_plain = self._text(event, origin), bool(event.implicit[0])
            node = Scalar(resolve(text) if is_plain else text, origin, text, is_plain)
        elif kind == "SequenceStartEvent":
            node = Items(tuple(self._node(e, depth + 1) for e in self._until("SequenceEndEvent")), origin)
        else:
            node = self._table(origin, depth)
        if event.anchor is not None:
            self._open.discard(event.anchor)
            self._anchors[event.anchor] = (node, self._count - before)
        return node

    def _text(self, event: Any, origin: Origin) -> str:
        try:
            return join_halves(event.value)
        except ValueError:
            message = "half a surrogate pair (\\ud800 to \\udfff), which is no Unicode text; write the character itself"
            raise _Refused(origin, message) from None

    def _until(self, end: str) -> Iterator[Any]:
        for event in self._events:
            if type(event).__name__ == end:
                return
            yield event

    def _add(self, count: int, origin: Origin) -> None:
        self._count += count
        if self._count > _NODES:
            raise _Refused(origin, f"more than {_NODES} values with its aliases written out")

    def _alias(self, name: str, origin: Origin) -> Node:
        if name in self._open:
            raise _Refused(origin, f"the alias *{name} stands inside what it names")
        if name not in self._anchors:
            raise _Refused(origin, f"the alias *{name} has no anchor &{name} above it")
        node, count = self._anchors[name]
        self._add(count, origin)
        return node

    def _table(self, origin: Origin, depth: int) -> Table:
        own: dict[str, Entry] = {}
        merged: dict[str, Entry] = {}
        merge_at: Origin | None = None
        for event in self._until("MappingEndEvent"):
            key = self._node(event, depth + 1)
            self._path.append(key.text if isinstance(key, Scalar) else "?")
            value = self._node(next(self._events), depth + 1)
            self._path.pop()
            if not isinstance(key, Scalar):
                self._problem(key.origin, "", "a list or mapping as a key; keys are words")
            elif key.is_plain and key.text == "<<":
                if merge_at is not None:
                    self._duplicate("<<", key.origin, merge_at)
                merge_at = key.origin
                merged = self._merge_key(value, key.origin)
            elif key.text in own:
                self._duplicate(key.text, key.origin, own[key.text].key_origin)
            else:
                own[key.text] = Entry(key.origin, value)
        return Table({**merged, **own}, origin)

    def _problem(self, origin: Origin, key: str, message: str) -> None:
        self._problems.add(origin, ".".join((*self._path, key) if key else self._path), message)

    def _duplicate(self, key: str, origin: Origin, first: Origin) -> None:
        self._problem(origin, key, f"duplicate key, already set on line {first.line}. Remove one of the two")

    def _merge_key(self, value: Node, origin: Origin) -> dict[str, Entry]:
        sources = [node for _, node in children(value)] if isinstance(value, Items) else [value]
        merged: dict[str, Entry] = {}
        for source in sources:
            if isinstance(source, Table):
                merged = {**source.entries, **merged}  # the first one wins
            else:
                self._problems.add(
                    origin,
                    ".".join((*self._path, "<<")),
                    "found no mapping, expected an alias of one or a list of those",
                )
        return merged


def parse(text: str, source: str, problems: Problems, origin: Origin | None = None, subject: str = "") -> Node | None:
    """The tree of a YAML text, or None when it is empty or its problems stopped the reading.

    Args:
        text: the YAML.
        source: the file's name in errors.
        problems: gets what is wrong.
        origin: where every value comes from when the text is not a file's.
        subject: the key that the text is the value of, for errors.
    """

    def place(event: Any) -> Origin:
        return origin or _at(source, event.start_mark)

    try:
        return _Builder(YAML(typ="safe", pure=True).parse(text), place, problems).document()
    except _Refused as refused:
        problems.add_fatal(refused.origin, refused.message, subject)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problems.add_fatal(origin or _at(source, mark), f"not valid YAML: {_explain(error)}", subject)
    except ReaderError as error:
        before = text[: error.position]
        at = Origin("file", source, before.count("\n") + 1, len(before) - before.rfind("\n"))
        problems.add_fatal(origin or at, f"not valid YAML: {_explain(error)}", subject)
    return None


def _at(source: str, mark: Any) -> Origin:
    return Origin("file", source, mark.line + 1, mark.column + 1) if mark else Origin("file", source, 1, 1)


def _explain(error: YAMLError) -> str:
    problem = str(error.problem) if isinstance(error, MarkedYAMLError) and error.problem else str(error)
    return next((words for part, words in _SYNTAX if part in problem), problem.splitlines()[0])


__all__ = ["parse"]
