"""One completion being computed: its tokens, its pages and its place in the queue. Knows no pool, tree or device."""

from __future__ import annotations

from array import array
from collections.abc import Sequence as SequenceOf
from enum import Enum
from typing import TYPE_CHECKING

from anychip.engine.request import FinishReason, GenerateRequest, LogProb, TokenEvent
from anychip.engine.seeds import derive_seed, draw_seed
from anychip.engine.state_ops import NO_SLOT

if TYPE_CHECKING:
    from anychip.engine.radix_cache import Node

TOKEN_BYTES = 4  #: of a token in a cache key


class State(Enum):
    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


class Sequence:
    """The prompt and output of one completion, and how far its keys and values are computed.

    `tokens[:computed]` have their keys and values in `pages`; a running sequence always has computed < len(tokens),
    as the last sampled token has not been through the model yet. Steps whose results aren't there yet bring it to
    `scheduled`, which is one more than there are tokens where two of them draw for it. Before the fork of a request
    with n > 1 only index 0 is scheduled, and holds the others in `forks`.
    """

    __slots__ = (
        "_key",
        "cached_pages",
        "cached_tokens",
        "computed",
        "eos_token_ids",
        "finish_reason",
        "forks",
        "index",
        "is_admitted_before",
        "matched_tokens",
        "matched_version",
        "node",
        "order",
        "overtaken",
        "owned",
        "pages",
        "prompt_len",
        "request",
        "scheduled",
        "seed",
        "shared_tokens",
        "slot",
        "state",
        "table_version",
        "tokens",
    )

    def __init__(
        self,
        request: GenerateRequest,
        index: int = 0,
        *,
        order: int = 0,
        base_seed: int | None = None,
        eos_token_ids: tuple[int, ...] = (),
    ) -> None:
        if base_seed is None:
            base_seed = draw_seed() if request.params.seed is None else request.params.seed
        self.request = request
        self.index = index
        self.order = order  #: of arrival, the same for all completions of a request
        self.seed = derive_seed(base_seed, index)
        self.eos_token_ids = eos_token_ids
        self.tokens: list[int] = list(request.prompt_ids)
        self.prompt_len = len(self.tokens)
        self.computed = 0
        self.scheduled = 0  #: where its next row starts; `computed`, but for rows in flight
        self.pages: list[int] = []
        self.owned = 0  #: tokens before this one can be written without a look at the pool
        self.table_version = 0  #: grows when an entry of `pages` changes, other than by appending
        self.state = State.WAITING
        self.finish_reason: FinishReason | None = None
        self.node: Node | None = None  #: the locked end of its pages in the tree
        self.cached_pages = 0  #: leading pages that are the tree's
        self.cached_tokens = 0
        self.slot = NO_SLOT  #: of its state, in a model with slot states; taken with the pages
        self.shared_tokens = 0  #: of such a model: how many the tree had when the table was opened, usable or not
        self.is_admitted_before = False
        self.forks: list[Sequence] = []
        self.overtaken = 0  #: later requests that were admitted first
        self.matched_tokens = 0  #: the last look into the tree, for ordering only
        self.matched_version = -1
        self._key = bytearray()

    @property
    def id(self) -> str:
        return self.request.id

    @property
    def width(self) -> int:
        """Rows that it takes, or will take after the fork."""
        return 1 + len(self.forks)

    @property
    def output_count(self) -> int:
        return len(self.tokens) - self.prompt_len

    @property
    def output_ids(self) -> list[int]:
        """Every sampled token, also the one that ended the text."""
        return self.tokens[self.prompt_len :]

    @property
    def output_limit(self) -> int | None:
        return self.request.params.max_tokens

    def key(self) -> bytearray:
        """The tokens as the cache's key, TOKEN_BYTES each. Not to be changed."""
        known = len(self._key) // TOKEN_BYTES
        if known < len(self.tokens):
            self._key += encode(self.tokens[known:] if known else self.tokens)
        return self._key

    def key_until(self, tokens: int) -> bytes:
        return bytes(self.key()[: tokens * TOKEN_BYTES])

    def ends_with(self, token: int) -> bool:
        """Whether this token, sampled next, ends the text."""
        params = self.request.params
        if self.output_count < params.min_tokens:
            return False
        return token in params.stop_token_ids or (not params.ignore_eos and token in self.eos_token_ids)

    def event(
        self,
        token_ids: list[int],
        stop_token_id: int | None = None,
        error: str | None = None,
        logprobs: tuple[LogProb, ...] = (),
    ) -> TokenEvent:
        return TokenEvent(
            request_id=self.request.id,
            index=self.index,
            token_ids=token_ids,
            finish_reason=self.finish_reason,
            stop_token_id=stop_token_id,
            prompt_tokens=self.prompt_len,
            cached_tokens=self.cached_tokens,
            completion_tokens=self.output_count,
            error=error,
            logprobs=logprobs,
        )

    def __repr__(self) -> str:
        return (
            f"Sequence({self.id}/{self.index} {self.state.value}, {self.computed} of {len(self.tokens)} tokens, "
            f"{len(self.pages)} pages)"
        )


def completions(request: GenerateRequest, order: int, eos_token_ids: tuple[int, ...]) -> list[Sequence]:
    """All n of a request; the first holds the others as its forks."""
    base_seed = draw_seed() if request.params.seed is None else request.params.seed
    first, *others = [
        Sequence(request, index, order=order, base_seed=base_seed, eos_token_ids=eos_token_ids)
        for index in range(request.params.n)
    ]
    first.forks = others
    return [first, *others]


def encode(tokens: SequenceOf[int]) -> bytes:
    return array("i", tokens).tobytes()


__all__ = ["TOKEN_BYTES", "Sequence", "State", "completions", "encode"]
