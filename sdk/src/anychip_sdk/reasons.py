"""Word why a kernel was chosen: one line that names at most two others. Knows names and reasons; knows no kernel."""

from __future__ import annotations

from collections.abc import Sequence

NAMED_MAX = 2  #: kernels that a reason names
REASON_MAX = 80  #: characters that a reason spends on one rejected kernel

Rejected = Sequence[tuple[str, str]]  #: names of kernels, each with why it doesn't fit


def why_own(fit: Sequence[str], rejected: Rejected) -> str:
    """Why a backend's kernel runs, among others of the backend that fit too and others that don't."""
    unfit = _with_reasons(rejected)
    if fit:
        names = _named(fit, ", ", " and ")
        return f"registered before {names}, which would fit too" + (f"; rejected: {unfit}" if unfit else "")
    if unfit:
        return f"the only kernel of the backend that fits; rejected: {unfit}"
    return "the backend's only kernel for it, preferred to the reference"


def why_fallback(rejected: Rejected) -> str:
    """Why the reference runs, and none of the backend's kernels."""
    unfit = _with_reasons(rejected)
    return f"every kernel of the backend was rejected: {unfit}" if unfit else "the backend has no kernel for it"


def _with_reasons(rejected: Rejected) -> str:
    return _named([f"{name}: {_shortened(reason)}" for name, reason in rejected], "; ", "; ")


def _named(texts: Sequence[str], separator: str, last: str) -> str:
    """The first two, and how many more there are."""
    more = len(texts) - NAMED_MAX
    return separator.join(texts[:NAMED_MAX]) + (f"{last}{more} more" if more > 0 else "")


def _shortened(reason: str) -> str:
    return reason if len(reason) <= REASON_MAX else reason[: REASON_MAX - 3].rstrip(" ,") + "..."


__all__ = ["Rejected", "why_fallback", "why_own"]
