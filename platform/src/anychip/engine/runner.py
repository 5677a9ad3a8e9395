"""Runs plans on the device: makes a step's inputs, runs the model, chooses tokens. Knows plans; knows no scheduler.

What a plan doesn't repeat is kept here: each sequence's page table, and on the device the token sampled last for it,
which a later step takes from there. Runners that get the same plans in the same order hold the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as SequenceOf

import torch

from anychip.engine.inputs import InputBuilder
from anychip.engine.laps import STEP_PARTS, Laps
from anychip.engine.loader import LoadedModel, step_limits
from anychip.engine.non_finite import Origin, first_non_finite
from anychip.engine.page_rows import PageTable
from anychip.engine.sampler import Chosen, Sampler
from anychip.engine.state_ops import ClearSlot, StateOp
from anychip.engine.step_plan import AnyStepPlan, Continuation, Draw, Drawn, RowPlan, StepPlan, StepResult
from anychip.engine.transfers import Transfers
from anychip_sdk.device import Event
from anychip_sdk.kv import KVPool
from anychip_sdk.step import Step


class _Held:
    """What is kept of a sequence."""

    __slots__ = ("place", "table")

    def __init__(self, place: int) -> None:
        self.place = place  #: of its last token among those of all sequences
        self.table = PageTable()


class Pending:
    """A step that was submitted; its tokens may not be there yet."""

    __slots__ = ("_chosen", "_done", "_draws", "_number", "_runner")

    def __init__(
        self, runner: Runner, number: int, draws: SequenceOf[Draw], chosen: Chosen | None, done: Event | None
    ) -> None:
        self._runner = runner
        self._number = number
        self._draws = draws
        self._chosen = chosen
        self._done = done

    def wait(self) -> StepResult:
        """The step's result, when the device has it, whatever was submitted behind it. To be called once, or never."""
        return StepResult(self._number, self._runner.finish(self._draws, self._chosen, self._done))


