"""Judge a merged tree by the schema and word what is wrong with it. Knows keys and lines; knows no files."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from anychip.recipe.errors import Problems, closest
from anychip.recipe.keys import Key, all_keys, below, key_at, pattern
from anychip.recipe.nodes import Items, Node, Path, Scalar, Table, dotted, find, nearest, remove
from anychip.recipe.schema import Recipe

_SHOWN_CHARACTERS = 60
# What stands in for a required value that is missing or wrong, so that conflicts between the others are found too.
_PLACEHOLDERS: dict[str, object] = {"version": 1, "name": "unnamed", "model": {"source": "/"}}
# What other systems call it.
_ALIASES = {
    "mem_fraction_static": "memory.static_fraction",
    "memory_fraction": "memory.static_fraction",
    "memory_utilization": "memory.static_fraction",
    "block_size": "memory.page_size",
    "kv_cache_dtype": "memory.kv_dtype",
    "max_total_tokens": "memory.kv_tokens",
    "max_model_len": "model.context_length",
    "max_context": "model.context_length",
    "enable_thinking": "model.thinking",
    "max_num_seqs": "scheduler.max_running_requests",
    "max_num_batched_tokens": "scheduler.chunked_prefill_size",
    "enable_prefix_caching": "scheduler.prefix_cache",
    "schedule_policy": "scheduler.policy",
    "served_model_name": "server.served_name",
    "allow_origins": "server.cors",
    "allowed_origins": "server.cors",
    "cors_origins": "server.cors",
    "ssl_certfile": "server.tls.certificate",
    "ssl_keyfile": "server.tls.key",
}


class _Fault(NamedTuple):
    """One of pydantic's errors, at the node that it speaks of."""

    path: Path
    kind: str
    text: str


def check(tree: Node, broken: Sequence[Path], problems: Problems) -> Recipe | None:
    """The recipe that a tree means, or None with everything that is wrong in `problems`.

    Args:
        tree: merged, interpolated, without nulls.
        broken: values that are known to be wrong already and get no further problem.
        problems: gets what is wrong.
    """
    for path in broken:
        tree = remove(tree, _prunable(path))
    pruned = [_prunable(path) for path in broken]
    try:
        return Recipe.model_validate(to_plain(tree))
    except ValidationError as error:
        details = error.errors(include_url=False)
    faults = _faults(tree, [detail for detail in details if detail["type"] != "conflicts"])
    for fault in faults:
        if not any(path[: len(fault.path)] == fault.path for path in pruned):
            _report(tree, fault, problems)
    pruned += [_prunable(fault.path) for fault in faults]
    _report_conflicts(tree, pruned, problems)
    return None


def to_plain(node: Node, path: Path = ()) -> object:
    """The tree as dicts, lists and values. A value from a variable stays text where its key holds text only."""
    if isinstance(node, Table):
        return {key: to_plain(entry.node, (*path, key)) for key, entry in node.entries.items()}
    if isinstance(node, Items):
        return [to_plain(item, (*path, index)) for index, item in enumerate(node.items)]
    is_written_in_file = node.origin.kind == "file" and not node.origin.variables
    if not is_written_in_file and not isinstance(node.value, str) and node.value is not None:
        key = key_at(path)
        return node.text if key is not None and key.is_text else node.value
    return node.value


def _prunable(path: Path) -> Path:
    """The path up to its first list, since an entry can't be taken out of a list without renumbering it."""
    index = next((i for i, part in enumerate(path) if isinstance(part, int)), len(path))
    return path[:index]


def _faults(tree: Node, details: Iterable[ErrorDetails]) -> list[_Fault]:
    """One fault per place; alternatives of one type count as one, and the deepest one is meant."""
    faults: dict[Path, _Fault] = {}
    for detail in details:
        path = _locate(tree, detail)
        text = str(detail["ctx"]["error"]) if detail["type"] == "value_error" else ""
        if path not in faults or text:
            faults[path] = _Fault(path, detail["type"], text)
    return [
        fault
        for path, fault in faults.items()
        if fault.text or not any(len(other) > len(path) and other[: len(path)] == path for other in faults)
    ]


def _locate(tree: Node, detail: ErrorDetails) -> Path:
    """The path that an error speaks of, without the names of alternatives that pydantic puts into it."""
    path: Path = ()
    node: Node | None = tree
    for part in detail["loc"]:
        below_here = find(node, (part,)) if node is not None else None
        if below_here is not None:
            node, path = below_here, (*path, part)
        elif detail["type"] == "missing" and part == detail["loc"][-1]:
            path = (*path, part)
    return path


