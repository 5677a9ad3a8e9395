"""What GGUF files of Llama-like decoders have in common: metadata keys and tensor names. Reads no file."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType

from anychip.models.gguf_names import GGUFFields

#: outside of layers
TENSORS: Mapping[str, str] = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
#: within each layer
LAYER_TENSORS: Mapping[str, str] = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
#: the same of families with a norm behind attention and one behind the MLP
POST_NORMS: Mapping[str, str] = {
    **LAYER_TENSORS,
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
#: modules whose rows llama's converter interleaves; other architectures keep the model's own order
INTERLEAVED: Mapping[str, str] = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}

NONE: Mapping[str, str] = MappingProxyType({})
# Keys that change the computation of a decoder, and that are refused in families that don't read them.
_REFUSED = (
    *("expert_count", "attention.scale", "logit_scale", "embedding_scale", "residual_scale"),
    *("attn_logit_softcapping", "final_logit_softcapping"),
)


def read_decoder_config(
    fields: GGUFFields, numbers: Mapping[str, str] = NONE, *, is_partial: bool = False, has_window: bool = False
) -> dict[str, object]:
    """The keys of config.json that a decoder's metadata stands for.

    Args:
        fields: the metadata.
        numbers: further keys that the family reads -> config.json's.
        is_partial: a part of each head may be turned.
        has_window: some layers may see a window only.
    """
    for key in _REFUSED:
        if key not in numbers and fields.number(key) not in (None, 0.0, 1.0):
            fields.problems.append(f"{fields.arch}.{key} is set; models that use it are not supported")
    hidden, heads = fields.required("embedding_length"), fields.required("attention.head_count")
    head_dim = fields.integer("attention.key_length") or hidden // heads
    rotary = fields.integer("rope.dimension_count")
    if rotary not in (None, head_dim) and not is_partial:
        fields.problems.append(
            f"rope.dimension_count {rotary} of head size {head_dim}: partial rotary is not supported"
        )
    embedding = fields.shapes.get("token_embd.weight", ())
    raw: dict[str, object] = {
        "vocab_size": embedding[0] if embedding else fields.required("vocab_size"),
        "hidden_size": hidden,
        "intermediate_size": fields.required("feed_forward_length"),
        "num_hidden_layers": fields.required("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": fields.integer("attention.head_count_kv") or heads,
        "head_dim": head_dim,
        "max_position_embeddings": fields.required("context_length"),
        "rms_norm_eps": _given(fields.number("attention.layer_norm_rms_epsilon"), 1e-6),
        "tie_word_embeddings": "output.weight" not in fields.shapes,
        "attention_bias": "blk.0.attn_q.bias" in fields.shapes,
        "mlp_bias": "blk.0.ffn_gate.bias" in fields.shapes,
        "rope_theta": _given(fields.number("rope.freq_base"), 10000.0),
    }
    raw.update({name: fields.number(key) for key, name in numbers.items() if key in fields})
    if is_partial and rotary is not None:
        raw["partial_rotary_factor"] = rotary / head_dim
    window = fields.integer("attention.sliding_window")
    if has_window:
        raw["sliding_window"] = window or None
    elif window:
        fields.problems.append(f"{fields.arch}.attention.sliding_window {window} is not supported in GGUF files")
    scaling = _scaling(fields)
    if scaling:
        raw["rope_scaling"] = scaling
    return raw


def _given(value: float | None, default: float) -> float:
    return default if value is None else value


def _scaling(fields: GGUFFields) -> dict[str, object]:
    kind = fields.metadata.get(f"{fields.arch}.rope.scaling.type")
    factor = fields.number("rope.scaling.factor")
    old_style = fields.number("rope.scale_linear")
    if kind is None and old_style not in (None, 1.0):
        kind, factor = "linear", old_style
    if kind in (None, "none") or factor is None:
        return {}
    scaling: dict[str, object] = {"rope_type": kind, "factor": factor}
    if kind != "yarn":
        return scaling  # an unknown type is refused where the config is parsed
    scaling["original_max_position_embeddings"] = fields.integer("rope.scaling.original_context_length")
    for key, name in (("yarn_beta_fast", "beta_fast"), ("yarn_beta_slow", "beta_slow")):
        scaling[name] = fields.number(f"rope.scaling.{key}")
    share = fields.number("rope.scaling.yarn_attn_factor") or fields.number("rope.scaling.attn_factor") or 1.0
    if share != 1.0 and factor > 0:
        # GGUF's is relative to what the factor alone gives, config.json's is absolute
        scaling["attention_factor"] = share * (0.1 * math.log(factor) + 1.0)
    if fields.number("rope.scaling.yarn_log_multiplier") not in (None, 0.0):
        fields.problems.append(f"{fields.arch}.rope.scaling.yarn_log_multiplier is not supported")
    return scaling


__all__ = ["INTERLEAVED", "LAYER_TENSORS", "POST_NORMS", "TENSORS", "read_decoder_config"]
