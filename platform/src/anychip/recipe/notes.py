"""What a valid recipe says that only its backend can confirm. Knows the built-in names; knows no backend."""

from __future__ import annotations

from anychip.recipe.errors import Problem, did_you_mean
from anychip.recipe.load import LoadedRecipe
from anychip_sdk.policies import POLICIES


def notes_on(loaded: LoadedRecipe) -> tuple[str, ...]:
    """Names that may be misspelt or may be a backend's own, each with its place; planning decides."""
    key, policies = "fusion.policies", loaded.recipe.fusion.policies
    unknown = [name for name in policies if name not in POLICIES] if policies != "auto" else []
    what = "is not a built-in fusion, so only a backend that brings it can plan this."
    problems = [Problem(loaded.origins[key], key, f"{name} {what}{did_you_mean(name, POLICIES)}") for name in unknown]
    return tuple(map(str, problems))


__all__ = ["notes_on"]
