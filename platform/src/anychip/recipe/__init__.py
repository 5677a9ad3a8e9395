"""Recipes: what a user declares, read from YAML and checked. Knows neither models nor devices nor torch."""

from __future__ import annotations

from anychip.recipe.load import LoadedRecipe, load, load_sets, recipe_digest
from anychip.recipe.origins import Origin
from anychip.recipe.schema import Recipe

__all__ = ["LoadedRecipe", "Origin", "Recipe", "load", "load_sets", "recipe_digest"]
