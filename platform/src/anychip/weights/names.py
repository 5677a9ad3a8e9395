"""Which tensors a model needs, and whether a file has them. Knows the model's modules; knows no file format."""

from __future__ import annotations

from collections.abc import Mapping

from anychip.models.config import ModelConfig
from anychip.models.registry import build_model
from anychip.weights.tensors import TensorInfo

_SHOWN = 8  # names shown of a long list


def expected_tensors(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor that the model reads, with its shape, in the order of its modules; a tied one once."""
    found = {}
    for name, parameter in build_model(config).named_parameters():
        found.update({source.tensor: source.shape for source in config.sources(name, tuple(parameter.shape))})
    return found


def check_tensors(config: ModelConfig, tensors: Mapping[str, TensorInfo]) -> list[str]:
    """Compare what the file has with what the model needs; every difference is a problem.

    A model of absurd size isn't even built: each layer has a tensor, and each number in it takes a part of a byte.
    """
    if config.num_layers > len(tensors):
        return [f"num_hidden_layers is {config.num_layers:,}, the files hold {len(tensors):,} tensors in all"]
    expected = expected_tensors(config)
    problems = [
        f"tensor {name} has shape {list(tensors[name].shape)}, the config asks for {list(shape)}"
        for name, shape in expected.items()
        if name in tensors and tensors[name].shape != shape
    ]
    missing = [name for name in expected if name not in tensors]
    surplus = [name for name in tensors if name not in expected and not config.ignores(name)]
    if missing:
        problems.append(f"{len(missing)} tensors are missing: {shorten(missing)}")
    if surplus:
        problems.append(f"{len(surplus)} tensors are not part of {config.architecture}: {shorten(surplus)}")
    return problems


def shorten(names: list[str]) -> str:
    """The first few names of a list and how many more there are."""
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


__all__ = ["check_tensors", "expected_tensors", "shorten"]
