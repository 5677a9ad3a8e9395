"""What a checkpoint says about its tensors, and the reader's contract. Knows names and bytes; knows no file format."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import torch

from anychip.weights.quantized import BlockFormat, Bytes


@dataclass(frozen=True)
class TensorInfo:
    """One tensor, by its Hugging Face name.

    `dtype` is what `read` returns; `storage` is how the file holds it (BF16, Q4_1 ...) and `nbytes` how much
    of the file that takes.
    """

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    storage: str
    nbytes: int


@dataclass(frozen=True)
class TokenizerSource:
    """Where the tokenizer and the chat template come from: files of a directory, or a GGUF's own metadata."""

    where: Path
    tokenizer_json: Path | None = None
    tokenizer_config: Mapping[str, object] = field(default_factory=dict)
    chat_template_file: Path | None = None
    gguf: Mapping[str, object] | None = None


class TensorReader(Protocol):
    """Reads tensors out of open files."""

    def read(self, info: TensorInfo, rows: slice | None) -> torch.Tensor: ...

    def read_blocks(self, info: TensorInfo, rows: slice) -> tuple[Bytes, BlockFormat]: ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class Opened:
    """What a format's opener found. With problems there is nothing to read and `reader` may be None."""

    problems: list[str]
    raw_config: Mapping[str, object]
    generation_config: Mapping[str, object]
    tokenizer: TokenizerSource
    tensors: Mapping[str, TensorInfo]
    reader: TensorReader | None
    notes: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()


def row_range(rows: slice | None, length: int) -> tuple[int, int]:
    """First and last + 1 of the rows that a slice selects; only step 1 makes sense for a read."""
    if rows is None:
        return 0, length
    start, stop, step = rows.indices(length)
    if step != 1:
        raise ValueError(f"rows {rows} must have step 1")
    return start, max(start, stop)


__all__ = ["Opened", "TensorInfo", "TensorReader", "TokenizerSource", "row_range"]
