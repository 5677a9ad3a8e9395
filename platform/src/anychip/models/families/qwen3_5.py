"""Qwen3.5, dense: three of four layers Gated DeltaNet, the others gated attention. Text alone."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, TypeVar

from anychip.models.decoder_config import DecoderDefaults
from anychip.models.hybrid import HybridConfig
from anychip.models.keys import TEXT
from anychip.models.raw import Fields
from anychip.models.rope_config import RopeDefaults
from anychip.models.source import Source

VISION = ("model.visual.", "visual.")
TOWER_KEYS = (
    *("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id", "vision_config"),
    "language_model_only",
)
SHARED = ("tie_word_embeddings", "dtype", "torch_dtype")
WITHIN = "model.language_model."  #: the text model's tensors, beside a vision tower

Self = TypeVar("Self", bound="Qwen35Base")


@dataclass(frozen=True)
class Qwen35Base(HybridConfig):
    """Checkpoints with a vision tower hold the text model's config in `text_config`; the tower is not read.

    `is_within`: the tensors' names say that they stand beside a tower.
    """

    fixed: ClassVar[Mapping[str, Sequence[object]]] = {"attn_output_gate": (True,), "mamba_ssm_dtype": ("float32",)}
    # positions of text are the same in all sections of a rotation
    unused = frozenset(("mrope_interleaved", "mrope_section", "mtp_num_hidden_layers", "mtp_use_dedicated_embeddings"))

    is_within: bool = False

    @classmethod
    def parse(cls: type[Self], architecture: str, fields: Fields, generation: Fields) -> Self:
        inner = fields.section(TEXT)
        if inner is None:
            return super().parse(architecture, fields, generation)
        fields.settle(*TOWER_KEYS)
        # the model's own keys count where the text's config has none
        shared = {key: value for key, value in fields.raw.items() if key not in inner.raw and key in SHARED}
        text = Fields({**inner.raw, **shared}, fields.problems, inner.where, fields.read)
        return super().parse(architecture, text, generation)

    def for_tensors(self: Self, names: Collection[str]) -> Self:
        return replace(super().for_tensors(names), is_within=any(name.startswith(WITHIN) for name in names))

    def sources(self, name: str, shape: tuple[int, ...]) -> tuple[Source, ...]:
        return tuple(replace(source, tensor=self._called(source.tensor)) for source in self._sources(name, shape))

    def _sources(self, name: str, shape: tuple[int, ...]) -> tuple[Source, ...]:
        """As if there were no tower."""
        *path, module, kind = name.split(".")
        delta, columns = self.delta, shape[1:]
        place = ".".join(path)
        joined = {
            "in_proj_qkvz": {"in_proj_qkv": delta.channels, "in_proj_z": delta.value_size},
            "in_proj_ba": {"in_proj_b": delta.value_heads, "in_proj_a": delta.value_heads},
        }.get(module)
        if joined is None:
            return super().sources(name, shape)
        return tuple(Source(f"{place}.{one}.{kind}", (rows, *columns)) for one, rows in joined.items())

    def _called(self, tensor: str) -> str:
        return WITHIN + tensor.removeprefix("model.") if self.is_within and tensor.startswith("model.") else tensor

    def copies(self) -> Mapping[str, str]:
        return {copy: self._called(of) for copy, of in super().copies().items()}

    def ignores(self, tensor: str) -> bool:
        return tensor.startswith(VISION) or super().ignores(tensor)


class Qwen35Config(Qwen35Base):
    """Heads are 256 wide unless the config says otherwise, a quarter of each turned."""

    architectures = ("Qwen3_5ForCausalLM", "Qwen3_5ForConditionalGeneration")
    model_type = "qwen3_5_text"
    defaults = DecoderDefaults(
        vocab_size=248320,
        hidden_size=4096,
        intermediate_size=12288,
        max_positions=32768,
        num_layers=32,
        num_heads=16,
        num_kv_heads=4,
        head_dim=256,
        qk_norm=True,
        rope=RopeDefaults(partial=0.25),
    )


__all__ = ["Qwen35Base", "Qwen35Config"]
