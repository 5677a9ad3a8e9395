"""Find keys of a recipe that are right alone and wrong together. Knows no files and no lines."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from anychip.recipe.nodes import Path

if TYPE_CHECKING:
    from anychip.recipe.schema import Recipe


class Conflict(NamedTuple):
    """`path` is where it is reported; `others` are the keys that it clashes with."""

    path: Path
    others: tuple[Path, ...]
    message: str


def context_fits_the_pool(recipe: Recipe) -> Iterator[Conflict]:
    context, tokens = recipe.model.context_length, recipe.memory.kv_tokens
    if context is not None and tokens != "auto" and context > tokens:
        yield Conflict(
            ("model", "context_length"),
            (("memory", "kv_tokens"),),
            f"{context} tokens do not fit into memory.kv_tokens ({tokens}). Lower it, or raise memory.kv_tokens",
        )


def pool_holds_a_page(recipe: Recipe) -> Iterator[Conflict]:
    page, tokens = recipe.memory.page_size, recipe.memory.kv_tokens
    if page != "auto" and tokens != "auto" and page > tokens:
        yield Conflict(
            ("memory", "page_size"),
            (("memory", "kv_tokens"),),
            f"a page of {page} tokens is larger than the whole pool, memory.kv_tokens ({tokens})",
        )


def each_running_request_has_a_token(recipe: Recipe) -> Iterator[Conflict]:
    running, tokens = recipe.scheduler.max_running_requests, recipe.memory.kv_tokens
    if running != "auto" and tokens != "auto" and running > tokens:
        yield Conflict(
            ("scheduler", "max_running_requests"),
            (("memory", "kv_tokens"),),
            f"{running} requests can't run in a pool of {tokens} tokens, memory.kv_tokens",
        )


def versions_belong_to_a_named_backend(recipe: Recipe) -> Iterator[Conflict]:
    if recipe.backend.name != "auto":
        return
    for key in ("driver", "plugin"):
        if getattr(recipe.backend.requires, key) is not None:
            yield Conflict(
                ("backend", "requires", key),
                (("backend", "name"),),
                "versions differ from backend to backend, and backend.name is auto. Name the backend",
            )


def emulation_needs_a_named_backend(recipe: Recipe) -> Iterator[Conflict]:
    if recipe.backend.emulate and recipe.backend.name == "auto":
        yield Conflict(
            ("backend", "emulate"),
            (("backend", "name"),),
            "auto never picks an emulator, and backend.name is auto. Name the backend",
        )


def a_plugin_path_is_a_native_backends(recipe: Recipe) -> Iterator[Conflict]:
    name, path = recipe.backend.name, recipe.backend.plugin_path
    if path is not None and name != "native":
        message = f"only backend.name: native loads a shared object, and backend.name is {name}"
        yield Conflict(("backend", "plugin_path"), (("backend", "name"),), message)
    if path is None and name == "native":
        message = "native is the backend of a shared object, and backend.plugin_path does not say which"
        yield Conflict(("backend", "name"), (("backend", "plugin_path"),), message)


def overrides_do_something(recipe: Recipe) -> Iterator[Conflict]:
    for index, override in enumerate(recipe.ops.overrides):
        if override.provider is None and not override.ban and override.compute_dtype is None:
            path: Path = ("ops", "overrides", index)
            yield Conflict(path, (), "changes nothing, expected one of provider, ban and compute_dtype")


def chosen_providers_are_not_banned(recipe: Recipe) -> Iterator[Conflict]:
    for index, override in enumerate(recipe.ops.overrides):
        if override.provider in override.ban:
            path: Path = ("ops", "overrides", index)
            yield Conflict(
                (*path, "provider"),
                ((*path, "ban"),),
                f"{override.provider!r} is both chosen and banned for {override.op}",
            )


def ops_are_overridden_once(recipe: Recipe) -> Iterator[Conflict]:
    seen: dict[tuple[str, str | None], int] = {}
    for index, override in enumerate(recipe.ops.overrides):
        key = (override.op, override.dtype)
        if key in seen:
            path: Path = ("ops", "overrides", index)
            first: Path = ("ops", "overrides", seen[key])
            yield Conflict(
                path,
                (first,),
                f"{override.op} ({override.dtype or 'every dtype'}) is overridden by entry {seen[key]} already",
            )
        seen.setdefault(key, index)


def fusions_are_named_once(recipe: Recipe) -> Iterator[Conflict]:
    policies = recipe.fusion.policies
    for index, policy in enumerate(policies if policies != "auto" else ()):
        if policy in policies[:index]:
            yield Conflict(("fusion", "policies", index), (("fusion", "policies"),), f"{policy} is named twice")


RULES: tuple[Callable[[Recipe], Iterator[Conflict]], ...] = (
    context_fits_the_pool,
    pool_holds_a_page,
    each_running_request_has_a_token,
    versions_belong_to_a_named_backend,
    emulation_needs_a_named_backend,
    a_plugin_path_is_a_native_backends,
    overrides_do_something,
    chosen_providers_are_not_banned,
    ops_are_overridden_once,
    fusions_are_named_once,
)


def find_conflicts(recipe: Recipe) -> tuple[Conflict, ...]:
    """Every clash in a recipe whose values are all right by themselves."""
    return tuple(conflict for rule in RULES for conflict in rule(recipe))


__all__ = ["RULES", "Conflict", "find_conflicts"]
