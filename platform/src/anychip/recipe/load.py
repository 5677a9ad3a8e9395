"""Load a recipe: file over base, environment over file, `--set` over all. Knows the order, and no step's work."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from anychip.recipe.check import check
from anychip.recipe.errors import Problems
from anychip.recipe.files import read_tree
from anychip.recipe.interpolate import interpolate_tree
from anychip.recipe.keys import all_keys
from anychip.recipe.merge import drop_ignored, drop_nulls, merge, resets
from anychip.recipe.nodes import Entry, Node, Path, Scalar, Table, children, dotted, find
from anychip.recipe.origins import DEFAULT, Origin
from anychip.recipe.overrides import environment_tree, sets_tree
from anychip.recipe.schema import Recipe

#: Keys that hold a path; written relative, they are made absolute by the file that says them.
_PATHS: tuple[Path, ...] = (
    ("model", "source"),
    ("backend", "plugin_path"),
    ("server", "api_key", "file"),
    ("server", "tls", "certificate"),
    ("server", "tls", "key"),
)
#: Those that may hold something else, so that a path in them begins like one.
_PATHS_OR_NAMES = _PATHS[:2]


@dataclass(frozen=True)
class LoadedRecipe:
    """A recipe and where it came from.

    Attributes:
        recipe: what was said, checked.
        origins: for every key that holds a value, e.g. `server.port`, where the value was written.
        resolved: the whole recipe with its defaults, as plain JSON values; loading it again gives the same recipe.
        path: the file, as it was named.
    """

    recipe: Recipe
    origins: Mapping[str, Origin]
    resolved: dict[str, object]
    path: str


def load(path: str | os.PathLike[str], sets: Sequence[str] = (), env: Mapping[str, str] | None = None) -> LoadedRecipe:
    """Load and check a recipe.

    Args:
        path: the file.
        sets: assignments such as `server.port=8001`, which win over everything else.
        env: the environment, for `${VAR}` and for `ANYCHIP_SET__server__port`. None: the process's own.

    Raises:
        RecipeInvalid: with everything that is wrong, each problem with its place.
        UsageError: an entry of `sets` is no assignment.
    """
    variables = os.environ if env is None else env
    problems = Problems()
    name = os.fspath(path)
    tree = read_tree(name, problems)
    if tree is None or problems.is_fatal:
        raise problems.error()
    return _loaded(tree, sets, variables, problems, name)


def load_sets(sets: Sequence[str], env: Mapping[str, str] | None = None) -> LoadedRecipe:
    """`load` without a file: the recipe that assignments make.

    Raises:
        RecipeInvalid, UsageError: as `load` does.
    """
    where = Origin("set", "--set")
    return _loaded(Table({}, where), sets, os.environ if env is None else env, Problems(), where.source)


def _loaded(
    tree: Node, sets: Sequence[str], variables: Mapping[str, str], problems: Problems, name: str
) -> LoadedRecipe:
    for layer in (environment_tree(variables, problems), sets_tree(sets, problems)):
        tree = merge(tree, layer)
    tree, broken = interpolate_tree(drop_ignored(tree), variables, problems)
    reset = dict(resets(tree))
    tree = _with_absolute_paths(drop_nulls(tree))
    _require_text(tree, (), problems)
    recipe = check(tree, broken, problems)
    if recipe is None or len(problems):
        raise problems.error()
    return LoadedRecipe(recipe, _origins(tree, reset), recipe.model_dump(mode="json"), name)


def recipe_digest(loaded: LoadedRecipe) -> str:
    """The SHA-256 of everything that the recipe says, defaults included, in hex; comments and layout don't count."""
    said = loaded.recipe.model_dump(mode="python")  # durations in seconds, so that 500ms is 0.5s
    text = json.dumps(said, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _with_absolute_paths(tree: Node) -> Node:
    """The tree with relative paths made absolute by the file that says them, or by the current folder."""
    for path in _PATHS:
        found = find(tree, path)
        if not isinstance(found, Scalar) or not isinstance(found.value, str) or not found.value:
            continue
        if path in _PATHS_OR_NAMES and not found.value.startswith(("./", "../", "~")):
            continue
        folder = os.path.dirname(found.origin.source) if found.origin.kind == "file" else "."
        text = found.value
        expanded = os.path.expanduser(text) if text.startswith("~") else os.path.join(folder, text)
        tree = _replace(tree, path, Scalar(os.path.abspath(expanded), found.origin, text, found.is_plain))
    return tree


def _require_text(tree: Node, path: Path, problems: Problems) -> None:
    """Refuse what Python reads of variables, command lines and folders' names in another encoding."""
    for part, node in children(tree):
        _require_text(node, (*path, part), problems)
    if isinstance(tree, Scalar) and isinstance(tree.value, str):
        try:
            tree.value.encode()
        except UnicodeEncodeError:
            shown = tree.value.encode(errors="backslashreplace").decode()
            problems.add(tree.origin, dotted(path), f"'{shown}' is not UTF-8. Write or rename it in UTF-8")


def _replace(tree: Node, path: Iterable[str | int], node: Node) -> Node:
    first, *rest = path
    assert isinstance(tree, Table)
    entry = tree.entries[str(first)]
    below = _replace(entry.node, rest, node) if rest else node
    return Table({**tree.entries, str(first): Entry(entry.key_origin, below)}, tree.origin, tree.resets)


def _origins(tree: Node, reset: Mapping[Path, Origin]) -> Mapping[str, Origin]:
    nulls = {dotted(path): origin.reset() for path, origin in reset.items()}
    origins: dict[str, Origin] = {}
    for key in all_keys().values():
        if key.is_section or "[]" in key.path or (key.is_secret and key.section.endswith("api_key")):
            continue
        node = find(tree, tuple(key.path.split(".")))
        above = next((nulls[p] for p in _prefixes(key.path) if p in nulls), DEFAULT)
        origins[key.path] = above if node is None else node.origin
    return origins


def _prefixes(path: str) -> Iterable[str]:
    parts = path.split(".")
    return (".".join(parts[:length]) for length in range(len(parts), 0, -1))


__all__ = ["LoadedRecipe", "load", "load_sets", "recipe_digest"]