def _report(tree: Node, fault: _Fault, problems: Problems) -> None:
    node, path = nearest(tree, fault.path), fault.path
    if fault.kind == "missing":
        key = key_at(path)
        needed = f", expected {key.expected}" if key is not None and not key.is_section else ""
        problems.add(node.origin, dotted(path), f"missing{needed}")
    elif fault.kind == "extra_forbidden":
        parent = find(tree, path[:-1])
        origin = parent.entries[str(path[-1])].key_origin if isinstance(parent, Table) else node.origin
        problems.add(origin, dotted(path), unknown_key(path))
    elif not path:
        problems.add(
            node.origin, "", f"found {found(node)}, expected a mapping of keys such as version, name and model"
        )
    else:
        problems.add(node.origin, dotted(path), _wrong_value(node, fault))


def unknown_key(path: Path) -> str:
    """What to say of a key that the schema does not have."""
    word, section = str(path[-1]), pattern(path[:-1])
    siblings = [key.name for key in below(section)]
    plain = word.lower().replace("-", "_")
    elsewhere = [key for key in all_keys().values() if key.name == plain and "[]" not in key.path]
    if plain not in siblings and elsewhere:
        homes = " or ".join(key.section or "the top level" for key in elsewhere)
        return f"unknown key here. {plain} belongs to {homes}"
    meant = plain if plain in siblings else _ALIASES.get(plain) or closest(word, siblings) or _closest_anywhere(word)
    if meant is not None:
        return f"unknown key. Did you mean {meant}?"
    return f"unknown key, expected one of {', '.join(siblings)}" if siblings else "unknown key"


def _closest_anywhere(word: str) -> str | None:
    paths = {key.name: key.path for key in all_keys().values() if key.section and "[]" not in key.path}
    meant = closest(word, paths)
    return None if meant is None else paths[meant]


def _wrong_value(node: Node, fault: _Fault) -> str:
    key = key_at(fault.path)
    if key is None:
        return fault.text or "not understood"
    if key.is_secret:
        # the value may be the secret itself, so it is not shown
        return fault.text or f"expected {key.expected}; a recipe holds no secret itself"
    via = f" (from {', '.join('$' + v for v in node.origin.variables)})" if node.origin.variables else ""
    if fault.text:
        return fault.text + via
    return f"found {found(node)}{via}, expected {key.expected}{_advice(node, key)}"


def found(node: Node) -> str:
    """A node in words; text is cut short."""
    if isinstance(node, Table):
        return "a mapping"
    if isinstance(node, Items):
        return "a list"
    if isinstance(node.value, str):
        text = node.value if len(node.value) <= _SHOWN_CHARACTERS else node.value[:_SHOWN_CHARACTERS] + "..."
        return f"text {text!r}"
    return node.text if node.text else "null"


def _advice(node: Node, key: Key) -> str:
    if not isinstance(node, Scalar):
        return ""
    text = node.text
    if isinstance(node.value, str):
        return _advice_on_text(text, key)
    if key.is_text and isinstance(node.value, bool) and key.allowed:
        meant = closest("on" if node.value else "off", key.allowed)
        return f". Did you mean {meant}?" if meant else ""
    if key.is_text and not key.allowed and "duration" not in key.expected:
        return f'. Put it in quotes: "{text}"'
    if isinstance(node.value, float) and node.value.is_integer() and "whole number" in key.expected:
        return f". Write {int(node.value)}"
    return ""


def _advice_on_text(text: str, key: Key) -> str:
    words = {"yes": "true", "on": "true", "no": "false", "off": "false"} if key.is_bool else {}
    meant = words.get(text.lower()) or closest(text, (*key.allowed, *(("true", "false") if key.is_bool else ())))
    if meant is not None:
        return f". Did you mean {meant}?"
    if "number" not in key.expected or not re.fullmatch(r"[-+]?[0-9_,]*\.?[0-9]+", text):
        return ""
    digits = re.sub(r"[_,]", "", text)
    if digits != text:
        return f". Write {digits}"
    return ". Remove the leading zero" if re.match(r"[-+]?0[0-9]", text) else ". Remove the quotes"


def _report_conflicts(tree: Node, pruned: Sequence[Path], problems: Problems) -> None:
    kept = tree
    for path in pruned:
        if not path:
            return
        kept = remove(kept, path)
    plain = to_plain(kept)
    assert isinstance(plain, dict)
    model = plain.get("model")
    stand_in = {**_PLACEHOLDERS, **plain, "model": {"source": "/", **(model if isinstance(model, dict) else {})}}
    try:
        Recipe.model_validate(stand_in)
    except ValidationError as error:
        for detail in error.errors(include_url=False):
            for conflict in detail.get("ctx", {}).get("conflicts", ()):
                if not any(_prunable(path) in pruned for path in (conflict.path, *conflict.others)):
                    problems.add(nearest(tree, conflict.path).origin, dotted(conflict.path), conflict.message)


__all__ = ["check", "found", "to_plain", "unknown_key"]
