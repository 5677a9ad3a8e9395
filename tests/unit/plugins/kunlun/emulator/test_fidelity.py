"""The list of what the emulator imitates."""

from __future__ import annotations

from anychip_kunlun.emulator.fidelity import FIDELITY
from anychip_kunlun.emulator.profile import SETTINGS
from anychip_kunlun.stack import Stack


def ops(stack: Stack) -> set[str]:
    return {name for name in vars(stack.load("kunlun_ops")) if not name.startswith("_")}


def test_every_op_and_every_setting_has_a_row_and_no_row_tells_of_others(open_host) -> None:
    covered = {name for row in FIDELITY for name in row.covers}
    assert covered == ops(open_host()) | ops(open_host(generation="torch251")) | set(SETTINGS)


def test_rows_are_told_once_with_a_source() -> None:
    assert len({row.behaviour for row in FIDELITY}) == len(FIDELITY)
    assert all(row.source for row in FIDELITY)
    assert {row.status for row in FIDELITY} == {"source", "issue", "inferred"}
