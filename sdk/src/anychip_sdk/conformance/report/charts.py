"""Charts for the report, as HTML tables and inline SVG without scripts. Knows numbers; knows no result."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

_BAR_HEIGHT, _LABEL_WIDTH, _PLOT_WIDTH, _VALUE_WIDTH = 20, 430, 560, 110


def heat_map(rows: Sequence[str], columns: Sequence[str], values: Mapping[tuple[str, str], float]) -> str:
    """A table whose cells are coloured by value, from 0 (pale) over 0.5 to 1 and above (red)."""
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in columns)
    body = []
    for row in rows:
        cells = "".join(_cell(values.get((row, column))) for column in columns)
        body.append(f'<tr><th scope="row">{escape(row)}</th>{cells}</tr>')
    return f'<table class="heat"><thead><tr><th></th>{head}</tr></thead><tbody>{"".join(body)}</tbody></table>'


def bars(values: Sequence[tuple[str, float]], unit: str) -> str:
    """Horizontal bars from a zero line; lengths are proportional, negative ones go left."""
    highest = max((abs(value) for _, value in values), default=0.0) or 1.0
    has_negative = any(value < 0 for _, value in values)
    zero = _LABEL_WIDTH + (_PLOT_WIDTH / 2 if has_negative else 0)
    room = _PLOT_WIDTH / 2 if has_negative else _PLOT_WIDTH
    width, height = _LABEL_WIDTH + _PLOT_WIDTH + _VALUE_WIDTH, len(values) * _BAR_HEIGHT + 8
    parts = [
        f'<svg class="bars" role="img" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'xmlns="http://www.w3.org/2000/svg"><line class="zero" x1="{zero}" x2="{zero}" y1="0" y2="{height}"/>'
    ]
    for index, (label, value) in enumerate(values):
        y = 4 + index * _BAR_HEIGHT
        length = abs(value) / highest * room
        x = zero if value >= 0 else zero - length
        parts.append(
            f'<text class="label" x="{_LABEL_WIDTH - 8}" y="{y + 13}" text-anchor="end">{escape(label)}</text>'
            f'<rect class="bar" x="{x:.1f}" y="{y + 2}" width="{length:.1f}" height="{_BAR_HEIGHT - 6}"/>'
            f'<text class="value" x="{max(zero, x + length) + 6:.1f}" y="{y + 13}">'
            f"{number(value)} {escape(unit)}</text>"
        )
    return "".join(parts) + "</svg>"


def number(value: float) -> str:
    """At most three significant digits."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _cell(value: float | None) -> str:
    if value is None:
        return '<td class="empty">·</td>'
    share = max(0.0, min(value, 1.0))
    hue, light = 145 - 145 * share, 92 - 27 * share
    return f'<td style="background:hsl({hue:.0f} 65% {light:.0f}%)">{value:.3f}</td>'


__all__ = ["bars", "heat_map", "number"]
