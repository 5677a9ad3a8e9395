"""What every model's config holds, and the questions that the platform asks a family. Reads no file.

The raw JSON is read rather than a library's config object: a library fills in defaults, after which nobody can
tell a value of the checkpoint from a value of the library's version.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, TypeVar

import torch
from torch import nn

from anychip.models.gguf_names import GGUFNames
from anychip.models.raw import Fields
from anychip.models.source import Source, same_name

_DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}

Self = TypeVar("Self", bound="ModelConfig")


@dataclass(frozen=True)
class ModelConfig(ABC):
    """One model of a family. Each family is a subclass: its fields are what its modules need, its class attributes how
    checkpoints name it, its methods the answers to what the platform asks of a model.

    `architectures` and `model_type` are config.json's; `gguf` is None where no GGUF file of the family is read.
    `dtype` is None where the checkpoint names none. Of the config's keys that a family doesn't read, `fixed` are those
    that it computes with these values only, and `unused` those that mean nothing to it; of the others,
    `anychip.models.keys` knows which may be ignored.
    """

    architectures: ClassVar[tuple[str, ...]]
    model_type: ClassVar[str]
    gguf: ClassVar[GGUFNames | None] = None
    fixed: ClassVar[Mapping[str, Sequence[object]]] = {}
    unused: ClassVar[frozenset[str]] = frozenset()

    architecture: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    max_positions: int
    tie_word_embeddings: bool
    dtype: torch.dtype | None
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    pad_token_id: int | None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Files of the family that a class derives from are not its own."""
        super().__init_subclass__(**kwargs)
        if "gguf" not in vars(cls):
            cls.gguf = None

    @classmethod
    @abstractmethod
    def parse(cls, architecture: str, fields: Fields, generation: Fields) -> ModelConfig:
        """Read config.json and generation_config.json; what is wrong is noted in the fields' problems.

        A key that would be computed wrongly is a problem, never ignored.
        """

    @abstractmethod
    def build(self) -> nn.Module:
        """The modules, on the meta device, with the checkpoint's names for the parameters."""

    @property
    def longest_context(self) -> int:
        """Positions that the model can have, if its rotation is scaled for more than it was trained with."""
        return self.max_positions

    @property
    def notes(self) -> tuple[str, ...]:
        """What the family has decided and a plan should tell."""
        return ()

    def facts(self) -> dict[str, int]:
        """Sizes by the names that op schemas and kernels' requirements use. Families add theirs."""
        return {"layers": self.num_layers, "hidden": self.hidden_size, "vocab": self.vocab_size}

    def copies(self) -> Mapping[str, str]:
        """Tensors that a checkpoint may hold though they are another one's copy, and which that is."""
        return {}

    def ignores(self, tensor: str) -> bool:
        """Whether a checkpoint may hold a tensor that is never read."""
        return False

    def for_tensors(self: Self, names: Collection[str]) -> Self:
        """The same config, for a checkpoint that holds tensors of these names, where there is more than one layout."""
        return self

    def sources(self, name: str, shape: tuple[int, ...]) -> tuple[Source, ...]:
        """Where the numbers of a parameter stand in the checkpoint."""
        return same_name(name, shape)

    def with_layers(self: Self, layers: int, vocab_size: int) -> Self:
        """The first layers of the same model, with another vocabulary: for verification and for estimates."""
        return replace(self, num_layers=layers, vocab_size=vocab_size)

    def sample(self: Self, vocab_size: int) -> Self:
        """The same model with a layer of each kind: what verification compares."""
        return self.with_layers(1, vocab_size)


class TokenIds(NamedTuple):
    """The ids that a text begins with, ends at and is padded with."""

    bos: int | None
    eos: tuple[int, ...]
    pad: int | None


def parse_dtype(fields: Fields) -> torch.dtype | None:
    """The dtype under either of its keys; both must agree."""
    found: dict[str, torch.dtype] = {}
    for key in ("dtype", "torch_dtype"):
        name = fields.string(key, "").removeprefix("torch.")
        if name in ("", "auto"):
            continue
        if name not in _DTYPES:
            fields.complain(key, f"one of {', '.join(_DTYPES)}")
            continue
        found[key] = _DTYPES[name]
    if len(set(found.values())) > 1:
        fields.problems.append(
            f"{fields.where}: dtype is {fields.raw['dtype']!r} but torch_dtype is {fields.raw['torch_dtype']!r}; "
            "keep one of the two"
        )
    return next(iter(found.values()), None)


def check_sampling(generation: Fields) -> None:
    """The defaults of requests that choose nothing; -1 and 0 switch top_k off, 0 the temperature."""
    generation.optional_number("temperature", minimum=0, maximum=100)
    generation.optional_number("top_p", above=0, maximum=1)
    generation.optional_number("min_p", minimum=0, maximum=1)
    generation.optional_number("repetition_penalty", above=0, maximum=100)
    generation.optional_number("top_k", minimum=-1, maximum=2**31)


def parse_token_ids(fields: Fields, generation: Fields, bos: int | None, eos: int | tuple[int, ...] | None) -> TokenIds:
    """The ids of both files; `bos` and `eos` are the class's own, for keys that are absent.

    generation_config.json's ids come first; config.json's end ids stop the text too: chat models often name the
    end of the turn in one file and the end of the text in the other.
    """
    own = (eos,) if isinstance(eos, int) else eos or ()
    default = own if "eos_token_id" not in fields.raw else ()
    ours, theirs = generation.token_ids("eos_token_id"), fields.token_ids("eos_token_id")
    ends = dict.fromkeys((*ours, *theirs)) or dict.fromkeys(default)
    first_bos = (*generation.token_ids("bos_token_id"), *fields.token_ids("bos_token_id"))
    begin = first_bos[0] if first_bos else (bos if "bos_token_id" not in fields.raw else None)
    first_pad = (*generation.token_ids("pad_token_id"), *fields.token_ids("pad_token_id"))
    return TokenIds(begin, tuple(ends), first_pad[0] if first_pad else None)


__all__ = ["ModelConfig", "TokenIds", "check_sampling", "parse_dtype", "parse_token_ids"]
