"""Tensors that should equal another one, because the model has only one of the two. Knows tensors; knows no file.

A model with tied embeddings has one table; some checkpoints hold it twice. A second one that differs was meant to be
used, and would be dropped without a word.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from anychip.weights.tensors import TensorInfo, TensorReader

SAMPLED_ROWS = 64  #: that are compared where not all of them are
_BLOCK_BYTES = 16 << 20


def differing_copies(
    copies: Mapping[str, str],
    tensors: Mapping[str, TensorInfo],
    reader: TensorReader | None,
    sampled: int | None = None,
) -> list[str]:
    """For each copy that is there and differs from its original, what is wrong.

    Args:
        copies: name of the copy -> name of its original.
        tensors: that the files hold.
        reader: of the files.
        sampled: rows to compare, spread over the tensor; None: all.
    """
    problems = []
    for name, original_name in copies.items():
        copy, original = tensors.get(name), tensors.get(original_name)
        if copy is None or original is None or reader is None:
            continue
        if copy.shape != original.shape:
            how = f"has shape {list(copy.shape)}, {original_name} has {list(original.shape)}"
        elif not copy.dtype.is_floating_point:
            how = f"is stored as {copy.storage}, which is not read"
        elif _differ(copy, original, reader, sampled):
            how = f"differs from {original_name}"
        else:
            continue
        problems.append(
            f"tensor {name} {how}, but config.json says tie_word_embeddings: true, by which they are one; "
            "set it to false to use both, or leave the tensor out of the file"
        )
    return problems


def _differ(copy: TensorInfo, original: TensorInfo, reader: TensorReader, sampled: int | None) -> bool:
    rows = original.shape[0]
    if sampled is None:
        step = max(1, _BLOCK_BYTES * rows // max(1, original.nbytes))
        slices = [slice(first, first + step) for first in range(0, rows, step)]
    else:
        spread = sorted({at * (rows - 1) // max(1, sampled - 1) for at in range(sampled)})
        slices = [slice(row, row + 1) for row in spread]
    return any(not _equal(reader.read(copy, where), reader.read(original, where).clone()) for where in slices)


def _equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.dtype == other.dtype:
        return torch.equal(one.contiguous().view(torch.uint8), other.view(torch.uint8))  # also where both are NaN
    return torch.equal(one.float(), other.float())


__all__ = ["SAMPLED_ROWS", "differing_copies"]
