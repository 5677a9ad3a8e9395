"""What a runner is asked to do in one step, and what it answers: plain data that one process can send to another.

A plan says what changed since the last one: a runner keeps each sequence's pages, the token that it sampled last and
what penalties count, until the plan drops the sequence. So every runner must see every plan, in order.
"""

from __future__ import annotations

from typing import Union

import msgspec

from anychip.engine.request import GREEDY_BELOW, LogProb
from anychip.engine.state_ops import NO_SLOT, StateOp


class Sampling(msgspec.Struct, frozen=True, omit_defaults=True):
    """How the tokens of one completion are chosen; the same as long as it runs."""

    seed: int  #: 64 bits; with the position of an output token it gives the token's random number
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    min_tokens: int = 0
    banned: tuple[int, ...] = ()  #: what may not be sampled before `min_tokens`
    logprobs: int | None = None  #: None: not wanted; n: of the chosen token and the n likeliest

    @property
    def is_greedy(self) -> bool:
        return self.temperature < GREEDY_BELOW

    @property
    def is_penalised(self) -> bool:
        return bool(self.repetition_penalty != 1.0 or self.presence_penalty or self.frequency_penalty)


class History(msgspec.Struct, frozen=True, gc=False):
    """What the penalties of a completion count, up to a step."""

    prompt: list[int]
    output: list[int]


class Draw(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One completion's next token, to be chosen from its row's last logits."""

    sequence: int  #: the completion that gets the token: the row's own, or one of its forks
    step: int  #: output tokens that it has already
    sampling: Sampling
    history: History | None = None  #: of a penalised completion, with its first draw alone


class RowPlan(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A run of one sequence's tokens that goes through the model."""

    sequence: int
    start: int  #: position of the first token; all before have their entries in the pages
    count: int
    pages_from: int  #: what the runner knows of the page table up to here still holds
    pages: list[int]  #: the rest of it
    tokens: list[int]  #: all that the host knows: the run, without its first token where that has a parent
    parent: int | None = None  #: the first token is the one that the runner sampled last for this sequence
    draws: tuple[Draw, ...] = ()  #: none before a prompt's end; several where it forks
    slot: int = NO_SLOT  #: of the sequence's states, in a model that keeps slots

    @property
    def end(self) -> int:
        return self.start + self.count


class StepPlan(msgspec.Struct, frozen=True, omit_defaults=True, tag="step"):
    """The rows of one forward and what comes before it.

    Order: forget what is dropped, copy pages, clear and copy slots, run. Rows with a parent come first, decodes before
    chunks of prompts.
    """

    number: int
    rows: tuple[RowPlan, ...]
    decode_rows: int  #: how many of the first rows are decodes, of one token each
    copies: tuple[tuple[int, int], ...] = ()  #: (source page, target page)
    state_ops: tuple[StateOp, ...] = ()  #: one after the other
    dropped: tuple[int, ...] = ()  #: sequences that end, or give their pages up; one may come back as if it were new

    @property
    def draws(self) -> list[Draw]:
        """Of all rows in order, which is the order of a result's."""
        return [draw for row in self.rows for draw in row.draws]


class Continuation(msgspec.Struct, frozen=True, omit_defaults=True, tag="next"):
    """The last step's rows once more, each one token further: what most steps of running decodes are.

    It follows a step of which each row had a parent and one token, or a continuation of one.
    """

    number: int
    pages: tuple[tuple[int, int], ...] = ()  #: (row, page): what rows got since, in order


AnyStepPlan = Union[StepPlan, Continuation]


class Drawn(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """The answer to one draw.

    No token where the logits, after bias and penalties, were not finite: there is nothing to choose from. Several
    where a runner gets ahead by more than one; the entries of all but the last are then in the pages.
    """

    tokens: tuple[int, ...]
    logprobs: tuple[LogProb, ...] = ()  #: one for each token, where wanted


class StepResult(msgspec.Struct, frozen=True, omit_defaults=True):
    number: int  #: the plan's
    drawn: list[Drawn]  #: for each draw of the plan, in order


encode = msgspec.msgpack.Encoder().encode
decode_plan = msgspec.msgpack.Decoder(AnyStepPlan).decode
decode_result = msgspec.msgpack.Decoder(StepResult).decode

__all__ = [
    "AnyStepPlan",
    "Continuation",
    "Draw",
    "Drawn",
    "History",
    "RowPlan",
    "Sampling",
    "StepPlan",
    "StepResult",
    "decode_plan",
    "decode_result",
    "encode",
]
