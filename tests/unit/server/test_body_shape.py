"""A body's text is looked at once, piece by piece, whatever it holds."""

import json
import time

import pytest

from anychip.recipe.limits import LimitsSection
from anychip.server.body_shape import check_text
from anychip_sdk.errors import RequestInvalid

LIMITS = LimitsSection()
MEGABYTE = 1 << 20


def body_of(number, size=MEGABYTE):
    unit = number + ","
    return ('{"prompt": [' + unit * (size // len(unit)) + "1]}").encode()


def seconds(body):
    started_s = time.thread_time()
    check_text(body, LIMITS)
    return time.thread_time() - started_s


@pytest.mark.parametrize("digits", [20, 70, 99])
def test_numbers_of_many_digits_cost_no_more_than_texts(digits):
    text = json.dumps({"prompt": "a" * MEGABYTE}).encode()
    reference_s = min(seconds(text) for _ in range(3))
    assert min(seconds(body_of("7" * digits)) for _ in range(3)) < 20 * reference_s + 0.02


@pytest.mark.parametrize("number", ["7" * 100, "1" + "0" * 4000, "-" + "0123456789" * 10])
def test_a_number_of_100_digits_is_refused(number):
    check_text(body_of("7" * 99, 100_000), LIMITS)
    with pytest.raises(RequestInvalid, match="100 digits"):
        check_text(body_of(number, 100_000), LIMITS)


def test_a_text_of_digits_is_no_number():
    check_text(json.dumps({"prompt": "7" * 100_000}).encode(), LIMITS)
