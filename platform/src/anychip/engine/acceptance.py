"""Which of the tokens drawn for a sequence are taken, and whether they end it. Knows one sequence; knows no queue."""

from __future__ import annotations

from typing import Literal

from anychip.engine.request import TokenEvent
from anychip.engine.sequence import Sequence
from anychip.engine.step_plan import Drawn


def accept(
    sequence: Sequence, tokens: tuple[int, ...], length_max: int, page_size: int
) -> tuple[int, Literal["stop", "length"] | None]:
    """Append tokens up to the first that ends the sequence; the entries of all but the last are computed.

    Returns:
        How many were appended, and why the sequence ends, if it does; with "stop", because of the last of them.

    Raises:
        ValueError: there are none, or the sequence's pages can't hold their entries, or a step was scheduled behind the
            first of several.
    """
    if len(tokens) != 1:
        _check_room(sequence, tokens, page_size)
    output, limit = sequence.tokens, length_limit(sequence, length_max)
    before, is_end = len(output), False
    for token in tokens:
        is_end = sequence.ends_with(token)
        output.append(token)
        if is_end or len(output) >= limit:
            break
    count = len(output) - before
    if count > 1:
        sequence.computed += count - 1
        sequence.scheduled = sequence.computed
    if is_end:
        return count, "stop"
    return count, "length" if len(output) >= limit else None


def length_limit(sequence: Sequence, length_max: int) -> int:
    """How many tokens, the prompt's included, end a sequence whatever they are."""
    limit = sequence.output_limit
    return length_max if limit is None else min(length_max, sequence.prompt_len + limit)


def event_of(sequence: Sequence, drawn: Drawn, count: int, reason: Literal["stop", "length"] | None) -> TokenEvent:
    """The event that tells the first `count` of the drawn tokens to whoever reads the sequence."""
    tokens = drawn.tokens
    if reason == "stop":
        shown = count - 1
        return sequence.event(list(tokens[:shown]), stop_token_id=tokens[shown], logprobs=drawn.logprobs[:shown])
    return sequence.event([*tokens[:count]], None, None, drawn.logprobs[:count])


def fault_of(sequence: Sequence) -> str:
    """What is wrong where a step found nothing to choose from, and where."""
    place = len(sequence.tokens) - 1
    what = f"non-finite logits for output token {sequence.output_count}, behind token id {sequence.tokens[place]} at"
    after = ", after its bias, penalties and bans" if sequence.request.params.is_adjusted else ""
    return f"{what} position {place}{after}: the largest is NaN or infinite; only this request has ended"


def _check_room(sequence: Sequence, tokens: tuple[int, ...], page_size: int) -> None:
    if sequence.scheduled != sequence.computed:
        message = (
            f"a runner drew {len(tokens)} tokens at once for {sequence!r}, behind which a step runs already that takes "
            "them for one: expected is one, or a scheduler without overlap"
        )
        raise ValueError(message)
    room = len(sequence.pages) * page_size - sequence.computed
    if not 1 <= len(tokens) <= room + 1:
        message = (
            f"a runner drew {len(tokens)} tokens at once for {sequence!r}, 1 to {room + 1} are expected: "
            "the entries of all but the last must be in its pages"
        )
        raise ValueError(message)


__all__ = ["accept", "event_of", "fault_of", "length_limit"]
