"""What kernels leave alone, and whether they give the same results again, in company, in threads. Knows no kernel."""

from __future__ import annotations

import dataclasses
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import cycle
from typing import Any

import torch

from anychip_sdk.conformance.context import Context
from anychip_sdk.conformance.requirements import Case, Violation, expect, requirement
from anychip_sdk.conformance.trial import op_cases
from anychip_sdk.conformance.trial.op_cases import BATCH_OPS, HEAD_OPS, IN_PLACE, SLOT_OPS, per_op
from anychip_sdk.conformance.trial.oracle import call, judge, launch, on_host, run, same_bits
from anychip_sdk.conformance.trial.placing import PLACES, Placed, check_places, placed
from anychip_sdk.conformance.trial.trials import Trial, resolved, trial
from anychip_sdk.ops.base import CATALOGUE
from anychip_sdk.step import GroupEntry, Paged, Slots, Step

Results = tuple[torch.Tensor, ...]
#: ops whose result rows each depend on one row of the arguments
ROW_OPS = tuple(
    name
    for name in sorted(CATALOGUE)
    if name not in (*IN_PLACE, *BATCH_OPS, "select_rows", "embedding", "rope", "qk_norm_rope")
)
#: ops whose results for one of the step's rows depend on that row alone
STEP_ROW_OPS = ("latent_attention", "paged_attention", *SLOT_OPS)


@requirement(
    "AC-OP-010",
    level="MUST",
    text="A kernel MUST NOT change arguments that the op doesn't declare as written, nor bytes around any argument.",
    cases=per_op(),
)
def arguments_are_left_alone(context: Context, case: Case) -> None:
    op, dtype = case.params["op"], case.params["dtype"]
    sizes = [op_cases.usual(op)]
    if op not in HEAD_OPS:
        sizes += [*op_cases.widths(op, "tails", context.level), *op_cases.widths(op, "ones", context.level)]
    for salt, chosen in enumerate(sizes):
        one = trial(context, op, dtype, chosen, salt, strided=salt == 0)
        with placed(context, one, shift=salt % 2) as where:
            launch(context, one, where)
            check_places(one, where)


@requirement(
    "AC-OP-011",
    level="MUST",
    text="An op in place MUST return its argument itself, changed only where the op says: no other slot, page or row.",
    cases=per_op(only=IN_PLACE),
)
def only_the_target_is_written(context: Context, case: Case) -> None:
    op = case.params["op"]
    for salt in range(context.scaled(2, 4)):
        one = trial(context, op, case.params["dtype"], op_cases.usual(op), salt)
        with placed(context, one) as where:
            answer = launch(context, one, where)
            _expect_in_place(one, where, answer)
            _expect_rest_untouched(one, on_host(one, where, answer))


@requirement(
    "AC-OP-012",
    level="MUST",
    text="Every one of many runs of a kernel on the same arguments MUST be right; one wrong run is a failure.",
    cases=per_op(),
)
def every_run_is_right(context: Context, case: Case) -> None:
    one = trial(context, case.params["op"], case.params["dtype"], op_cases.usual(case.params["op"]))
    seen: list[Results] = []
    for number, got in enumerate(_runs(context, one, context.scaled(64, 200))):
        if any(_equal(got, other) for other in seen):
            continue
        try:
            judge(context, one, got)
        except Violation as error:
            raise Violation(f"run {number + 1}: {error.message}", **error.evidence, run=number + 1) from error
        seen.append(got)
    context.measured["distinct_results"] = len(seen)


@requirement(
    "AC-OP-013",
    level="MUST",
    text="A kernel that is claimed deterministic MUST give the same bits on every run, wherever its arguments lie.",
    needs=("deterministic",),
    cases=per_op(),
)
def runs_are_bit_equal(context: Context, case: Case) -> None:
    one = trial(context, case.params["op"], case.params["dtype"], op_cases.usual(case.params["op"]))
    first: Results | None = None
    for number, got in enumerate(_runs(context, one, context.scaled(20, 50))):
        first = first if first is not None else got
        if not _equal(got, first):
            message = f"{one}: run {number + 1} gave other bits than run 1"
            raise Violation(message, **one.named(), got=_differing(got, first), expected=_differing(first, got))


