"""The config of decoders some of whose layers are mixtures of experts. Reads no file."""

from __future__ import annotations

import re
from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeVar

from anychip.models.decoder_config import DecoderConfig
from anychip.models.mixture import ExpertNames, Mixture, bias_sources, expert_sources, layout_of
from anychip.models.raw import Fields
from anychip.models.source import Source

MAX_EXPERTS = 4096

_MLP = re.compile(r"^(model\.layers\.\d+\.)mlp\.(.+)$")

Self = TypeVar("Self", bound="MixtureConfig")


@dataclass(frozen=True)
class MixtureConfig(DecoderConfig):
    """`is_sparse` says which layers are mixtures, `expert_layout` how the checkpoint at hand holds experts."""

    expert_names: ClassVar[ExpertNames] = ExpertNames()

    mixture: Mixture
    is_sparse: tuple[bool, ...]
    expert_layout: str

    @classmethod
    def read(cls, fields: Fields, generation: Fields) -> dict[str, Any]:
        known = super().read(fields, generation)
        mixture = cls.read_mixture(fields)
        _check(fields, mixture)
        layers = known["num_layers"]
        sparse = cls.read_sparse(fields, layers)
        return {**known, "mixture": mixture, "is_sparse": sparse, "expert_layout": layout_of(cls.expert_names, ())}

    @classmethod
    def read_mixture(cls, fields: Fields) -> Mixture:
        """What a layer's experts are."""
        raise NotImplementedError

    @classmethod
    def read_sparse(cls, fields: Fields, num_layers: int) -> tuple[bool, ...]:
        """Which layers are mixtures; by default all."""
        return (True,) * num_layers

    def for_tensors(self: Self, names: Collection[str]) -> Self:
        return replace(self, expert_layout=layout_of(self.expert_names, names))

    def sources(self, name: str, shape: tuple[int, ...]) -> tuple[Source, ...]:
        match = _MLP.match(name)
        if match is None:
            return super().sources(name, shape)
        prefix, part = match.groups()
        names = self.expert_names
        if part in ("experts.gate_up_weight", "experts.down_weight"):
            is_down = part.startswith("experts.down")
            return expert_sources(names, self.expert_layout, prefix, shape, is_down=is_down)
        if part in ("experts.gate_up_bias", "experts.down_bias"):
            assert names.stacks is not None
            return bias_sources(names.stacks, prefix, shape, is_down=part.startswith("experts.down"))
        for ours, theirs in names.renamed:
            if part.startswith(ours):
                return (Source(f"{prefix}{theirs}{part.removeprefix(ours)}", self.stored_shape(part, shape)),)
        return super().sources(name, shape)

    def stored_shape(self, part: str, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape that checkpoints give a tensor of a mixture that is called otherwise there."""
        return shape

    def facts(self) -> dict[str, int]:
        return {**super().facts(), "expert_inner": self.mixture.inner, "experts_per_token": self.mixture.per_token}

    def kind(self, layer: int) -> Hashable:
        return super().kind(layer), self.is_sparse[layer]

    def pick(self: Self, layers: Sequence[int]) -> Self:
        return replace(super().pick(layers), is_sparse=tuple(self.is_sparse[layer] for layer in layers))

    def sample(self: Self, vocab_size: int) -> Self:
        return replace(super().sample(vocab_size), mixture=self.mixture.smaller())


def count(fields: Fields, keys: Sequence[str], default: int, *, minimum: int = 1) -> int:
    """A number of experts under the first of its keys that is there."""
    key = next((key for key in keys if key in fields), keys[0])
    return fields.integer(key, default, minimum=minimum, maximum=MAX_EXPERTS)


def _check(fields: Fields, mixture: Mixture) -> None:
    routing = mixture.routing
    if mixture.per_token > mixture.experts:
        fields.problems.append(f"{fields.where}: {mixture.per_token} experts per token of {mixture.experts} experts")
    if mixture.experts % routing.groups:
        fields.problems.append(f"{fields.where}: {mixture.experts} experts are no multiple of {routing.groups} groups")
    elif mixture.experts // routing.groups < 2 and routing.group_score == "sum2" and routing.groups > 1:
        fields.problems.append(f"{fields.where}: groups of one expert have no two best")
    elif routing.top_groups > routing.groups:
        fields.problems.append(f"{fields.where}: topk_group {routing.top_groups} of {routing.groups} groups")
    elif mixture.per_token > mixture.experts // routing.groups * routing.top_groups:
        fields.problems.append(f"{fields.where}: {mixture.per_token} experts per token, fewer are in the chosen groups")


__all__ = ["MAX_EXPERTS", "MixtureConfig", "count"]
