"""GLM-4.7-Flash: DeepSeek-V3's layers with other sizes, each layer's kind by name."""

from __future__ import annotations

from anychip.models.decoder_config import DecoderDefaults
from anychip.models.families.deepseek_v3 import DeepseekV3Config, ExpertDefaults
from anychip.models.latent_config import LatentDefaults
from anychip.models.raw import Fields

KINDS = ("dense", "sparse")


class Glm4MoeLiteConfig(DeepseekV3Config):
    """`mlp_layer_types` says which layers are mixtures; by default all but the first."""

    architectures = ("Glm4MoeLiteForCausalLM",)
    model_type = "glm4_moe_lite"
    defaults = DecoderDefaults(
        vocab_size=154880,
        hidden_size=2048,
        intermediate_size=10240,
        num_layers=47,
        num_heads=20,
        max_positions=202752,
        head_dim=64,
        bos=0,
        eos=1,
        rms_norm_eps=1e-5,
    )
    latent_defaults = LatentDefaults(768, 512, 64, 192, 256)
    expert_defaults = ExpertDefaults(64, 4, 1536, 1, 1, 1.8)

    @classmethod
    def read_sparse(cls, fields: Fields, num_layers: int) -> tuple[bool, ...]:
        dense = fields.integer("first_k_dense_replace", 1, minimum=0)
        kinds = fields.strings("mlp_layer_types")
        if kinds is None:
            return tuple(layer >= dense for layer in range(num_layers))
        if len(kinds) != num_layers or not set(kinds) <= set(KINDS):
            fields.complain("mlp_layer_types", f"{num_layers} of {' or '.join(KINDS)}")
            return (True,) * num_layers
        return tuple(kind == "sparse" for kind in kinds)


__all__ = ["Glm4MoeLiteConfig"]
