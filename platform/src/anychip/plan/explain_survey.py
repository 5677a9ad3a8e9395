"""A survey of a checkpoint in words, as JSON, and as a recipe to start with. Knows how to say it; finds nothing out."""

from __future__ import annotations

import json
import re
from pathlib import Path

from anychip.plan.estimate import Need
from anychip.plan.explain import state_line
from anychip.plan.families import states_of
from anychip.plan.memory import gib
from anychip.plan.survey import Survey

_PLAIN = re.compile(r"[A-Za-z/~][\w./~+-]*(:[\w./-]+)?")  # what YAML reads as text without quotes


def survey_json(found: Survey) -> dict[str, object]:
    """Plain JSON values; sizes in bytes, contexts in tokens."""
    config, opened = found.found.config, found.found.opened
    best = found.best
    return {
        "source": found.source,
        "path": str(found.found.path),
        "format": found.found.format,
        "supported": not found.problems,
        "problems": list(found.problems),
        "notes": list(opened.notes),
        "architecture": _architecture(found),
        "family": None if config is None else config.model_type,
        "facts": {} if config is None else config.facts(),
        "context_length": None if config is None else config.max_positions,
        "longest_context": None if config is None else config.longest_context,
        "parameters": found.parameters,
        "tensors": len(opened.tensors),
        "stored_bytes": dict(found.stored),
        "states": [] if config is None else [state_line(group) for group in states_of(config)],
        "backend": None if found.backend is None else found.backend.name,
        "device": None if found.device is None else found.device.name,
        "memory_bytes": None if found.device is None else found.device.memory_bytes_total,
        "static_fraction": found.recipe.memory.static_fraction,
        "context": found.context,
        "needs": [_need_json(need, found.context) for need in found.needs],
        "recipe": None if best is None or found.problems else recipe_text(found, best),
    }


def _need_json(need: Need, context: int) -> dict[str, object]:
    said: dict[str, object] = {
        "precision": need.precision.name,
        "model.dtype": need.precision.dtype,
        "model.quantization": need.precision.quantization,
        "problem": need.problem or None,
    }
    if need.needed is None:
        return said
    return {
        **said,
        "dtype": need.dtype,
        "weights_bytes": need.needed.weights,
        "bytes_per_token": need.needed.kv_bytes_per_token,
        "bytes_per_sequence": need.needed.bytes_per_slot,
        "context_bytes": need.bytes_of_states(context),
        "activations_and_workspace_bytes": need.needed.activations + need.needed.workspace,
        "largest_context": need.largest_context,
    }


def head_lines(found: Survey) -> list[str]:
    """What the checkpoint is."""
    config, opened = found.found.config, found.found.opened
    stored = ", ".join(f"{kind} {gib(nbytes)}" for kind, nbytes in found.stored.most_common())
    lines = [
        f"checkpoint   {found.found.path} ({found.found.format})",
        f"model        {_architecture(found) or 'unknown'}"
        + ("" if config is None else f", family {config.model_type}"),
    ]
    if opened.tensors:
        lines.append(f"parameters   {found.parameters / 1e6:,.1f} million in {len(opened.tensors)} tensors: {stored}")
    if config is not None:
        sizes = ", ".join(f"{name} {value}" for name, value in config.facts().items())
        further = f", scaled {config.longest_context}" if config.longest_context > config.max_positions else ""
        lines += [f"sizes        {sizes}", f"context      {config.max_positions} tokens{further}"]
        lines += [f"state        {state_line(group)}" for group in states_of(config)]
    lines += [f"note         {note}" for note in opened.notes]
    return [*lines, f"supported    {'no' if found.problems else 'yes'}"]


NEEDS = ("PRECISION", "WEIGHTS", "A TOKEN", "A SEQUENCE", "STATES OF {}", "LARGEST CONTEXT")


def need_rows(found: Survey) -> list[tuple[str, ...]]:
    """A row for each precision, in the columns NEEDS."""
    return [_row(need, found.context) for need in found.needs]


def _row(need: Need, context: int) -> tuple[str, ...]:
    if need.needed is None:
        return need.precision.name, "-", "-", "-", "-", f"none: {_first_line(need.problem)}"
    per_token = f"{need.needed.kv_bytes_per_token / 1024:.1f} KiB"
    per_sequence = f"{need.needed.bytes_per_slot / 1024:.1f} KiB" if need.needed.bytes_per_slot else "-"
    largest = f"{need.largest_context} tokens" if need.largest_context else f"none: {_first_line(need.problem)}"
    sizes = (gib(need.needed.weights), per_token, per_sequence, gib(need.bytes_of_states(context)), largest)
    return (need.precision.name, *sizes)


def recipe_text(found: Survey, best: Need) -> str:
    """A recipe that serves the checkpoint in that precision, with the context that has room."""
    config = found.found.config
    assert config is not None
    quantization = [] if best.precision.quantization == "none" else [f"quantization: {best.precision.quantization}"]
    context = min(found.context, best.largest_context)
    lines = [
        "version: 1",
        f"name: {_slug(found.found.path)}",
        "model:",
        *_indented(
            f"source: {_yaml(_absolute(found.source))}",
            f"dtype: {best.precision.dtype}",
            *quantization,
            *([] if context == config.max_positions else [f"context_length: {context}"]),
        ),
        "backend:",
        *_indented(f"name: {'auto' if found.backend is None else found.backend.name}"),
        *(_indented("emulate: true") if found.recipe.backend.emulate else []),
        "memory:",
        *_indented(f"static_fraction: {found.recipe.memory.static_fraction:g}"),
    ]
    return "\n".join(lines) + "\n"


def _architecture(found: Survey) -> str | None:
    if found.found.config is not None:
        return found.found.config.architecture
    named = found.found.opened.raw_config.get("architectures")
    return str(named[0]) if isinstance(named, list) and named else None


def _indented(*lines: str) -> list[str]:
    return [f"  {line}" for line in lines]


def _first_line(text: str) -> str:
    return text.partition("\n")[0]


def _slug(path: Path) -> str:
    """A name that a recipe may have."""
    stem = path.stem if path.suffix == ".gguf" else path.name
    return re.sub(r"[^a-z0-9]+", "-", stem.lower()).strip("-")[:40].strip("-") or "model"


def _absolute(source: str) -> str:
    """Of a path: a recipe may lie anywhere."""
    scheme = source.partition(":")[0]
    return source if scheme in ("package", "hf", "modelscope") else str(Path(source).expanduser().absolute())


def _yaml(text: str) -> str:
    return text if _PLAIN.fullmatch(text) else json.dumps(text, ensure_ascii=False)


__all__ = ["NEEDS", "head_lines", "need_rows", "recipe_text", "survey_json"]
