"""Make the prompts of one run as token ids, other ones in every run, so that no earlier run's cache helps.

Knows lengths, seeds and texts; asks a tokenizer that it is given; knows no HTTP.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from anychip.bench.workload import Texts, Workload
from anychip_sdk.errors import PreconditionFailed

Tokenize = Callable[[str], Awaitable[Sequence[int]]]
#: Ids below are control tokens in many vocabularies, and those above in some; a small vocabulary is used whole.
LOW_ID, HIGH_ID = 1_000, 40_000
DEFAULT_VOCAB = 32_000  #: of a service that doesn't tell
CHARACTERS_PER_TOKEN = 4


class Prompt(NamedTuple):
    """One request to come."""

    ids: tuple[int, ...]
    output_tokens: int


async def make_prompts(workload: Workload, count: int, seed: str, vocab_size: int, tokenize: Tokenize) -> list[Prompt]:
    """The prompts of one run; the same seed gives the same ones.

    Raises:
        PreconditionFailed: texts can't be made long enough with this tokenizer.
    """
    numbers = random.Random(seed)
    writer = _Writer(workload.prompt.texts, numbers, vocab_size, tokenize)
    shared = await writer.prefix(workload.prompt.shared_tokens)
    prompts = []
    for _ in range(count):
        own = await writer.own(workload.prompt.own_tokens.draw(numbers))
        prompts.append(Prompt((*shared, *own), workload.output_tokens.draw(numbers)))
    return prompts


class _Writer:
    def __init__(self, texts: Texts | None, numbers: random.Random, vocab_size: int, tokenize: Tokenize) -> None:
        self._texts = texts
        self._numbers = numbers
        self._ids = range(LOW_ID, min(HIGH_ID, vocab_size)) if vocab_size > 2 * LOW_ID else range(vocab_size)
        self._tokenize = tokenize

    async def prefix(self, count: int) -> Sequence[int]:
        return await self._cut("", count) if self._texts is not None else self._random(count)

    async def own(self, count: int) -> Sequence[int]:
        """A prompt's own tokens: its text ends as the workload says, and is cut before that end."""
        if self._texts is None:
            return self._random(count)
        values = self._values()
        tail = tuple(await self._tokenize(self._texts.tail.format_map(values))) if self._texts.tail else ()
        if len(tail) >= count:
            return tail[-count:]
        return (*await self._cut(self._texts.head.format_map(values), count - len(tail)), *tail)

    def _random(self, count: int) -> Sequence[int]:
        return self._numbers.choices(self._ids, k=count)

    async def _cut(self, text: str, count: int) -> Sequence[int]:
        """The first tokens of the text, which is continued until it has that many."""
        if not count:
            return ()
        wanted_characters = CHARACTERS_PER_TOKEN * count
        for _ in range(8):
            text += self._sentences(wanted_characters - len(text))
            ids = await self._tokenize(text)
            if len(ids) >= count:
                return ids[:count]
            wanted_characters *= 2
        raise PreconditionFailed(f"a text of {len(text)} characters has {len(ids)} tokens; {count} are wanted")

    def _sentences(self, characters: int) -> str:
        assert self._texts is not None
        said, length = [], 0
        while length < characters:
            said.append(self._numbers.choice(self._texts.sentences).format_map(self._values()))
            length += len(said[-1])
        return "".join(said)

    def _values(self) -> dict[str, str]:
        assert self._texts is not None
        return {name: self._numbers.choice(choices) for name, choices in self._texts.values.items()}


__all__ = ["DEFAULT_VOCAB", "Prompt", "Tokenize", "make_prompts"]
