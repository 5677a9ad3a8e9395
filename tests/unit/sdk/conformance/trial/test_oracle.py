"""The oracle: bounds follow what was summed, guards show every byte, arguments keep their strides. Knows no backend."""

import pytest
import torch

from anychip_sdk.conformance.checks.op_special import SPECIAL
from anychip_sdk.conformance.trial.op_cases import HEAD_OPS, geometries, per_op, usual, widths
from anychip_sdk.conformance.trial.oracle import same_bits
from anychip_sdk.conformance.trial.placing import GUARD, guarded
from anychip_sdk.ops import CATALOGUE
from anychip_sdk.testing import check_kernel, random_case
from anychip_sdk.testing.bounds import Numerics
from anychip_sdk.testing.check import expected
from support.op_kv_checks import claims_for

F32, BF16 = torch.float32, torch.bfloat16


def bound_of(name, args, dtype, numerics=Numerics()):
    return expected(CATALOGUE[name], args, dtype, numerics)[1][0]


def test_a_sum_that_cancels_may_be_off_by_its_terms_and_no_other():
    x = torch.tensor([[1000.0, -1000.0, 1.0], [1.0, -1.0, 1.0]])
    bounds = bound_of("linear", (x, torch.ones(1, 3), None), F32)
    assert 300 < bounds[0, 0] / bounds[1, 0] < 1000


def test_the_bound_of_a_sum_grows_with_the_accumulator_that_is_claimed():
    args = random_case("linear", BF16, 0)
    usual_bound, wide_bound = (bound_of("linear", args, BF16, Numerics(acc)) for acc in (None, BF16))
    assert (wide_bound > 20 * usual_bound).float().mean() > 0.5


def test_moving_values_has_no_bound_at_all():
    for name in ("embedding", "kv_write", "select_rows", "argmax", "sample"):
        assert all(float(bound.sum()) == 0 for bound in expected(CATALOGUE[name], random_case(name, F32, 0), F32)[1])


def test_one_missing_term_of_thousands_is_found():
    op = CATALOGUE["linear"]
    args = random_case("linear", BF16, 3, tokens=4, hidden=4096, out=64)

    def short(x, weight, bias):
        return op.reference(x[:, :-1], weight[:, :-1], bias)

    assert check_kernel(op, op.reference, args, BF16).passed
    args32 = random_case("linear", F32, 3, tokens=4, hidden=4096, out=64)
    assert not check_kernel(op, short, args32, F32).passed


def test_overflow_is_infinity_of_the_same_sign():
    op = CATALOGUE["mul"]
    x = torch.tensor([[6e4, -6e4]], dtype=torch.float16)
    assert check_kernel(op, op.reference, (x, x.abs()), torch.float16).passed
    assert not check_kernel(op, lambda x, y: (x * y).abs(), (x, x.abs()), torch.float16).passed
    assert not check_kernel(op, lambda x, y: (x * y).clamp(-65504, 65504), (x, x.abs()), torch.float16).passed


@pytest.mark.parametrize("shift", [0, 1, 3])
def test_a_guarded_tensor_keeps_values_strides_and_what_lies_between(shift):
    wide = torch.arange(40, dtype=BF16).view(4, 10)
    view = wide[:, 3:6]
    guard = guarded(view, torch.device("cpu"), shift)
    assert torch.equal(guard.tensor, view)
    assert guard.tensor.stride() == view.stride()
    assert guard.tensor.data_ptr() % 16 == (2 * shift + 6) % 16
    assert torch.equal(guard.whole, guard.before)
    assert set(guard.whole[: guard.start].tolist()) == set(guard.whole[guard.stop :].tolist()) == {GUARD}
    guard.tensor[0, 0] = 99
    assert int((guard.whole != guard.before).nonzero()[0]) == guard.start + 6


def test_bits_tell_zeros_apart_and_not_a_number_equals_itself():
    nan, zero = torch.tensor([torch.nan]), torch.tensor([0.0])
    assert same_bits(nan, nan.clone())
    assert not same_bits(zero, -zero)
    assert not same_bits(zero, zero.double())


def test_every_op_has_sizes_for_every_check():
    for name in CATALOGUE:
        assert list(widths(name, "tails", "smoke"))
        random_case(name, F32, 0, **usual(name))
        for one in geometries(name, "std") if name in HEAD_OPS else ():
            for sizes in one.sizes:
                random_case(name, F32, 0, **sizes)


def test_special_values_are_planted_in_every_op_whose_arithmetic_defines_them():
    left_out = {"apply_penalties", "mha"}
    assert set(SPECIAL) | left_out == set(CATALOGUE)


def test_ops_on_logits_are_checked_in_one_dtype():
    cases = list(per_op()(claims_for(dtypes=("bfloat16", "float32")), "smoke"))
    assert len([case for case in cases if case.id.startswith("argmax")]) == 1
    assert len([case for case in cases if case.id.startswith("rope")]) == 2
