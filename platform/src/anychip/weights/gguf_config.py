"""Translate GGUF metadata into the keys of a Hugging Face config.json. Knows three architectures; reads no file."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

ARCHITECTURES: Mapping[str, str] = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}

# Keys that change the computation of a llama-like model in a way that no supported class has.
_REFUSED = ("expert_count", "attention.scale", "logit_scale", "embedding_scale", "residual_scale")


class GGUFFields:
    """Metadata of one architecture, by key without the architecture's prefix."""

    def __init__(self, metadata: Mapping[str, object], problems: list[str]) -> None:
        self.metadata = metadata
        self.problems = problems
        self.arch = str(metadata.get("general.architecture"))

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
        if value is None and f"{self.arch}.{key}" not in self.metadata:
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


def raw_config(
    metadata: Mapping[str, object], shapes: Mapping[str, tuple[int, ...]], problems: list[str]
) -> dict[str, object]:
    """The config.json that this file would have; `shapes` are those of its tensors, by GGUF name."""
    fields = GGUFFields(metadata, problems)
    if fields.arch not in ARCHITECTURES:
        problems.append(f"architecture {fields.arch!r} is not supported (supported: {', '.join(ARCHITECTURES)})")
        return {}
    for key in _REFUSED:
        if fields.number(key) not in (None, 0.0, 1.0):
            problems.append(f"{fields.arch}.{key} is set; models that use it are not supported")
    hidden, heads = fields.required("embedding_length"), fields.required("attention.head_count")
    head_dim = fields.integer("attention.key_length") or hidden // heads
    rotary = fields.integer("rope.dimension_count")
    if rotary not in (None, head_dim):
        problems.append(f"rope.dimension_count {rotary} of head size {head_dim}: partial rotary is not supported")
    embedding = shapes.get("token_embd.weight", ())
    raw: dict[str, object] = {
        "architectures": [ARCHITECTURES[fields.arch]],
        "model_type": fields.arch,
        "vocab_size": embedding[0] if embedding else fields.required("vocab_size"),
        "hidden_size": hidden,
        "intermediate_size": fields.required("feed_forward_length"),
        "num_hidden_layers": fields.required("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": fields.integer("attention.head_count_kv") or heads,
        "head_dim": head_dim,
        "max_position_embeddings": fields.required("context_length"),
        "rms_norm_eps": fields.number("attention.layer_norm_rms_epsilon") or 1e-6,
        "tie_word_embeddings": "output.weight" not in shapes,
        "attention_bias": "blk.0.attn_q.bias" in shapes,
        "mlp_bias": "blk.0.ffn_gate.bias" in shapes,
        "rope_theta": fields.number("rope.freq_base") or 10000.0,
    }
    window = fields.integer("attention.sliding_window")
    if window:
        problems.append(f"{fields.arch}.attention.sliding_window {window} is not supported in GGUF files")
    scaling = _scaling(fields)
    if scaling:
        raw["rope_scaling"] = scaling
    return raw | token_ids(metadata)


def token_ids(metadata: Mapping[str, object]) -> dict[str, object]:
    """The ids that config.json and generation_config.json would name."""

    def number(name: str) -> int | None:
        value = metadata.get(f"tokenizer.ggml.{name}_token_id")
        return value if isinstance(value, int) else None

    ends = dict.fromkeys(token for token in (number("eos"), number("eot")) if token is not None)
    return {
        "bos_token_id": number("bos"),
        "eos_token_id": list(ends) or None,
        "pad_token_id": number("padding"),
    }


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
    if share != 1.0:
        # GGUF's is relative to what the factor alone gives, config.json's is absolute
        scaling["attention_factor"] = share * (0.1 * math.log(factor) + 1.0)
    if fields.number("rope.scaling.yarn_log_multiplier") not in (None, 0.0):
        fields.problems.append(f"{fields.arch}.rope.scaling.yarn_log_multiplier is not supported")
    return scaling


def llama3_scaling(factors: Sequence[float], theta: float) -> dict[str, object] | None:
    """The llama3 parameters behind a table of rotary factors, None where it isn't such a table.

    A GGUF file holds the factors (one per angle, by which the frequency is divided) and not the parameters.
    They are 1 for short waves, `factor` for long ones, and between them 1/f is linear in the frequency, so the
    two lengths that matter (original / low and original / high) come out of that line; `low` can be set to 1.
    """
    table: npt.NDArray[np.float64] = np.asarray(factors, dtype=np.float64)
    if np.allclose(table, 1.0):
        return {"rope_type": "default"}
    factor = float(f"{table.max():.6g}")
    turns = theta ** (-np.arange(len(table)) / len(table)) / (2 * math.pi)  # per token
    between = (table > 1 + 1e-4) & (table < factor * (1 - 1e-4))
    if int(between.sum()) < 2 or factor <= 1:
        return None
    smooth = (1 / table[between] - 1 / factor) / (1 - 1 / factor)
    slope, offset = np.polyfit(turns[between], smooth, 1)
    if slope <= 0 or offset >= 0:
        return None
    # smooth = (original * turns - low) / (high - low), with low = 1
    high = float(f"{1 - 1 / offset:.4g}")
    original = round(slope * (high - 1))
    scaling: dict[str, object] = {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": high,
        "original_max_position_embeddings": original,
    }
    blend = np.clip((original * turns - 1) / (high - 1), 0, 1)
    expected = 1 / ((1 - blend) / factor + blend)
    return scaling if np.allclose(expected, table, rtol=1e-3) else None


__all__ = ["ARCHITECTURES", "llama3_scaling", "raw_config", "token_ids"]
