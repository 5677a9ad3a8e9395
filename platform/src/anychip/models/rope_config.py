"""Rotary embedding settings out of a raw config. Knows both spellings of the keys; computes no angle."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, cast

from anychip.models.raw import Fields

RopeType = Literal["default", "linear", "llama3", "yarn"]

SUPPORTED_ROPE_TYPES: tuple[str, ...] = ("default", "linear", "llama3", "yarn")
DEFAULT_THETA = 10000.0
MAX_THETA = 1e12
MAX_FACTOR = 1e6


@dataclass(frozen=True)
class RopeConfig:
    """How positions turn into angles.

    `attention_factor`, `mscale` and `mscale_all_dim` (yarn) stay None where the checkpoint leaves them out;
    the attention factor is then derived from `factor`.
    """

    theta: float = DEFAULT_THETA
    type: RopeType = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_positions: int | None = None
    attention_factor: float | None = None
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True


def parse_rope(fields: Fields, max_positions: int) -> RopeConfig:
    """Read `rope_parameters` (new), `rope_scaling` and `rope_theta` (old) of a config; problems go to `fields`."""
    parameters = _parameters(fields)
    rope_type = _type(parameters)
    _check_partial(fields, parameters)
    theta = _theta(fields, parameters)
    if rope_type == "default":
        return RopeConfig(theta=theta)
    if rope_type != "yarn" and "factor" not in parameters:  # yarn can tell it from the two lengths
        parameters.problems.append(f"{parameters.where}: factor is missing, rope type {rope_type} needs it")
    original = None
    if rope_type in ("llama3", "yarn"):
        outer = fields.optional_integer("original_max_position_embeddings", minimum=1)
        original = outer or parameters.integer("original_max_position_embeddings", max_positions)
    default = max_positions / original if original else 1.0
    factor = parameters.number("factor", default, above=0, maximum=MAX_FACTOR)
    low = parameters.number("low_freq_factor", 1.0, above=0, maximum=MAX_FACTOR)
    high = parameters.number("high_freq_factor", 4.0, above=0, maximum=MAX_FACTOR)
    if high <= low:
        parameters.complain("high_freq_factor", f"more than low_freq_factor, which is {low:g}")
    return RopeConfig(
        theta=theta,
        type=cast(RopeType, rope_type),
        factor=factor,
        low_freq_factor=low,
        high_freq_factor=high,
        original_max_positions=original,
        attention_factor=parameters.optional_number("attention_factor", above=0, maximum=MAX_FACTOR),
        beta_fast=parameters.number("beta_fast", 32.0, above=0, maximum=MAX_FACTOR),
        beta_slow=parameters.number("beta_slow", 1.0, above=0, maximum=MAX_FACTOR),
        mscale=_optional_scale(parameters, "mscale"),
        mscale_all_dim=_optional_scale(parameters, "mscale_all_dim"),
        truncate=parameters.boolean("truncate", True),
    )


def extended_positions(rope: RopeConfig, max_positions: int) -> int:
    """The longest context of a model whose config may name the length that it was trained with, or the scaled one.

    yarn scales the original length, linear the config's. llama3's configs name the scaled length.
    """
    if rope.type == "yarn" and rope.original_max_positions is not None:
        return max(max_positions, int(rope.original_max_positions * rope.factor))
    if rope.type == "linear":
        return max(max_positions, int(max_positions * rope.factor))
    return max_positions


def _parameters(fields: Fields) -> Fields:
    """The one object that holds the scaling; both spellings at once must agree."""
    new, old = fields.section("rope_parameters"), fields.section("rope_scaling")
    if new is not None:
        new = _flatten(new)
    if new is not None and old is not None:
        common = {"type": old.raw.get("type"), **old.raw}
        for key, value in common.items():
            other = new.raw.get(key)
            if value is not None and other is not None and other != value:
                fields.problems.append(
                    f"{fields.where}: rope_scaling.{key} is {value!r} but rope_parameters.{key} is {other!r}; "
                    "keep one of the two"
                )
        return Fields({**old.raw, **new.raw}, fields.problems, new.where, fields.read)
    return new or old or Fields({}, fields.problems, f"{fields.where}: rope_parameters", fields.read)


def _optional_scale(parameters: Fields, key: str) -> float | None:
    """A positive number; 0 means none."""
    return None if parameters.raw.get(key) == 0 else parameters.optional_number(key, above=0, maximum=MAX_FACTOR)


def _flatten(section: Fields) -> Fields:
    """Parameters nested per layer type are accepted where every layer type says the same."""
    nested = {key: value for key, value in section.raw.items() if key.endswith("_attention")}
    if not nested:
        return section
    present = [value for value in nested.values() if isinstance(value, Mapping)]
    if not present or any(value != present[0] for value in present):
        names = ", ".join(sorted(nested))
        section.problems.append(f"{section.where}: different parameters per layer type ({names}) are not supported")
        return Fields({}, section.problems, section.where, section.read)
    return Fields(present[0], section.problems, section.where, section.read)


def _type(parameters: Fields) -> str:
    new, old = parameters.string("rope_type", ""), parameters.string("type", "")
    if new and old and new != old:
        parameters.problems.append(f"{parameters.where}: rope_type is {new!r} but type is {old!r}")
    name = new or old or "default"
    if name not in SUPPORTED_ROPE_TYPES:
        supported = ", ".join(SUPPORTED_ROPE_TYPES)
        parameters.problems.append(f"{parameters.where}: rope type {name!r} is not supported (supported: {supported})")
        return "default"
    return name


def _theta(fields: Fields, parameters: Fields) -> float:
    outer = fields.optional_number("rope_theta", above=1, maximum=MAX_THETA)
    inner = parameters.optional_number("rope_theta", above=1, maximum=MAX_THETA)
    if outer is not None and inner is not None and outer != inner:
        fields.problems.append(
            f"{fields.where}: rope_theta is {outer:g} at the top and {inner:g} in rope_parameters; keep one"
        )
    theta = inner if inner is not None else outer
    return DEFAULT_THETA if theta is None else theta


def _check_partial(fields: Fields, parameters: Fields) -> None:
    for source in (fields, parameters):
        share = source.number("partial_rotary_factor", 1.0)
        if share != 1.0:
            source.problems.append(f"{source.where}: partial_rotary_factor {share:g} is not supported, only 1.0 is")


__all__ = ["SUPPORTED_ROPE_TYPES", "RopeConfig", "RopeType", "extended_positions", "parse_rope"]
