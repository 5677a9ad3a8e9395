"""Every op of the catalogue is declared whole, and what a declaration lacks is named."""

import re

import pytest
import torch

from anychip_cpu.programs.instructions import NO_INSTRUCTION, WRITERS
from anychip_sdk.conformance.mutants import load_mutants
from anychip_sdk.ops import CATALOGUE, STEP, Arg, ErrorModel, Op
from anychip_sdk.ops.base import cancelling
from anychip_sdk.ops.cases import DIMENSIONS, Case
from anychip_sdk.ops.checks import Checks, Terms
from support.sources import ROOT

GUIDE = (ROOT / "docs/writing-a-backend.md").read_text(encoding="utf-8")
DOCUMENTED = frozenset(re.findall(r"`(\w+)`", GUIDE.split("The ops are\n")[1].split(".\n")[0]))
INSTRUCTED = frozenset(WRITERS) | frozenset(NO_INSTRUCTION)
BROKEN = frozenset(one.op for one in load_mutants().values())


def lacks(op: Op, documented=DOCUMENTED, instructed=INSTRUCTED, broken=BROKEN) -> list[str]:
    """What must be declared for an op, and isn't."""
    found = [f"dtype of {arg.name}" for arg in (*op.args, *op.returns) if not is_known(arg)]
    if not op.args or not op.returns:
        found.append("schema")
    if not (op.__doc__ or "").strip():
        found.append("docstring")
    if not isinstance(op.error, ErrorModel):
        found.append("error model")
    if op.checks is None:
        found.append("checks")
    else:
        if len(op.checks.case(Case(torch.float32, 0, False, True, DIMENSIONS))) != len(op.args):
            found.append("a case of all arguments")
        if op.error == ErrorModel("accumulated", getattr(op.error, "ulps", 0)) and op.checks.terms is None:
            found.append("error terms")
    if op.name not in documented:
        found.append("documentation")
    if op.name not in instructed:
        found.append("an instruction, or why there is none")
    if op.name not in broken:
        found.append("a mistake that the suite must find")
    return found


def is_known(arg: Arg) -> bool:
    if not arg.shape:
        return arg.dtype in (STEP, "int", "float", "bool") or (arg.dtype == "str" and bool(arg.choices))
    return arg.dtype == "T" or isinstance(getattr(torch, arg.dtype, None), torch.dtype)


@pytest.mark.parametrize("name", CATALOGUE)
def test_an_op_lacks_nothing(name):
    assert lacks(CATALOGUE[name]) == []


def test_an_op_has_an_instruction_or_a_reason_not_both():
    assert WRITERS.keys() & NO_INSTRUCTION.keys() == set()
    assert all(NO_INSTRUCTION.values())
    assert set(CATALOGUE) >= INSTRUCTED


X = Arg("x", ("...", "dim"))
NAMES = frozenset({"double"})


def double(x: torch.Tensor) -> torch.Tensor:
    """2 * x."""
    return 2 * x


def one_of(case: Case):
    return (case.floats(3, 4),)


def declared(reference=double, **changed) -> Op:
    whole = {
        "args": (X,),
        "returns": (X,),
        "error": cancelling(2),
        "version": 1,
        "composed_of": (),
        "checks": Checks(one_of, None, lambda x: [Terms(x.abs())]),
    }
    return Op(reference, **{**whole, **changed})


def test_a_whole_declaration_is_seen_as_one():
    assert lacks(declared(), NAMES, NAMES, NAMES) == []


@pytest.mark.parametrize(
    ("changed", "lacking"),
    [
        ({"returns": ()}, "schema"),
        ({"args": (Arg("x", ("dim",), "float33"),)}, "dtype of x"),
        ({"args": (Arg("x"),)}, "dtype of x"),
        ({"error": None}, "error model"),
        ({"checks": None}, "checks"),
        ({"checks": Checks(lambda case: (), None, lambda x: [Terms(x)])}, "a case of all arguments"),
        ({"checks": Checks(one_of, None)}, "error terms"),
    ],
)
def test_what_a_declaration_lacks_is_named(changed, lacking):
    assert lacks(declared(**changed), NAMES, NAMES, NAMES) == [lacking]


def test_an_op_that_nobody_else_knows_lacks_all_that_stands_elsewhere():
    def undocumented(x):
        return x

    assert lacks(declared(undocumented)) == [
        "docstring",
        "documentation",
        "an instruction, or why there is none",
        "a mistake that the suite must find",
    ]
