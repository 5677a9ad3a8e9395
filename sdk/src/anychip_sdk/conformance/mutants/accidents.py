"""Whether a mutant was killed by its fault, or by an exception that nobody meant. Knows no check.

A mutant that was written for other arguments than it gets raises where it should be wrong. Its requirement fails all
the same, and would go on doing so if its check compared nothing: such a kill says nothing of the check.
"""

from __future__ import annotations

import re

from anychip_sdk.conformance.mutants.base import Mutant
from anychip_sdk.conformance.run.attempt import Attempt

#: what code raises that is called otherwise than it was written for, where a check but quotes it, as type and text or
#: as repr: what another thread or process raised has no traceback here
STALE = re.compile(
    r"\b(?:TypeError|AttributeError|IndexError|KeyError|NameError|UnboundLocalError|ImportError|ModuleNotFoundError"
    r"|ValueError(?=(?:: |\(')(?:not enough|too many) values to unpack))(?=[:(]).*"
)


def accident(mutant: Mutant, attempt: Attempt) -> str:
    """The exception that killed a mutant whose fault it isn't; nothing where the fault did."""
    quoted = STALE.search(attempt.message)
    stray = attempt.raised or (quoted.group() if quoted else "")
    return "" if any(text in stray for text in mutant.raises) else stray


__all__ = ["STALE", "accident"]
