"""Rotary embedding settings out of a raw config. Knows both spellings of the keys; computes no angle."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, cast

from anychip.models.raw import Fields

RopeType = Literal["default", "linear", "llama3", "longrope", "yarn"]

SUPPORTED_ROPE_TYPES: tuple[str, ...] = ("default", "dynamic", "linear", "llama3", "longrope", "yarn")
DEFAULT_THETA = 10000.0
MAX_THETA = 1e12
MAX_FACTOR = 1e6


@dataclass(frozen=True)
class RopeConfig:
    """How positions turn into angles.

    `attention_factor`, `mscale` and `mscale_all_dim` (yarn) stay None where the checkpoint leaves them out;
    the attention factor is then derived from `factor`. `partial` is the share of each head's dimensions that turn, its
    first ones. `short_factors` and `long_factors` (longrope) divide the frequency of each pair: short ones in models
    that are served for the original context, long ones in those served for more.
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
    partial: float = 1.0
    short_factors: tuple[float, ...] = ()
    long_factors: tuple[float, ...] = ()


class RopeDefaults(NamedTuple):
    """What a class takes for granted where keys are absent.

    `partial`: the share of a head that turns; None: the class turns whole heads, and other shares are refused.
    """

    theta: float = DEFAULT_THETA
    partial: float | None = None
    original: int | None = None  #: positions that longrope was trained with; None: those of the config


PLAIN = RopeDefaults()


def parse_rope(fields: Fields, max_positions: int, known: RopeDefaults = PLAIN, kind: str | None = None) -> RopeConfig:
    """Read `rope_parameters` (new), `rope_scaling` and `rope_theta` (old) of a config; problems go to `fields`.

    Args:
        fields: config.json's.
        max_positions: that the config names.
        known: what the class takes for granted.
        kind: the type of layers whose parameters are wanted, where types may differ; None: all must agree.
    """
    parameters = _parameters(fields, kind)
    rope_type = _type(parameters)
    partial = _partial(fields, parameters, known)
    theta = _theta(fields, parameters, known)
    if rope_type == "dynamic":  # plain up to the config's positions; no more are offered
        parameters.settle("factor")
    if rope_type in ("default", "dynamic"):
        return RopeConfig(theta=theta, partial=partial)
    if rope_type == "longrope":
        plain = RopeConfig(theta, "longrope", original_max_positions=known.original or max_positions, partial=partial)
        return _longrope(fields, parameters, max_positions, plain)
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
        partial=partial,
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


def parse_local_rope(fields: Fields, key: str, default: float) -> RopeConfig:
    """The rotation of layers with a window, in families that have one of their own.

    Args:
        fields: config.json's.
        key: of its base, where parameters aren't told type by type.
        default: the base where none is told.
    """
    parameters = fields.section("rope_parameters")
    nested = None if parameters is None else parameters.section("sliding_attention")
    if nested is None:
        return RopeConfig(theta=fields.number(key, default, above=1, maximum=MAX_THETA))
    own = Fields({"rope_parameters": nested.raw}, fields.problems, fields.where, fields.read)
    return parse_rope(own, 1, RopeDefaults(default))


def extended_positions(rope: RopeConfig, max_positions: int) -> int:
    """The longest context of a model whose config may name the length that it was trained with, or the scaled one.

    yarn scales the original length, linear the config's. llama3's configs name the scaled length.
    """
    if rope.type == "yarn" and rope.original_max_positions is not None:
        return max(max_positions, int(rope.original_max_positions * rope.factor))
    if rope.type == "linear":
        return max(max_positions, int(max_positions * rope.factor))
    return max_positions


def _longrope(fields: Fields, parameters: Fields, max_positions: int, plain: RopeConfig) -> RopeConfig:
    outer = fields.optional_integer("original_max_position_embeddings", minimum=1)
    original = outer or parameters.integer("original_max_position_embeddings", plain.original_max_positions or 1)
    return replace(
        plain,
        factor=parameters.number("factor", max_positions / original, above=0, maximum=MAX_FACTOR),
        original_max_positions=original,
        attention_factor=parameters.optional_number("attention_factor", above=0, maximum=MAX_FACTOR),
        short_factors=_factors(parameters, "short_factor"),
        long_factors=_factors(parameters, "long_factor"),
    )


def _factors(parameters: Fields, key: str) -> tuple[float, ...]:
    """One for each pair of dimensions; how many these are is checked where the heads are known."""
    found = parameters.numbers(key, above=0, maximum=MAX_FACTOR)
    if found is None and key not in parameters:
        parameters.problems.append(f"{parameters.where}: {key} is missing, rope type longrope needs it")
    return found or ()


def check_factors(fields: Fields, rope: RopeConfig, head_dim: int) -> None:
    """Note lists of longrope that have another length than a head has pairs."""
    pairs = int(head_dim * rope.partial) // 2
    for key, factors in (("short_factor", rope.short_factors), ("long_factor", rope.long_factors)):
        if factors and len(factors) != pairs:
            fields.problems.append(
                f"{fields.where}: {key} has {len(factors)} numbers, the rotation has {pairs} pairs of dimensions"
            )


def _parameters(fields: Fields, kind: str | None) -> Fields:
    """The one object that holds the scaling; both spellings at once must agree."""
    new, old = fields.section("rope_parameters"), fields.section("rope_scaling")
    if new is not None:
        new = _flatten(new, kind)
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


def _flatten(section: Fields, kind: str | None) -> Fields:
    """Parameters nested per layer type: those of the one asked for, or what every layer type says."""
    nested = {key: value for key, value in section.raw.items() if key.endswith("_attention")}
    if not nested:
        return section
    if kind is not None:
        return section.section(kind) or Fields({}, section.problems, f"{section.where}: {kind}", section.read)
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
    if name in ("su", "yarn") and "short_factor" in parameters:
        name = "longrope"  # what early versions of Phi-3 called it
    if name not in SUPPORTED_ROPE_TYPES:
        supported = ", ".join(SUPPORTED_ROPE_TYPES)
        parameters.problems.append(f"{parameters.where}: rope type {name!r} is not supported (supported: {supported})")
        return "default"
    return name


def _theta(fields: Fields, parameters: Fields, known: RopeDefaults) -> float:
    outer = fields.optional_number("rope_theta", above=1, maximum=MAX_THETA)
    inner = parameters.optional_number("rope_theta", above=1, maximum=MAX_THETA)
    if outer is not None and inner is not None and outer != inner:
        fields.problems.append(
            f"{fields.where}: rope_theta is {outer:g} at the top and {inner:g} in rope_parameters; keep one"
        )
    theta = inner if inner is not None else outer
    return known.theta if theta is None else theta


def _partial(fields: Fields, parameters: Fields, known: RopeDefaults) -> float:
    """The inner key comes first."""
    if known.partial is not None:
        outer = fields.number("partial_rotary_factor", known.partial, above=0, maximum=1)
        return parameters.number("partial_rotary_factor", outer, above=0, maximum=1)
    for source in (fields, parameters):
        share = source.number("partial_rotary_factor", 1.0)
        if share != 1.0:
            source.problems.append(f"{source.where}: partial_rotary_factor {share:g} is not supported, only 1.0 is")
    return 1.0


__all__ = [
    "SUPPORTED_ROPE_TYPES",
    "RopeConfig",
    "RopeDefaults",
    "RopeType",
    "check_factors",
    "extended_positions",
    "parse_local_rope",
    "parse_rope",
]
