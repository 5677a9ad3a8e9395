"""Open a checkpoint of either format and check all of it first. Knows what a model needs; knows no device.

Opening reads headers only. Nothing is allocated for weights before every shard, shape and dtype was found right.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Literal

import torch

from anychip.models.config import ModelConfig
from anychip.models.raw import refuse
from anychip.models.registry import parse_config
from anychip.weights.copies import SAMPLED_ROWS, differing_copies
from anychip.weights.end_token import with_end
from anychip.weights.files import not_a_file
from anychip.weights.gguf_checkpoint import open_gguf
from anychip.weights.gguf_split import first_parts
from anychip.weights.names import check_tensors
from anychip.weights.quantized import BlockFormat, Bytes
from anychip.weights.safetensors import open_directory
from anychip.weights.tensors import Opened, TensorInfo, TensorReader, TokenizerSource
from anychip_sdk.errors import CheckpointInvalid

FormatName = Literal["safetensors", "gguf"]

_FLOATS = (torch.float32, torch.float16, torch.bfloat16)


class Checkpoint:
    """An open checkpoint: its config, its tensors by Hugging Face name, and a way to read them one at a time.

    `tensors` holds what the model reads, `ignored` the names that are in the file and never read, `notes` what a
    user should know (files of another format beside the chosen one). A context manager.
    """

    def __init__(self, path: Path, format_name: FormatName, config: ModelConfig, opened: Opened) -> None:
        assert opened.reader is not None
        self.path = path
        self.format = format_name
        self.config = config
        self.raw_config = opened.raw_config
        self.generation_config = opened.generation_config
        self.tokenizer = opened.tokenizer
        self.notes = opened.notes
        self.tensors: Mapping[str, TensorInfo] = {
            name: info for name, info in opened.tensors.items() if not config.ignores(name)
        }
        left_out = [name for name in opened.tensors if name not in self.tensors]
        self.ignored: tuple[str, ...] = (*opened.ignored, *left_out)
        self._reader: TensorReader = opened.reader
        self._all_tensors = opened.tensors

    def read(self, name: str, rows: slice | None = None) -> torch.Tensor:
        """One tensor on the host, or some of its rows without touching the others.

        All dimensions but the last count rows: those of [experts, out, in] come as [rows, in].
        The result may be a view of the mapped file: copy it, never write to it. Quantized blocks come out as
        float32, everything else in the dtype that the file has. Not for several threads at once.
        """
        info = self.tensors[name]
        return self._reader.read(info if rows is None else _as_matrix(info), rows)

    def read_blocks(self, name: str, rows: slice) -> tuple[Bytes, BlockFormat]:
        """Some rows as they are stored, [rows, bytes per row], for tensors in a format of blocks."""
        return self._reader.read_blocks(_as_matrix(self.tensors[name]), rows)

    def differing_copies(self) -> list[str]:
        """What is wrong with the ignored copies of tensors, every row compared; opening compares some."""
        return differing_copies(self.config.copies(), self._all_tensors, self._reader)

    def close(self) -> None:
        """Let go of the files. Tensors that were read stay valid."""
        self._reader.close()

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _as_matrix(info: TensorInfo) -> TensorInfo:
    return replace(info, shape=(math.prod(info.shape[:-1]), info.shape[-1])) if len(info.shape) > 2 else info


@dataclass(frozen=True)
class Examined:
    """What was found of a checkpoint that may be broken or of a model that is not supported.

    Attributes:
        path: the directory, or the .gguf file.
        config: None where config.json is not read, or says what is not supported.
        problems: everything that keeps it from being served.
    """

    path: Path
    format: FormatName
    opened: Opened
    config: ModelConfig | None
    problems: tuple[str, ...]

    def close(self) -> None:
        if self.opened.reader is not None:
            self.opened.reader.close()


def open_checkpoint(path: Path | str) -> Checkpoint:
    """Open a directory of safetensors, a directory with one .gguf file, or a .gguf file.

    Raises:
        CheckpointInvalid: with every problem that was found, before any memory is taken for weights.
    """
    found = examine(path)
    if found.problems or found.config is None:
        found.close()
        raise refuse(str(path), found.problems)
    return Checkpoint(found.path, found.format, found.config, found.opened)


def examine(path: Path | str) -> Examined:
    """`open_checkpoint` without judging: what is there, and what is wrong with it.

    Raises:
        CheckpointInvalid: there is nothing that could be a checkpoint, or its files can't be read.
    """
    path = Path(path)
    try:
        return _examined(path)
    except OSError as error:  # of a folder, or of a file that went away meanwhile
        where = f"{error.filename}: " if error.filename else ""
        raise CheckpointInvalid(f"checkpoint {path}: {where}{error.strerror or error}") from error


def _examined(path: Path) -> Examined:
    format_name, file = _format(path)
    is_gguf = format_name == "gguf"
    opened = open_gguf(file) if is_gguf else open_directory(file)
    problems = list(opened.problems)
    raw, given = opened.raw_config, file.name if is_gguf else None
    notes: list[str] = []
    config = parse_config(raw, opened.generation_config, problems, given, notes) if raw else None
    opened = replace(opened, notes=(*opened.notes, *notes))
    if len(problems) > len(opened.problems):
        config = None
    # with a shard missing or cut, a list of the tensors that are missing too would only hide the reason
    if config is not None and not problems:
        config = config.for_tensors(opened.tensors)
        problems += check_tensors(config, opened.tensors)
        problems += _check_dtypes(config, opened.tensors)
        if not problems:
            problems += differing_copies(config.copies(), opened.tensors, opened.reader, SAMPLED_ROWS)
            config = with_end(config, opened.tokenizer)
    return Examined(file, format_name, opened, config, tuple(problems))


def _format(path: Path) -> tuple[FormatName, Path]:
    if path.is_dir():
        present = [child for child in sorted(path.iterdir()) if child.is_file() or child.is_symlink()]
        files = first_parts([child for child in present if child.suffix == ".gguf"])
        if not files or any(child.suffix == ".safetensors" for child in present):
            return "safetensors", path
        if len(files) > 1:
            names = ", ".join(file.name for file in files)
            raise CheckpointInvalid(
                f"checkpoint {path}: holds several GGUF files ({names})", hint="name one of them as the source"
            )
        return "gguf", files[0]
    if not path.exists():
        reason = not_a_file(path) if path.is_symlink() else "there is no such file or directory"
        raise CheckpointInvalid(f"checkpoint {path}: {reason}")
    if path.suffix == ".gguf":
        return "gguf", path
    raise CheckpointInvalid(
        f"checkpoint {path}: is a file of an unknown format", hint="name a .gguf file, or the model's directory"
    )


def _check_dtypes(config: ModelConfig, tensors: Mapping[str, TensorInfo]) -> list[str]:
    return [
        f"tensor {name} is stored as {info.storage}, which is not supported (supported: F32, F16, BF16)"
        for name, info in tensors.items()
        if info.dtype not in _FLOATS and not config.ignores(name)
    ]


__all__ = ["Checkpoint", "Examined", "TensorInfo", "TokenizerSource", "examine", "open_checkpoint"]
