"""Resolving ops to kernels, and the reason for each rejection. Knows no backend."""

import pytest
import torch

from anychip_sdk import OpKey, OpRegistry, at_least, at_most, multiple_of, one_of
from anychip_sdk.registry import REFERENCE, Need, Override

BF16 = torch.bfloat16
KEY = OpKey("linear", 1, BF16)


def kernel(*args):
    return args


def other(*args):
    return args


@pytest.fixture
def registry():
    made = OpRegistry()
    made.registrar(REFERENCE).register("linear", kernel, dtypes=(BF16, torch.float32), name="reference")
    return made


def test_the_reference_runs_what_nobody_registered(registry):
    found = registry.resolve(KEY, {})
    assert found.is_fallback
    assert found.reason == "the backend has no kernel for it"
    assert found.rejected == ()


def test_the_first_kernel_that_fits_wins_and_the_rest_say_why_not(registry):
    chip = registry.registrar("chip")
    chip.register("linear", kernel, dtypes=(BF16,), requires={"head_dim": one_of(64, 128)}, name="small")
    chip.register("linear", kernel, dtypes=(torch.float16,), name="half")
    chip.register("linear", kernel, dtypes=(BF16,), name="good")
    chip.register("linear", kernel, dtypes=(BF16,), name="late")
    found = registry.resolve(KEY, {"head_dim": 80})
    assert (found.kernel.name, found.provider) == ("good", "chip")
    assert found.reason == (
        "registered before late, which would fit too; "
        "rejected: small: head_dim is 80, it needs one of 64, 128; half: dtype is bfloat16, it has float16"
    )
    assert [(one.kernel, one.reason) for one in found.rejected] == [
        ("small", "head_dim is 80, it needs one of 64, 128"),
        ("half", "dtype is bfloat16, it has float16"),
        ("late", "good comes first"),
        ("reference", "good comes first"),
    ]


def test_a_kernel_without_rivals_is_preferred_to_the_reference(registry):
    registry.registrar("chip").register("linear", kernel, dtypes=(BF16,), name="good")
    assert registry.resolve(KEY, {}).reason == "the backend's only kernel for it, preferred to the reference"


def test_the_one_kernel_that_fits_names_what_was_rejected_before_and_after_it(registry):
    chip = registry.registrar("chip")
    chip.register("linear", kernel, dtypes=(BF16,), requires={"head_dim": at_most(64)}, name="small")
    chip.register("linear", kernel, dtypes=(BF16,), name="good")
    chip.register("linear", kernel, dtypes=(torch.float16,), name="half")
    assert registry.resolve(KEY, {"head_dim": 80}).reason == (
        "the only kernel of the backend that fits; "
        "rejected: small: head_dim is 80, it needs at most 64; half: dtype is bfloat16, it has float16"
    )


def test_a_reason_is_one_line_of_bounded_length_however_many_kernels_there_are(registry):
    chip = registry.registrar("chip")
    for number in range(9):
        need = {"head_dim": one_of(*range(1000))}
        chip.register("linear", kernel, dtypes=(BF16,), requires=need, name=f"small{number}")
        chip.register("linear", kernel, dtypes=(BF16,), name=f"good{number}")
    reason = registry.resolve(KEY, {"head_dim": 1000}).reason
    assert reason.startswith(
        "registered before good1, good2 and 6 more, which would fit too; rejected: small0: head_dim"
    )
    assert reason.endswith("...; 7 more")
    assert len(reason) < 300


def test_of_several_facts_the_one_with_the_earliest_kernel_is_preferred(registry):
    chip = registry.registrar("chip")
    facts = [{"block": 32}, {"block": 0}]
    assert registry.preferred(KEY, facts) == 0  # both the reference's
    chip.register("linear", kernel, dtypes=(BF16,), requires={"block": one_of(0)}, name="rows")
    chip.register("linear", kernel, dtypes=(BF16,), name="any")
    assert registry.preferred(KEY, facts) == 1
    assert registry.preferred(KEY, facts, [Override("linear", ban=("chip",))]) == 0
    assert registry.preferred(KEY, facts, [Override("linear", provider="nobody")]) == 0


