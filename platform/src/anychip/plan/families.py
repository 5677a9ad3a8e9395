"""What each family of the registry is served with: states, ops, files. Read off its modules; opens no checkpoint."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import NamedTuple

from anychip.graph.expand import expand
from anychip.graph.trace import trace_config
from anychip.models.config import ModelConfig
from anychip.models.registry import FAMILIES, parse_config
from anychip_sdk.state import StateGroup

_VOCABULARY = 64  # of the models that are looked at


class Family(NamedTuple):
    """A family as the tables show it.

    Attributes:
        name: config.json's model_type.
        summary: which models these are, and what their layers have: the first line of its module's docstring.
        states: what its modules keep, e.g. "kv per token".
        experts: whether its MLPs may be mixtures of experts.
        ops: of the catalogue, sorted.
        gguf: general.architecture of its GGUF files; None where none are read.
    """

    name: str
    architectures: tuple[str, ...]
    summary: str
    states: tuple[str, ...]
    experts: bool
    ops: tuple[str, ...]
    gguf: str | None


def families() -> tuple[Family, ...]:
    """Every family that is served, in the registry's order."""
    return tuple(map(_family, FAMILIES))


def states_of(config: ModelConfig) -> Sequence[StateGroup]:
    """The groups of equal states of a model."""
    return trace_config(config).groups


def _family(family: type[ModelConfig]) -> Family:
    # as the class in transformers has it; the problems are those of classes whose own widths make no whole heads
    config = parse_config({"architectures": [family.architectures[0]]}, {}, [])
    assert config is not None
    model = expand(trace_config(config.sample(_VOCABULARY)))
    ops = sorted({op.name for _, op in model.op_nodes()})
    states = dict.fromkeys(
        f"{group.spec.name} per {'token' if group.spec.kind == 'paged' else 'sequence'}" for group in model.groups
    )
    return Family(
        family.model_type,
        family.architectures,
        (inspect.getdoc(inspect.getmodule(family)) or "").partition("\n")[0],
        tuple(states),
        "moe_experts" in ops,
        tuple(ops),
        None if family.gguf is None else family.gguf.architecture,
    )


def markdown() -> str:
    """docs/models.md."""
    found = families()
    plain = frozenset(found[0].ops)
    rows = [
        "| family | architectures | models | keeps | experts | ops beyond Llama's | GGUF |",
        "|---|---|---|---|---|---|---|",
    ]
    rows += [_markdown_row(family, plain) for family in found]
    return _PAGE.format(table="\n".join(rows))


def _markdown_row(family: Family, plain: frozenset[str]) -> str:
    more = [name for name in family.ops if name not in plain]
    cells = (
        family.name,
        ", ".join(f"`{name}`" for name in family.architectures),
        family.summary,
        ", ".join(family.states),
        "yes" if family.experts else "-",
        ", ".join(f"`{name}`" for name in more) or "-",
        "-" if family.gguf is None else f"`{family.gguf}`",
    )
    return f"| {' | '.join(cells)} |"


_PAGE = """# Models

The families that are served. This page is written by `platform models --format markdown`, from the registry and the
modules of each family; a test compares the two.

{table}

`platform models CHECKPOINT` says of a folder or a GGUF file, named as in a recipe's `model.source`, which family it
belongs to, everything that keeps it from being served here, the bytes that it would take in each precision, the longest
context that has room, and a recipe to start with. It reads no weights. Exit code 4: something is in the way.

Every family reads Hugging Face folders with safetensors (F32, F16, BF16). GGUF files are read where the table names an
architecture: F32, F16, BF16, Q8_0, Q4_0, Q4_1. Weights are computed with in float32, bfloat16 or float16, as far as the
device offers them, or held in 8 or 4 bits (`model.quantization`).

A key of config.json that would change what is computed, and that the family doesn't read, is refused by name; a key
that nobody here knows is told as a note ([decision 0023](decisions/0023-config-keys.md)).
"""

__all__ = ["Family", "families", "markdown", "states_of"]