class Runner:
    """One model on one device. Not thread safe.

    Plans are submitted in order, results waited for in the same order. A plan may come before the result of the one
    before it, unless it draws for a sequence that is penalised: the token isn't counted before the result is there.

    Args:
        model: stays the caller's to close.
    """

    def __init__(self, model: LoadedModel) -> None:
        plan = model.plan
        limits = step_limits(plan, model.device)
        self.laps = Laps(STEP_PARTS)  #: marks the inputs, the forward and the sampling of each step
        self._model = model
        self._transfers = Transfers(model.device)
        to_device = self._transfers.to_device
        self._inputs = InputBuilder(plan.scheduler.page_size.value, plan.graph.groups, limits, to_device)
        self._sampler = Sampler(plan.engine_ops, limits.device, to_device)
        self._held: dict[int, _Held] = {}
        self._free = list(range(limits.rows))  # places of last tokens
        self._inference = torch.inference_mode()  # one for all steps: making it takes longer than entering it
        self._last = torch.zeros(limits.rows, dtype=torch.int64, device=limits.device)
        self._newest, self._newest_of = self._last, list[int]()  # of the last draws; not in `_last` yet
        self._number = 0  # of the last step
        self._step: Step | None = None  # itself
        self._tables: list[PageTable] = []  # of its rows
        self._draws: list[Draw] = []  # of the last step plan
        self._repeats: list[int] = []  # how many of them each row of logits serves
        self._later = 0  # how many steps have continued it

    def submit(self, plan: AnyStepPlan) -> Pending:
        """Start a step; on a device with asynchronous streams, without waiting for it or for one before it.

        Raises:
            ValueError: the plan builds on one that this runner didn't get.
        """
        with self._inference:
            step = self._continued(plan) if isinstance(plan, Continuation) else self._begun(plan)
            self.laps.lap("inputs")
            self._step = step
            logits = self._model.forward(step)
            self.laps.lap("forward")
            chosen = self._choose(logits) if self._draws else None
        return Pending(self, plan.number, self._draws, chosen, self._transfers.mark())

    def origin(self) -> Origin | None:
        """Where the last step stops being finite; it is run once more, call by call, for that."""
        if self._step is None:
            return None
        plan = self._model.plan
        with torch.inference_mode():
            return first_non_finite(plan.program, self._model.values, step_limits(plan, self._model.device), self._step)

    def _begun(self, plan: StepPlan) -> Step:
        parents = [row.parent for row in plan.rows if row.parent is not None]
        if parents != self._newest_of:
            self._store()
        if plan.dropped:
            self._drop(plan.dropped)
        self._tables = [self._update(row).table for row in plan.rows]
        if plan.copies:
            sources, targets = zip(*plan.copies, strict=True)
            self._model.pool.copy_pages(sources, targets)
        run_state_ops(plan.state_ops, self._model.pool)
        self._number, self._draws, self._later = plan.number, plan.draws, 0
        self._repeats = [len(row.draws) for row in plan.rows if row.draws]
        return self._inputs.build(plan, self._tables, self._fetch(parents))

    def _continued(self, plan: Continuation) -> Step:
        if plan.number != self._number + 1:
            message = (
                f"step {plan.number} continues the one before, the last step of this runner is {self._number}: every "
                "plan must reach the runner, in order"
            )
            raise ValueError(message)
        for row, page in plan.pages:
            self._tables[row].pages.append(page)
        self._number = plan.number
        self._later += 1
        return self._inputs.advance(self._tables, self._newest)

    def finish(self, draws: SequenceOf[Draw], chosen: Chosen | None, done: Event | None) -> list[Drawn]:
        """Wait for a step's tokens: the second half of `submit`, for its Pending."""
        self._transfers.wait(done)
        if chosen is not None and not self._transfers.are_direct:
            chosen = chosen.moved(self._transfers.to_host)
        drawn = [] if chosen is None else self._sampler.take(draws, chosen)
        self.laps.lap("sample")
        return drawn

    def _update(self, row: RowPlan) -> _Held:
        held = self._held.get(row.sequence) or self._hold(row.sequence)
        known = len(held.table.pages)
        if row.pages_from == known and not row.pages:
            return held
        if known < row.pages_from:
            message = (
                f"sequence {row.sequence} of a step plan has new pages from {row.pages_from} on, this runner knows "
                f"{known} of it: every plan must reach the runner, in order"
            )
            raise ValueError(message)
        held.table.update(row.pages_from, row.pages)
        return held

    def _hold(self, sequence: int) -> _Held:
        held = self._held[sequence] = _Held(self._free.pop())
        return held

    def _drop(self, sequences: SequenceOf[int]) -> None:
        for sequence in sequences:
            held = self._held.pop(sequence, None)
            if held is not None:
                self._free.append(held.place)
        self._sampler.forget(sequences)

    def _fetch(self, parents: list[int]) -> torch.Tensor | None:
        """The tokens sampled last for these. Most steps go on with the very rows of the one before."""
        if not parents:
            return None
        if parents == self._newest_of:
            return self._newest
        return self._last.index_select(0, self._places(parents))

    def _store(self) -> None:
        """Put the newest tokens where each sequence's last one is kept."""
        if self._newest_of:
            self._last.index_copy_(0, self._places(self._newest_of), self._newest)
            self._newest_of = []

    def _choose(self, logits: torch.Tensor) -> Chosen:
        if len(self._draws) != logits.shape[0]:  # forks: one row of logits for several completions
            counts = self._transfers.to_device(torch.tensor(self._repeats))
            logits = logits.repeat_interleave(counts, dim=0, output_size=len(self._draws))  # the host knows the sum
        chosen = self._sampler(logits, self._draws, self._later)
        self._newest, self._newest_of = chosen.tokens, chosen.sequences
        return chosen

    def _places(self, sequences: SequenceOf[int]) -> torch.Tensor:
        places = [(self._held.get(one) or self._hold(one)).place for one in sequences]
        return self._transfers.to_device(torch.tensor(places, dtype=torch.int64))


def run_state_ops(ops: Iterable[StateOp], pool: KVPool) -> None:
    """One after the other: an operation may read what the one before it wrote."""
    for op in ops:
        if isinstance(op, ClearSlot):
            pool.clear_slots([op.slot])
        else:
            pool.copy_slots([op.source], [op.target])


__all__ = ["Pending", "Runner", "run_state_ops"]
