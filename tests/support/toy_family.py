"""A family that the platform doesn't serve: attention and MLP side by side in each layer. Known ops, keys of its own.

All that the platform must be told of a family is in a file like this one and in a row of the registry.
"""

from __future__ import annotations

from torch import nn

from anychip.models.attention import Attention
from anychip.models.config import parse_dtype, parse_token_ids
from anychip.models.decoder import CausalLM
from anychip.models.decoder_config import FULL_ATTENTION, DecoderConfig
from anychip.models.decoder_gguf import TENSORS
from anychip.models.gguf_names import GGUFFields, GGUFNames
from anychip.models.layers import Linear, RMSNorm
from anychip.models.raw import Fields
from anychip.models.rope_config import parse_rope
from anychip_sdk import ops


def read_gguf_config(fields: GGUFFields):
    return {
        "vocab_size": fields.shapes["token_embd.weight"][0],
        "n_embd": fields.required("embedding_length"),
        "n_layer": fields.required("block_count"),
        "n_head": fields.required("attention.head_count"),
        "n_inner": fields.required("feed_forward_length"),
        "n_positions": fields.required("context_length"),
    }


class ToyConfig(DecoderConfig):
    architectures = ("ToyForCausalLM",)
    model_type = "toy"
    gguf = GGUFNames(
        "toy",
        read_gguf_config,
        TENSORS,
        {
            "attn_norm": "norm",
            "attn_q": "self_attn.q_proj",
            "attn_k": "self_attn.k_proj",
            "attn_v": "self_attn.v_proj",
            "attn_output": "self_attn.o_proj",
            "ffn_up": "mlp.up_proj",
            "ffn_down": "mlp.down_proj",
        },
    )

    @classmethod
    def parse(cls, architecture: str, fields: Fields, generation: Fields):
        if not fields.boolean("parallel_residual", True):
            fields.problems.append("config.json: parallel_residual false is not supported")
        hidden, heads = fields.integer("n_embd", 64), fields.integer("n_head", 4)
        layers, positions = fields.integer("n_layer", 2), fields.integer("n_positions", 128)
        tokens = parse_token_ids(fields, generation, None, None)
        return cls(
            architecture=architecture,
            vocab_size=fields.integer("vocab_size", 512),
            hidden_size=hidden,
            intermediate_size=fields.integer("n_inner", 4 * hidden),
            num_layers=layers,
            num_heads=heads,
            num_kv_heads=heads,
            head_dim=hidden // heads,
            max_positions=positions,
            rms_norm_eps=1e-6,
            hidden_act="gelu_pytorch_tanh",
            tie_word_embeddings=False,
            attention_bias=False,
            attention_out_bias=False,
            mlp_bias=False,
            qk_norm=False,
            rope=parse_rope(fields, positions),
            sliding_window=None,
            layer_types=(FULL_ATTENTION,) * layers,
            dtype=parse_dtype(fields),
            bos_token_id=tokens.bos,
            eos_token_ids=tokens.eos,
            pad_token_id=tokens.pad,
        )

    def build(self):
        return CausalLM(self, (ToyLayer(self, layer) for layer in range(self.num_layers)))


class ToyMLP(nn.Module):
    def __init__(self, config: ToyConfig) -> None:
        super().__init__()
        self.up_proj = Linear(config.hidden_size, config.intermediate_size)
        self.down_proj = Linear(config.intermediate_size, config.hidden_size)

    def forward(self, x):
        return self.down_proj(ops.gelu(self.up_proj(x)))


class ToyLayer(nn.Module):
    def __init__(self, config: ToyConfig, layer: int) -> None:
        super().__init__()
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Attention(config, layer)
        self.mlp = ToyMLP(config)

    def forward(self, x, *step):
        normed = self.norm(x)
        return ops.add(ops.add(self.self_attn(normed, *step), self.mlp(normed)), x)


__all__ = ["ToyConfig"]
