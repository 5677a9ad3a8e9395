"""Which of the tokens drawn for a sequence are taken, and whether they end it. Knows one sequence; knows no queue."""

from __future__ import annotations

from typing import Literal

from anychip.engine.sequence import Sequence


def accept(
    sequence: Sequence, tokens: tuple[int, ...], length_max: int, page_size: int
) -> tuple[int, Literal["stop", "length"] | None]:
    """Append tokens up to the first that ends the sequence; the entries of all but the last are computed.

    Returns:
        How many were appended, and why the sequence ends, if it does; with "stop", because of the last of them.

    Raises:
        ValueError: there are none, or the sequence's pages can't hold their entries.
    """
    if len(tokens) != 1:
        _check_room(sequence, tokens, page_size)
    output, limit = sequence.tokens, sequence.output_limit
    limit = length_max if limit is None else min(length_max, sequence.prompt_len + limit)
    before, is_end = len(output), False
    for token in tokens:
        is_end = sequence.ends_with(token)
        output.append(token)
        if is_end or len(output) >= limit:
            break
    count = len(output) - before
    sequence.computed += count - 1
    if is_end:
        return count, "stop"
    return count, "length" if len(output) >= limit else None


def _check_room(sequence: Sequence, tokens: tuple[int, ...], page_size: int) -> None:
    room = len(sequence.pages) * page_size - sequence.computed
    if not 1 <= len(tokens) <= room + 1:
        message = (
            f"a runner drew {len(tokens)} tokens at once for {sequence!r}, 1 to {room + 1} are expected: "
            "the entries of all but the last must be in its pages"
        )
        raise ValueError(message)


__all__ = ["accept"]
