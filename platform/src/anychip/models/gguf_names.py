"""How a family's GGUF files name metadata and tensors. Knows names; reads no file."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

_LAYER = re.compile(r"^blk\.(\d+)\.(\w+)\.(weight|bias)$")


class GGUFFields:
    """Typed access to the metadata of one architecture, by key without the architecture's prefix.

    `shapes` are those of the file's tensors, by GGUF's name. What is wrong is noted in `problems`.
    """

    def __init__(
        self, metadata: Mapping[str, object], shapes: Mapping[str, tuple[int, ...]], problems: list[str]
    ) -> None:
        self.metadata = metadata
        self.shapes = shapes
        self.problems = problems
        self.arch = str(metadata.get("general.architecture"))

    def __contains__(self, key: str) -> bool:
        return f"{self.arch}.{key}" in self.metadata

    def integer(self, key: str) -> int | None:
        value = self.metadata.get(f"{self.arch}.{key}")
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int):
            # some architectures list one value per layer
            self.problems.append(f"{self.arch}.{key} is {value!r:.60}, expected one whole number")
            return None
        return value

    def required(self, key: str) -> int:
        value = self.integer(key)
        if value is None and key not in self:
            self.problems.append(f"metadata {self.arch}.{key} is missing")
        return value or 1

    def number(self, key: str) -> float | None:
        value = self.metadata.get(f"{self.arch}.{key}")
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            self.problems.append(f"{self.arch}.{key} is {value!r:.60}, expected a number")
            return None
        return float(f"{value:.7g}")  # stored as float32: 1e-5 reads 9.99999975e-06


@dataclass(frozen=True)
class GGUFNames:
    """What a GGUF file of one architecture is called and what it calls things.

    Attributes:
        architecture: general.architecture.
        read_config: metadata -> the keys of config.json that it stands for; refuses what is not supported.
        tensors: outside of layers, GGUF's name -> the checkpoint's.
        layer_tensors: within a layer, `NAME` of blk.N.NAME.weight -> the module's name.
        layer_prefix: what precedes a layer's number in the checkpoint's names.
        interleaved: module -> the key of config.json with its number of heads, where converters store the two
            halves of each head's rows as alternating rows.
        norm_shift: what converters add to the weights of norms.
    """

    architecture: str
    read_config: Callable[[GGUFFields], dict[str, object]]
    tensors: Mapping[str, str]
    layer_tensors: Mapping[str, str]
    layer_prefix: str = "model.layers."
    interleaved: Mapping[str, str] = field(default_factory=dict)
    norm_shift: float = 0.0

    def tensor(self, name: str) -> str | None:
        """The checkpoint's name of a GGUF tensor, None for one that the family doesn't have."""
        if name in self.tensors:
            return self.tensors[name]
        match = _LAYER.match(name)
        if match is None or match[2] not in self.layer_tensors:
            return None
        return f"{self.layer_prefix}{match[1]}.{self.layer_tensors[match[2]]}.{match[3]}"


__all__ = ["GGUFFields", "GGUFNames"]
