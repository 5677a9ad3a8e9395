"""`platform recipe show|explain`: what a recipe comes to, and what a key means. Knows no rule of recipes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from anychip.cli.output import Output, OutputOption, SetOption, emit, emit_raw, table
from anychip_sdk.errors import UsageError

if TYPE_CHECKING:
    from anychip.recipe import LoadedRecipe
    from anychip.recipe.keys import Key

recipe_app = typer.Typer(help="Look into a recipe.", no_args_is_help=True)


@recipe_app.command()
def show(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help="The file.")],
    resolved: Annotated[bool, typer.Option("--resolved", help="The whole recipe with its defaults.")] = False,
    origins: Annotated[bool, typer.Option("--origins", help="Each value with the place that it came from.")] = False,
    sets: SetOption = None,
    output: OutputOption = Output.text,
) -> None:
    """Print what a recipe comes to after extends, variables, environment and --set."""
    from anychip.recipe import load, recipe_digest

    if resolved and origins:
        raise UsageError("--resolved and --origins exclude each other")
    loaded = load(recipe, sets=tuple(sets or ()))
    if origins:
        rows = [(path, _shown(value), str(loaded.origins[path])) for path, value in _leaves(loaded)]
        data = [{"key": path, "value": value, "origin": str(loaded.origins[path])} for path, value in _leaves(loaded)]
        emit({"origins": data}, output, text=table(("KEY", "VALUE", "FROM"), rows))
    elif output is Output.json:
        emit({"path": loaded.path, "digest": recipe_digest(loaded), "recipe": loaded.resolved}, output)
    else:
        emit_raw(_yaml(loaded.resolved))


@recipe_app.command()
def explain(
    key: Annotated[str, typer.Argument(metavar="KEY", help="e.g. memory.static_fraction, or a section.")],
    output: OutputOption = Output.text,
) -> None:
    """Print what a key means, what it accepts, its unit and its default."""
    from anychip.recipe.keys import below

    found = _key(key)
    data: dict[str, object] = {"key": found.path, "accepts": found.expected, "description": found.description}
    if not found.is_section:
        data["default"] = "required" if found.default is None else found.default
    if found.unit is not None:
        data["unit"] = found.unit
    if found.allowed:
        data["allowed"] = list(found.allowed)
    inside = [child.path for child in below(found.path) or below(f"{found.path}[]")]
    if inside:
        data["keys"] = inside
    rows = [(name, ", ".join(value) if isinstance(value, list) else str(value)) for name, value in data.items()]
    emit(data, output, text=table(None, rows))


def _key(name: str) -> Key:
    from anychip.recipe.errors import closest
    from anychip.recipe.keys import all_keys

    keys = all_keys()
    if name in keys:
        return keys[name]
    same_name = [key.path for key in keys.values() if key.name == name.rpartition(".")[2]]
    meant = same_name[0] if same_name else closest(name, keys)
    raise UsageError(
        f"{name}: no such key", hint=f"did you mean {meant}?" if meant else "platform schema lists all of them"
    )


def _leaves(loaded: LoadedRecipe) -> list[tuple[str, object]]:
    values: list[tuple[str, object]] = []
    for path in loaded.origins:
        value: Any = loaded.resolved
        for part in path.split("."):
            value = None if value is None else value[part]  # a section that is null has no keys
        values.append((path, value))
    return values


def _shown(value: object) -> str:
    """A value on one line, as YAML."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, list):
        return "[" + ", ".join(map(_shown, value)) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_shown(item)}" for key, item in value.items() if item is not None) + "}"
    return str(value)


def _yaml(resolved: dict[str, object]) -> str:
    """The recipe as a file that loads to the same recipe."""
    from io import StringIO

    from ruamel.yaml import YAML

    stream = StringIO()
    writer = YAML(typ="safe", pure=True)
    writer.default_flow_style = False
    writer.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    writer.dump(_escaped(resolved), stream)
    return stream.getvalue()


def _escaped(value: object) -> object:
    """Values with `$` doubled, since it would start a variable."""
    if isinstance(value, dict):
        return {key: _escaped(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_escaped(item) for item in value]
    return value.replace("$", "$$") if isinstance(value, str) else value


def register(app: typer.Typer) -> None:
    app.add_typer(recipe_app, name="recipe")


__all__ = ["explain", "recipe_app", "register", "show"]
