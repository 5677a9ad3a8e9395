"""Whether a step is scheduled while the one before it runs. Knows batches and pages; changes nothing.

What such a step takes for granted: each draw in flight brings one token and ends nothing, unless by its length, which
is known. A sequence that ends all the same, by its token or because its client left, has a row in the step behind. That
row computes a token that nobody gets, and writes an entry into a page that may be another's by then. It does no harm,
since whatever runs on the device runs in the order in which it was submitted: whoever gets the page was scheduled
later, so it writes after that row did, and reads only what it wrote. Nor can the entry be in a page that is cached: the
tree gets whole pages of tokens that were committed, and the entry's place lies behind them.

All else that would have to be known before is an obstacle, and the step is scheduled when it is.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

from anychip.engine.acceptance import length_limit
from anychip.engine.batch import Batch
from anychip.engine.kv_tables import KVTables
from anychip.engine.sequence import Sequence

MOST_IN_FLIGHT = 2  #: the step that runs, and one that waits behind it

TOO_MANY = "a step waits behind the one that runs already"
PAGES = "pages have run out, and what ends now may give some back: nothing is retracted before"
FORKS = "a prompt forks, and its completions have pages when it is computed"
PENALTIES = "a penalty counts the token that is being drawn"
SNAPSHOTS = "a chunk of a prompt may leave a snapshot of its slot, which the next step would change"


def obstacle(in_flight: SequenceOf[Batch], decodes: SequenceOf[Sequence], tables: KVTables) -> str | None:
    """Why the step behind these can't be scheduled yet; None where it can.

    Args:
        decodes: of that step.
    """
    if len(in_flight) >= MOST_IN_FLIGHT:
        return TOO_MANY
    for batch in in_flight:
        chunks = batch.rows[batch.decode_rows :]
        if any(row.samples > 1 for row in chunks):
            return FORKS
        if chunks and tables.slots is not None and tables.cache is not None:
            return SNAPSHOTS
        if any(row.samples and row.sequence.request.params.is_penalised for row in batch.rows):
            return PENALTIES
    return PAGES if in_flight and tables.growth(decodes) > tables.pages_available else None


def following(decoding: SequenceOf[Sequence], prefilling: SequenceOf[Sequence], length_max: int) -> list[Sequence]:
    """The decodes of the step behind one that runs: without those that the token being drawn brings to their limit."""
    drawing = [*decoding, *(one for one in prefilling if one.scheduled == len(one.tokens))]
    return [
        one for one in drawing if one.scheduled < len(one.tokens) or len(one.tokens) + 1 < length_limit(one, length_max)
    ]


__all__ = ["FORKS", "MOST_IN_FLIGHT", "PAGES", "PENALTIES", "SNAPSHOTS", "TOO_MANY", "following", "obstacle"]
