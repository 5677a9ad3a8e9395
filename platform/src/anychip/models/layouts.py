"""Sources of parameters that checkpoints join, or whose rows they order in another way. Knows rows; reads no file."""

from __future__ import annotations

from collections.abc import Sequence

from anychip.models.decoder_config import DecoderConfig
from anychip.models.source import Source, same_name


def fused_qkv(config: DecoderConfig, name: str, shape: tuple[int, ...]) -> tuple[Source, ...]:
    """Rows of `qkv_proj`: those of q, then k, then v; what is none of these is as it is called."""
    rows = {"q_proj": config.q_size, "k_proj": config.kv_size, "v_proj": config.kv_size}
    return _part(name, shape, "qkv_proj", rows)


def fused_gate_up(config: DecoderConfig, name: str, shape: tuple[int, ...]) -> tuple[Source, ...]:
    """Rows of `gate_up_proj`: those of gate, then up; what is none of these is as it is called."""
    return _part(name, shape, "gate_up_proj", dict.fromkeys(("gate_proj", "up_proj"), config.intermediate_size))


def _part(name: str, shape: tuple[int, ...], joined: str, rows: dict[str, int]) -> tuple[Source, ...]:
    """`shape` is the parameter's own, a matrix or a bias; its module is one of those that `rows` names."""
    *path, module, kind = name.split(".")
    if module not in rows:
        return same_name(name, shape)
    names = list(rows)
    first = sum(rows[one] for one in names[: names.index(module)])
    whole = (sum(rows.values()), *shape[1:])
    return (Source(".".join((*path, joined, kind)), whole, rows=range(first, first + rows[module])),)


def unpaired(config: DecoderConfig, name: str, shape: tuple[int, ...]) -> tuple[Source, ...]:
    """Queries and keys whose file turns neighbours against each other: even rows of what turns, odd ones, the rest.

    Modules turn a first half against a second one. Scores don't depend on the order of a head's dimensions.
    """
    heads = {"q_proj": config.num_heads, "k_proj": config.num_kv_heads}.get(name.split(".")[-2], 0)
    size, turned = config.head_dim, config.rotary_dim
    found = []
    for first in range(0, heads * size, size):
        stop = first + turned
        found += [Source(name, shape, rows=range(first, stop, 2)), Source(name, shape, rows=range(first + 1, stop, 2))]
        if turned < size:
            found.append(Source(name, shape, rows=range(stop, first + size)))
    return tuple(found) or same_name(name, shape)


def grouped_rows(tensor: str, shape: tuple[int, ...], sizes: Sequence[int]) -> tuple[tuple[Source, ...], ...]:
    """The parts of a tensor whose rows come in groups, each with so many rows of each part; a part's in order."""
    begins = [range(sum(sizes[:part]), shape[0], sum(sizes)) for part in range(len(sizes))]
    return tuple(
        tuple(Source(tensor, shape, rows=range(begin, begin + size)) for begin in firsts)
        for firsts, size in zip(begins, sizes, strict=True)
    )


__all__ = ["fused_gate_up", "fused_qkv", "grouped_rows", "unpaired"]
