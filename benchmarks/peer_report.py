"""The figures compared, the machine's limits for them, and the table. Knows results; starts and measures nothing."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import roofline

from anychip.bench.result import BenchResult
from anychip.bench.summary import Figures, Spread

OURS = "anychip"
#: of one side, by workload: a result for each round that ran it
Measured = Mapping[str, Sequence[BenchResult]]
#: of one side, by figure: what the machine allowed in each of these rounds
Bounds = Mapping[str, Sequence[float]]
#: of all sides, by figure: what one and the same machine would allow them
Even = Mapping[str, Mapping[str, float]]


@dataclass(frozen=True)
class Cell:
    """One figure that is compared."""

    workload: str
    streams: int
    title: str
    of: Callable[[Figures], Spread | None]
    is_rate: bool  #: more is better; else it is a time

    def values(self, measured: Measured) -> list[float]:
        """One of each round that has it."""
        found = []
        for result in measured.get(self.workload, ()):
            level = next(one for one in result.levels if one.level.value == self.streams)
            spread = self.of(level.figures)
            if spread is not None:
                found.append(spread.median)
        return found

    def gain(self, value: float, other: float) -> float:
        """Above 1: `value` is better."""
        return value / other if self.is_rate else other / value


@dataclass(frozen=True)
class Row:
    """One figure of all sides: medians over their rounds.

    Attributes:
        rounds: that each side's median is over.
        best_peer: None: no peer has the figure.
        ratio: how much better ours is than the best peer's, above 1 better.
        of_limit: the share of what the machine allowed, where that is known; a median, too.
        even_ratio: the ratio if every side had its share of what one and the same machine allows.
    """

    figure: str
    medians: dict[str, float]
    rounds: dict[str, int]
    best_peer: str | None
    ratio: float | None
    of_limit: dict[str, float]
    even_ratio: float | None


def cells(workloads: Sequence[str], concurrency: Sequence[int]) -> list[Cell]:
    found = [
        Cell("w1", 1, "W1 TTFT, s", lambda f: f.ttft_p50_s, False),
        Cell("w1", 1, "W1 time per token, s", lambda f: f.tpot_p50_s, False),
    ]
    for streams in concurrency:
        found.append(Cell("w2", streams, f"W2 {streams} at once, tok/s", lambda f: f.output_tok_s, True))
        found.append(Cell("w2", streams, f"W2 {streams} at once, TTFT p50, s", lambda f: f.ttft_p50_s, False))
    found.append(Cell("w3", 4, "W3 tok/s", lambda f: f.output_tok_s, True))
    found.append(Cell("w3", 4, "W3 TTFT first wave, s", lambda f: f.ttft_first_wave_s, False))
    found.append(Cell("w3", 4, "W3 TTFT later, s", lambda f: f.ttft_later_s, False))
    return [cell for cell in found if cell.workload in workloads]


def limits(machine: roofline.Machine, costs: roofline.Costs, concurrency: Sequence[int]) -> dict[str, float]:
    """What the machine allows, by the titles of the cells that have such a limit."""
    found = {
        "W1 TTFT, s": roofline.prefill_s(machine, costs, 512),
        "W1 time per token, s": roofline.step_s(machine, costs, 1, 512 + 32),
    }
    for streams in concurrency:
        prefill_s = roofline.prefill_s(machine, costs, 256 * streams, streams)
        wall_s = prefill_s + 63 * roofline.step_s(machine, costs, streams, 256 + 32)
        found[f"W2 {streams} at once, tok/s"] = 64 * streams / wall_s
    # the prefix once, then every request's own tokens; four waves of four
    prefill_s = roofline.prefill_s(machine, costs, 1024 + 16 * 64, 16)
    found["W3 tok/s"] = 32 * 16 / (prefill_s + 4 * 31 * roofline.step_s(machine, costs, 4, 1088 + 16, shared=1024))
    return found


def compare(
    sides: Mapping[str, Measured],
    compared: Sequence[Cell],
    bounds: Mapping[str, Bounds] | None = None,
    even: Even | None = None,
) -> list[Row]:
    bounds, rows = bounds or {}, []
    for cell in compared:
        values = {name: found for name, measured in sides.items() if (found := cell.values(measured))}
        medians = {name: statistics.median(found) for name, found in values.items()}
        best, ratio = _against_best(cell, medians)
        shares = {
            name: statistics.median(map(cell.gain, found, bounds[name][cell.title]))
            for name, found in values.items()
            if cell.title in bounds.get(name, {})
        }
        rounds = {name: len(found) for name, found in values.items()}
        allowed = {name: even[name][cell.title] for name in shares} if even else {}
        evened = {name: bound * shares[name] ** (1 if cell.is_rate else -1) for name, bound in allowed.items()}
        rows.append(Row(cell.title, medians, rounds, best, ratio, shares, _against_best(cell, evened)[1]))
    return rows


def _against_best(cell: Cell, values: Mapping[str, float]) -> tuple[str | None, float | None]:
    """The best peer, and how much better ours is."""
    best = _best_peer(cell, values)
    return best, None if best is None or OURS not in values else cell.gain(values[OURS], values[best])


def contends(name: str, workload: str, sides: Mapping[str, Measured], compared: Sequence[Cell], within: float) -> bool:
    """Whether a peer comes near the best one in some figure of a workload, or wasn't measured in it yet."""
    if name == OURS or not sides.get(name, {}).get(workload):
        return True
    for cell in compared:
        if cell.workload == workload:
            medians = {side: statistics.median(found) for side, one in sides.items() if (found := cell.values(one))}
            best = _best_peer(cell, medians)
            if best is not None and name in medians and cell.gain(medians[best], medians[name]) <= within:
                return True
    return False


def _best_peer(cell: Cell, medians: Mapping[str, float]) -> str | None:
    peers = [name for name in medians if name != OURS]
    return (max if cell.is_rate else min)(peers, key=lambda name: medians[name]) if peers else None


def table(rows: Sequence[Row], names: Sequence[str]) -> str:
    """Each figure with the share of the machine's limit, then ours / best peer: above 1 ours is better.

    The second ratio, where there is one, is that on an even machine.
    """
    heads = {name: max(18, len(name) + 2) for name in names}
    width = max(len(row.figure) for row in rows)
    lines = [" " * width + "".join(f"{name:>{heads[name]}}" for name in names) + "   ratio, even"]
    for row in rows:
        line = f"{row.figure:{width}}"
        for name in names:
            text = f"{row.medians[name]:.3f}" if name in row.medians else "-"
            line += f"{text + (f' ({row.of_limit[name]:4.0%})' if name in row.of_limit else ''):>{heads[name]}}"
        even = f"{row.even_ratio:7.2f}" if row.even_ratio is not None else ""
        lines.append(line + (f"   {row.ratio:.2f}{even} ({row.best_peer})" if row.ratio is not None else ""))
    return "\n".join(lines)
