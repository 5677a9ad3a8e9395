"""Which layers see a window only, out of a raw config. Knows both ways of saying it; computes nothing."""

from __future__ import annotations

from collections.abc import Callable

from anychip.models.raw import Fields

FULL_ATTENTION = "full_attention"
SLIDING_ATTENTION = "sliding_attention"

Windows = tuple["int | None", tuple[str, ...]]  #: the window in tokens, and each layer's type


def parse_windows(fields: Fields, num_layers: int, default: int | None, is_sliding: Callable[[int], bool]) -> Windows:
    """`sliding_window` and `layer_types`.

    Args:
        fields: config.json's.
        num_layers: how many types there must be.
        default: the window where the key is absent; an explicit null means none.
        is_sliding: whether a layer has the window where no types are given.
    """
    window = fields.optional_integer("sliding_window", minimum=1) if "sliding_window" in fields.raw else default
    if window is None:
        fields.settle("layer_types")
        return None, (FULL_ATTENTION,) * num_layers
    types = fields.strings("layer_types")
    if types is None:
        types = tuple(SLIDING_ATTENTION if is_sliding(layer) else FULL_ATTENTION for layer in range(num_layers))
    if len(types) != num_layers:
        fields.problems.append(f"{fields.where}: layer_types has {len(types)} entries for {num_layers} layers")
    unknown = sorted(set(types) - {FULL_ATTENTION, SLIDING_ATTENTION})
    if unknown:
        fields.problems.append(f"{fields.where}: layer_types {', '.join(unknown)} are not supported")
    return window, types


def one_window(fields: Fields, num_layers: int, default: int | None) -> Windows:
    """The same `sliding_window` in every layer, whatever types are given."""
    window = fields.optional_integer("sliding_window", minimum=1) if "sliding_window" in fields.raw else default
    every = FULL_ATTENTION if window is None else SLIDING_ATTENTION
    if window is not None and set(fields.strings("layer_types") or ()) - {every}:
        fields.complain("layer_types", f"{every} for every layer: this architecture has one window for all")
    fields.settle("layer_types")
    return window, (every,) * num_layers


def no_windows(num_layers: int) -> Windows:
    """Every layer sees everything."""
    return None, (FULL_ATTENTION,) * num_layers


__all__ = ["FULL_ATTENTION", "SLIDING_ATTENTION", "Windows", "no_windows", "one_window", "parse_windows"]