def test_when_every_kernel_is_rejected_the_reference_says_so(registry):
    registry.registrar("chip").register("linear", kernel, dtypes=(torch.float16,), name="half")
    found = registry.resolve(KEY, {})
    assert found.is_fallback
    assert found.reason == "every kernel of the backend was rejected: half: dtype is bfloat16, it has float16"


def test_an_override_bans_insists_and_changes_the_dtype(registry):
    registry.registrar("chip").register("linear", kernel, dtypes=(BF16,))
    banned = registry.resolve(KEY, {}, [Override("linear", ban=("chip",))])
    assert banned.is_fallback
    assert banned.rejected[0].reason == "banned by the recipe's ops.overrides"
    insisted = registry.resolve(KEY, {}, [Override("linear", provider=REFERENCE)])
    assert insisted.is_fallback
    assert insisted.reason == "the recipe's ops.overrides insist on 'reference'"
    wide = registry.resolve(KEY, {}, [Override("linear", compute_dtype=torch.float32)])
    assert wide.compute_dtype == torch.float32
    assert wide.is_fallback


def test_overrides_of_other_ops_and_dtypes_do_not_apply(registry):
    registry.registrar("chip").register("linear", kernel, dtypes=(BF16,))
    overrides = [Override("rope", ban=("chip",)), Override("linear", dtype=torch.float32, ban=("chip",))]
    assert registry.resolve(KEY, {}, overrides).provider == "chip"


def test_bans_add_up_and_nothing_left_is_none_with_all_reasons(registry):
    registry.registrar("chip").register("linear", kernel, dtypes=(BF16,))
    overrides = [Override("linear", ban=("chip",)), Override("linear", ban=(REFERENCE,))]
    assert registry.resolve(KEY, {}, overrides) is None
    reasons = registry.reject_all(KEY, {}, overrides)
    assert {one.provider for one in reasons} == {"chip", REFERENCE}


@pytest.mark.parametrize(
    ("need", "good", "bad", "text"),
    [
        (one_of(1, 16), 16, 3, "one of 1, 16"),
        (at_most(128), 128, 129, "at most 128"),
        (at_least(16), 16, 15, "at least 16"),
        (multiple_of(8), 64, 60, "a multiple of 8"),
    ],
)
def test_needs_test_and_say_what_they_need(need, good, bad, text):
    assert need.test(good)
    assert not need.test(bad)
    assert not need.test(None)
    assert need.text == text


def test_an_unknown_op_is_refused_with_the_nearest_name(registry):
    with pytest.raises(ValueError, match="Did you mean 'linear'"):
        registry.registrar("chip").register("liner", kernel, dtypes=(BF16,))


def test_a_wrong_version_no_dtype_and_a_repeated_name_are_refused(registry):
    chip = registry.registrar("chip")
    with pytest.raises(ValueError, match="v2; the catalogue has v1"):
        chip.register("linear", kernel, dtypes=(BF16,), version=2)
    with pytest.raises(ValueError, match="for no dtype"):
        chip.register("linear", kernel, dtypes=())
    chip.register("linear", kernel, dtypes=(BF16,))
    with pytest.raises(ValueError, match="twice under the name 'kernel'"):
        chip.register("linear", kernel, dtypes=(BF16,))
    chip.register("linear", other, dtypes=(BF16,))


def test_the_vendor_comes_before_the_reference_whatever_the_order(registry):
    registry.registrar("chip").register("linear", kernel, dtypes=(BF16,))
    assert [one.provider for one in registry.kernels("linear")] == ["chip", REFERENCE]


def test_a_need_that_raises_passes_its_kernel_over_and_says_so(registry):
    need = Need(lambda fact: fact > 3, "above 3")
    registry.registrar("chip").register("linear", kernel, dtypes=(BF16,), requires={"head_dim": need}, name="odd")
    found = registry.resolve(KEY, {"head_dim": None})
    assert found.is_fallback
    assert "head_dim is None, and asking whether that will do raised TypeError" in found.rejected[0].reason
