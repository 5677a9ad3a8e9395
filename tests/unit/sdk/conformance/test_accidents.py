"""A mutant counts as killed where its fault was found, not where its own code broke. Knows the rule, no real mutant."""

import inspect

import pytest
import torch
from torch.nn import functional

from anychip_sdk import ops
from anychip_sdk.conformance import command, selftest
from anychip_sdk.conformance.mutants import MUTANTS, healthy_claims, load_mutants, mutant, with_argument
from anychip_sdk.conformance.mutants.accidents import accident
from anychip_sdk.conformance.mutants.base import Mutant
from anychip_sdk.conformance.mutants.judging import Unit, judge
from anychip_sdk.conformance.reference.plugin import AsyncReferencePlugin
from anychip_sdk.conformance.run.attempt import Attempt
from anychip_sdk.conformance.selftest import Row, SelfTest
from anychip_sdk.ops import CATALOGUE


def stale_signature(x, y, weight, eps):
    """The weight is halved, in a schema that had one more argument."""
    return ops.rms_norm.reference(x, weight * 0.5, eps)


def stale_place(*args):
    """The weight is halved, where the argument stood that is now another."""
    return ops.rms_norm.reference(args[0], args[2] * 0.5, args[3])


def current(x, weight, eps):
    """The weight is halved."""
    return ops.rms_norm.reference(x, weight * 0.5, eps)


def refuses(x, weight, eps):
    """Every call is refused."""
    raise RuntimeError("no kernel image")


@pytest.fixture
def declared():
    """Declares a mutant of rms_norm for the length of a test."""
    load_mutants()
    names = []

    def declare(kernel, *kills, **more):
        mutant(*(kills or ("AC-OP-001",)), op="rms_norm", **more)(kernel)
        names.append(kernel.__name__)
        load_mutants.cache_clear()
        return kernel.__name__

    yield declare
    for name in set(names):
        del MUTANTS[name]
    load_mutants.cache_clear()


@pytest.mark.parametrize(
    ("kernel", "text"),
    [(stale_signature, "missing 1 required positional argument"), (stale_place, "IndexError: tuple index out of")],
)
def test_a_mutant_whose_own_code_breaks_is_killed_by_accident(declared, kernel, text):
    found = judge(Unit(mutant=declared(kernel)))
    assert set(found.found) == {"AC-OP-001"}
    assert text in found.accidents["AC-OP-001"]


def test_a_mutant_that_is_only_wrong_is_killed_by_its_fault(declared):
    found = judge(Unit(mutant=declared(current)))
    assert set(found.found) == {"AC-OP-001"}
    assert found.accidents == {}


def test_a_fault_that_raises_says_so_and_what(declared):
    unsaid = {"AC-OP-001": "RuntimeError: no kernel image"}
    for raises, accidents in (([], unsaid), (["RuntimeError: another"], unsaid), (["RuntimeError: no kernel"], {})):
        name = declared(refuses, raises=raises)
        assert judge(Unit(mutant=name)).accidents == accidents


def test_an_accident_fails_the_selftest_and_is_named(declared, monkeypatch):
    name = declared(stale_signature)
    kept = load_mutants()[name]
    monkeypatch.setattr(selftest, "load_mutants", lambda: {name: kept})
    monkeypatch.setattr(selftest, "_judge_all", lambda units, *_: (judge(unit) for unit in units))
    told = []
    answer = command.self_test([name], told.append)
    assert answer.code == 7
    [row] = answer.value["matrix"]
    assert (row["killed"], row["survived"], row["accidents"]) == (False, (), ("AC-OP-001",))
    assert row["how"].startswith("AC-OP-001 killed it by accident: TypeError: stale_signature() missing 1 required")
    assert any(line.startswith("ACCIDENT stale_signature") for line in told)
    assert f"ACCIDENT {name} AC-OP-001" in answer.text
    assert "0 of 1 mutants are killed by the requirements that name them; 1 by accident" in answer.text


def test_one_accident_among_kills_is_enough():
    row = Row("one", "Wrong.", ("AC-OP-001", "AC-OP-002"), (), "off", accidents=("AC-OP-002",))
    assert not row.killed
    assert not SelfTest((row,)).passed
    assert SelfTest((row,)).score.killed == 0


def a_mutant(*raises):
    return Mutant("one", ("AC-OP-001",), "Wrong.", AsyncReferencePlugin, healthy_claims(), raises=raises)


@pytest.mark.parametrize(
    ("message", "stray"),
    [
        ("a process of its own (fork) said TypeError: f() takes 1 argument", "TypeError: f() takes 1 argument"),
        ("it gave AttributeError('no float')", "AttributeError('no float')"),
        ("then raised ValueError: not enough values to unpack", "ValueError: not enough values to unpack"),
        ("then raised ValueError: page 3 is free", ""),
        ("'out' is off by 3", ""),
    ],
)
def test_what_a_check_only_quotes_is_seen_too(message, stray):
    assert accident(a_mutant(), Attempt("failed", message)) == stray
    assert accident(a_mutant(stray), Attempt("failed", message)) == ""


def test_arguments_are_found_by_their_names():
    args = tuple(range(len(CATALOGUE["mha"].args)))
    names = [arg.name for arg in CATALOGUE["mha"].args]
    changed = with_argument("mha", args, scale=lambda value: -value, out_bias=lambda _: None)
    assert changed[names.index("scale")] == -names.index("scale")
    assert changed[names.index("out_bias")] is None
    assert sum(one == other for one, other in zip(args, changed, strict=True)) == len(args) - 2
    with pytest.raises(ValueError, match="op mha has no argument sacle; expected one of x, qkv_weight"):
        with_argument("mha", args, sacle=lambda value: value)


def test_every_mutants_kernels_take_the_arguments_of_their_op(monkeypatch):
    monkeypatch.setattr(functional, "hardtanh", functional.hardtanh)  # put back what one of the mutants patches
    torch.set_num_threads(1)
    kernels = [(name, *pair) for name, one in load_mutants().items() for pair in one.plugin().kernels().items()]
    stale = []
    for name, op, kernel in kernels:
        try:
            inspect.signature(kernel).bind(*CATALOGUE[op].args)
        except TypeError as error:
            stale.append(f"{name}, {op}: {error}")
    assert stale == []
    assert len(kernels) > 1000
