"""Reasons name what a kernel was preferred to, in one line of bounded length. Knows no registry."""

import pytest

from anychip_sdk.reasons import why_fallback, why_own

SMALL = ("small", "head_dim is 80, it needs at most 64")
HALF = ("half", "dtype is bfloat16, it has float16")


@pytest.mark.parametrize(
    ("fit", "rejected", "text"),
    [
        ([], [], "the backend's only kernel for it, preferred to the reference"),
        (["plain"], [], "registered before plain, which would fit too"),
        (["a", "b", "c", "d"], [], "registered before a, b and 2 more, which would fit too"),
        (
            [],
            [SMALL],
            "the only kernel of the backend that fits; rejected: small: head_dim is 80, it needs at most 64",
        ),
        (
            ["plain"],
            [HALF],
            "registered before plain, which would fit too; rejected: half: dtype is bfloat16, it has float16",
        ),
    ],
)
def test_a_backends_kernel_says_which_others_there_are(fit, rejected, text):
    assert why_own(fit, rejected) == text


def test_the_fallback_names_two_rejected_kernels_and_counts_the_rest():
    assert why_fallback([]) == "the backend has no kernel for it"
    assert why_fallback([SMALL, HALF, SMALL]) == (
        "every kernel of the backend was rejected: small: head_dim is 80, it needs at most 64; "
        "half: dtype is bfloat16, it has float16; 1 more"
    )


def test_a_long_reason_is_cut():
    cut = why_fallback([("picky", "head_dim is 80, it needs one of " + ", ".join(map(str, range(500))))])
    assert cut.endswith(", 12, 13...")
    assert len(cut) <= len("every kernel of the backend was rejected: picky: ") + 80
