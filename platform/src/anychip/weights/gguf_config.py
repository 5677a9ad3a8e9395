"""GGUF metadata as the content of a Hugging Face config.json. Reads no file."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from anychip.models.gguf_names import GGUFFields, GGUFNames
from anychip.models.raw import foreign_ids
from anychip.models.registry import gguf_families

#: of ids in the metadata, as in tokenizer.ggml.NAME_token_id
_ID_NAMES = ("bos", "eos", "eot", "eom", "padding", "unknown")


def names_of(metadata: Mapping[str, object]) -> GGUFNames | None:
    """How the file's architecture names things, None where it is not supported."""
    family = gguf_families().get(str(metadata.get("general.architecture")))
    return None if family is None else family.gguf


def raw_config(
    metadata: Mapping[str, object], shapes: Mapping[str, tuple[int, ...]], problems: list[str]
) -> dict[str, object]:
    """The config.json that this file would have; `shapes` are those of its tensors, by GGUF name."""
    fields, known = GGUFFields(metadata, shapes, problems), gguf_families()
    family = known.get(fields.arch)
    if family is None or family.gguf is None:
        problems.append(f"architecture {fields.arch!r} is not supported (supported: {', '.join(known)})")
        return {}
    named: dict[str, object] = {"architectures": [family.architectures[0]], "model_type": family.model_type}
    config = family.gguf.read_config(fields)
    rows = config.get("vocab_size")
    for name in _ID_NAMES:
        key, token = f"tokenizer.ggml.{name}_token_id", metadata.get(f"tokenizer.ggml.{name}_token_id")
        if isinstance(token, int) and not isinstance(token, bool) and isinstance(rows, int):
            problems.extend(foreign_ids("metadata", key, [token], rows))
    return {**named, **config, **token_ids(metadata, rows)}


def token_ids(metadata: Mapping[str, object], rows: object) -> dict[str, object]:
    """The ids that config.json and generation_config.json would name; those without a row are told elsewhere."""

    def number(name: str) -> int | None:
        value = metadata.get(f"tokenizer.ggml.{name}_token_id")
        if not isinstance(value, int) or isinstance(value, bool):
            return None
        is_told = isinstance(rows, int) and not 0 <= value < rows
        return None if is_told else value

    # of the text, of a turn, and of a turn that waits for a tool
    named = (number(name) for name in ("eos", "eot", "eom"))
    ends = dict.fromkeys(token for token in named if token is not None)
    return {
        "bos_token_id": number("bos"),
        "eos_token_id": list(ends) or None,
        "pad_token_id": number("padding"),
    }


def llama3_scaling(factors: Sequence[float], theta: float) -> dict[str, object] | None:
    """The llama3 parameters behind a table of rotary factors, None where it isn't such a table.

    A GGUF file holds the factors (one per angle, by which the frequency is divided) and not the parameters.
    They are 1 for short waves, `factor` for long ones, and between them 1/f is linear in the frequency, so the
    two lengths that matter (original / low and original / high) come out of that line; `low` can be set to 1.
    """
    table: npt.NDArray[np.float64] = np.asarray(factors, dtype=np.float64)
    if not (np.isfinite(table).all() and (table > 0).all() and 1 < theta < math.inf):
        return None
    if np.allclose(table, 1.0):
        return {"rope_type": "default"}
    factor = float(f"{table.max():.6g}")
    turns = theta ** (-np.arange(len(table)) / len(table)) / (2 * math.pi)  # per token
    between = (table > 1 + 1e-4) & (table < factor * (1 - 1e-4))
    if int(between.sum()) < 2 or factor <= 1:
        return None
    smooth = (1 / table[between] - 1 / factor) / (1 - 1 / factor)
    slope, offset = np.polyfit(turns[between], smooth, 1)
    if slope <= 0 or offset >= 0:
        return None
    # smooth = (original * turns - low) / (high - low), with low = 1
    high = float(f"{1 - 1 / offset:.4g}")
    original = round(slope * (high - 1))
    scaling: dict[str, object] = {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": high,
        "original_max_position_embeddings": original,
    }
    blend = np.clip((original * turns - 1) / (high - 1), 0, 1)
    expected = 1 / ((1 - blend) / factor + blend)
    return scaling if np.allclose(expected, table, rtol=1e-3) else None


__all__ = ["llama3_scaling", "names_of", "raw_config", "token_ids"]
