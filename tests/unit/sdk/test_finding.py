"""A finding says what is wrong and what to do, or is refused."""

import pytest

from anychip_sdk import Finding
from anychip_sdk.finding import STATUSES


@pytest.mark.parametrize("status", STATUSES)
def test_a_finding_of_each_status_is_made_with_what_it_needs(status):
    assert Finding("driver", status, "4.0 is installed", hint="install 5.0").status == status


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        (("driver", "bad", "4.0"), "status is 'bad', must be one of ok, warn, fail, info"),
        (("", "ok", "4.0"), "area and what must not be empty"),
        (("driver", "ok", " "), "area and what must not be empty"),
        (("driver", "warn", "4.0"), "status warn needs a hint"),
        (("driver", "fail", "4.0"), "status fail needs a hint"),
    ],
)
def test_a_finding_that_helps_nobody_is_refused(values, problem):
    with pytest.raises(ValueError, match=problem):
        Finding(*values)