@requirement(
    "AC-OP-014",
    level="MUST",
    text="Where batch invariance is claimed, a row's bits MUST NOT depend on how many rows there are, or which.",
    needs=("batch_invariant",),
    cases=per_op(only=(*ROW_OPS, *STEP_ROW_OPS)),
)
def rows_do_not_depend_on_company(context: Context, case: Case) -> None:
    op, dtype = case.params["op"], case.params["dtype"]
    rows = 64
    sizes = {**op_cases.usual(op), "tokens": rows, "rows": rows}
    if op in STEP_ROW_OPS:
        sizes.update(decode_rows=8, prefill_rows=2, pages=64, slots=12)
        rows = 10
    one = trial(context, op, dtype, sizes)
    _compare_company(context, one, rows, [[0], [rows // 2], list(range(5)), _reversed(one, rows)])
    if (
        CATALOGUE[op].weights and op not in STEP_ROW_OPS
    ):  # sums of many products are split where there are few rows; rarely does a bit show it
        one = trial(context, op, dtype, {**sizes, "hidden": 1536, "inner": 66, "out": 576}, "long")
        _compare_company(context, one, rows, [[row] for row in range(context.scaled(8, rows))])


def _compare_company(context: Context, one: Trial, rows: int, parts: Sequence[list[int]]) -> None:
    """Some of the trial's rows without the others against all of them."""
    whole = run(context, one)
    for chosen in parts:
        part, kept = _part(context, one, chosen)
        for arg, got, full in zip(one.op.returns, run(context, part), whole, strict=True):
            at = part.named()["step"].slotted(0).slots if arg.state else kept
            mine = got[at] if arg.state else got
            if not same_bits(mine, full[at]):
                message = f"{one}: rows {chosen} of '{arg.name}' have other bits alone than among {rows}"
                raise Violation(message, **part.named(), got=mine, expected=full[at])


@requirement(
    "AC-OP-017",
    level="MUST",
    text="Where thread safety is claimed, two host threads that run a kernel on arguments of their own MUST get what "
    "they get alone.",
    needs=("thread_safe",),
    cases=per_op(),
)
def threads_do_not_disturb_each_other(context: Context, case: Case) -> None:
    op, dtype = case.params["op"], case.params["dtype"]
    trials = [trial(context, op, dtype, op_cases.usual(op), i) for i in range(2)]
    alone = [run(context, one) for one in trials]
    failures: list[Violation] = []
    start = threading.Barrier(len(trials), timeout=60)

    def work(one: Trial, wanted: Results) -> None:
        try:
            start.wait()
            for number, got in enumerate(_runs(context, one, context.scaled(24, 200))):
                if not _equal(got, wanted):
                    message = f"{one}: run {number + 1} beside another thread gave other bits than alone"
                    differing = {"got": _differing(got, wanted), "expected": _differing(wanted, got)}
                    raise Violation(message, **one.named(), **differing)
        except Violation as error:
            failures.append(error)
        except threading.BrokenBarrierError:
            failures.append(Violation(f"{one}: the other thread did not start within 60 s"))

    threads = [threading.Thread(target=work, args=pair, daemon=True) for pair in zip(trials, alone, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
        expect(not thread.is_alive(), f"{trials[0]}: two threads did not come to an end within 120 s")
    if failures:
        raise failures[0]


@requirement(
    "AC-OP-018",
    level="MUST",
    text="Results MUST NOT depend on what memory held before: neither in what a kernel allocates nor in unused slots.",
    cases=per_op(),
)
def stale_memory_is_not_read(context: Context, case: Case) -> None:
    op, dtype = case.params["op"], case.params["dtype"]
    with _filled_allocations():
        for salt in range(2):
            one = trial(context, op, dtype, op_cases.usual(op), salt)
            judge(context, one, run(context, one))


def _runs(context: Context, one: Trial, count: int) -> Iterator[Results]:
    """Results of many runs; arguments are placed elsewhere now and then, always where the op writes them."""
    done = 0
    for place in cycle(PLACES):
        with placed(context, one, place=place) as where:
            for _ in range(1 if one.op.mutated else 8):
                if done == count:
                    return
                yield call(context, one, where)
                done += 1


def _equal(one: Results, other: Results) -> bool:
    return all(same_bits(a, b) for a, b in zip(one, other, strict=True))


def _differing(one: Results, other: Results) -> torch.Tensor:
    return next(a for a, b in zip(one, other, strict=True) if not same_bits(a, b))


def _expect_in_place(one: Trial, where: Placed, answer: Sequence[torch.Tensor]) -> None:
    places = {arg.name: value for arg, value in zip(one.op.args, where.values, strict=True)}
    for arg, value in zip(one.op.returns, answer, strict=True):
        if arg.name in one.op.mutated:
            same = value.data_ptr() == places[arg.name].data_ptr() and value.shape == places[arg.name].shape
            expect(same, f"{one}: '{arg.name}' is written in place, but another tensor was returned")


def _expect_rest_untouched(one: Trial, got: Results) -> None:
    """Where the reference leaves an element, the kernel leaves its bits."""
    before = one.named()
    given = [value.clone() if isinstance(value, torch.Tensor) else value for value in one.args]
    wanted = one.op.reference(*given)
    for arg, value, want in zip(one.op.returns, got, wanted if isinstance(wanted, tuple) else (wanted,), strict=True):
        if arg.name not in one.op.mutated:
            continue
        old = before[arg.name]
        left = (want == old) | (want.isnan() & old.isnan())
        if arg.state and one.op.step_index is not None:  # a new value may equal the old one by chance
            if one.op.keeps_slots:
                left[before["step"].slotted(before["group"]).slots] = False
            else:
                left.view(-1, *left.shape[2:])[before["step"].paged(before["group"]).slots] = False
        wrong = left & ~((value == old) | (value.isnan() & old.isnan()))
        if bool(wrong.any()):
            at = wrong.nonzero()[0].tolist()
            message = f"{one}: '{arg.name}' was changed at {at} and {int(wrong.sum()) - 1} more places, not its targets"
            raise Violation(message, **before, got=value, expected=want)


def _part(context: Context, one: Trial, chosen: list[int]) -> tuple[Trial, torch.Tensor]:
    """The trial of some rows only, and which rows of the results they are."""
    rows = torch.tensor(chosen)
    args: list[Any] = list(one.args)
    kept = rows
    if one.op.step_index is not None:
        step: Step = args[one.op.step_index]
        starts = step.query_start.tolist()
        kept = torch.cat([torch.arange(starts[row], starts[row + 1]) for row in chosen])
        args[one.op.step_index] = _rows_of(step, chosen, kept)
    for i, arg in enumerate(one.op.args):
        if arg.shape[:1] in (("tokens",), ("rows",), ("...",)):
            args[i] = args[i][kept]
    return resolved(context, one.op.name, one.dtype, args, one.sizes), kept


def _reversed(one: Trial, rows: int) -> list[int]:
    """All rows from the last to the first, but those of one query before those of a prompt."""
    decode = 0 if one.op.step_index is None else one.args[one.op.step_index].decode_rows
    return [*range(decode - 1, -1, -1), *range(rows - 1, decode - 1, -1)]


def _rows_of(step: Step, chosen: list[int], kept: torch.Tensor) -> Step:
    """The step of some rows; decode rows first, as they must be."""
    lengths = tuple(step.query_lens_host[row] for row in chosen)
    decode = 0
    while decode < len(chosen) and chosen[decode] < step.decode_rows:
        decode += 1
    starts = torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32)
    return dataclasses.replace(
        step,
        token_ids=step.token_ids[kept],
        positions=step.positions[kept],
        query_start=starts,
        context_lens=step.context_lens[chosen],
        logit_rows=(starts[1:] - 1).long(),
        groups=tuple(_entry_of(entry, chosen, kept) for entry in step.groups),
        decode_rows=decode,
        query_lens_host=lengths,
        context_lens_host=tuple(step.context_lens_host[row] for row in chosen),
    )


def _entry_of(entry: GroupEntry, chosen: list[int], kept: torch.Tensor) -> GroupEntry:
    if isinstance(entry, Paged):
        return Paged(entry.page_table[chosen], entry.slots[kept])
    return Slots(entry.slots[chosen])


@contextmanager
def _filled_allocations() -> Iterator[None]:
    """Let torch fill what is allocated without a value with not-a-number."""
    filling: Any = torch.utils.deterministic  # its attribute is set by a property of the module, unknown to mypy
    before = (torch.are_deterministic_algorithms_enabled(), filling.fill_uninitialized_memory)
    warned = torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    filling.fill_uninitialized_memory = True
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch names the kernels that are not deterministic; others test that
            yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=warned)
        filling.fill_uninitialized_memory = before[1]


__all__ = [
    "ROW_OPS",
    "arguments_are_left_alone",
    "every_run_is_right",
    "only_the_target_is_written",
    "rows_do_not_depend_on_company",
    "runs_are_bit_equal",
    "stale_memory_is_not_read",
    "threads_do_not_disturb_each_other",
]
