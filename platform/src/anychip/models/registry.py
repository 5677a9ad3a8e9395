"""The families that are served, and which of them a checkpoint belongs to. Knows names; knows no weights."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product

from torch import nn

from anychip.models.config import ModelConfig, check_sampling
from anychip.models.families.cohere2 import Cohere2Config
from anychip.models.families.deepseek_v2 import DeepseekV2Config
from anychip.models.families.deepseek_v3 import DeepseekV3Config, KimiK2Config
from anychip.models.families.ernie4_5_moe import Ernie4_5MoeConfig
from anychip.models.families.gemma2 import Gemma2Config
from anychip.models.families.gemma3 import Gemma3Config
from anychip.models.families.glm4 import Glm4Config
from anychip.models.families.glm4_moe import Glm4MoeConfig
from anychip.models.families.glm4_moe_lite import Glm4MoeLiteConfig
from anychip.models.families.gpt_oss import GptOssConfig
from anychip.models.families.granite import GraniteConfig
from anychip.models.families.granite_moe import GraniteMoeConfig
from anychip.models.families.hunyuan_moe import HunYuanMoeConfig
from anychip.models.families.internlm3 import InternLM3Config
from anychip.models.families.llama import LlamaConfig
from anychip.models.families.minicpm3 import MiniCPM3Config
from anychip.models.families.ministral3 import Ministral3Config
from anychip.models.families.mistral import MistralConfig
from anychip.models.families.mixtral import MixtralConfig
from anychip.models.families.olmo2 import Olmo2Config
from anychip.models.families.olmo3 import Olmo3Config
from anychip.models.families.olmoe import OlmoeConfig
from anychip.models.families.phi3 import Phi3Config
from anychip.models.families.qwen2 import Qwen2Config
from anychip.models.families.qwen2_moe import Qwen2MoeConfig
from anychip.models.families.qwen3 import Qwen3Config
from anychip.models.families.qwen3_5 import Qwen35Config
from anychip.models.families.qwen3_5_moe import Qwen35MoeConfig
from anychip.models.families.qwen3_moe import Qwen3MoeConfig
from anychip.models.families.qwen3_next import Qwen3NextConfig
from anychip.models.families.smollm3 import SmolLM3Config
from anychip.models.keys import check_unread
from anychip.models.raw import Fields, foreign_ids, refuse
from anychip.models.state import number_states

FAMILIES: tuple[type[ModelConfig], ...] = (
    LlamaConfig,
    Qwen2Config,
    Qwen3Config,
    MistralConfig,
    Ministral3Config,
    SmolLM3Config,
    InternLM3Config,
    GraniteConfig,
    Olmo2Config,
    Olmo3Config,
    Gemma2Config,
    Gemma3Config,
    Glm4Config,
    Phi3Config,
    Cohere2Config,
    Qwen35Config,
    Qwen35MoeConfig,
    Qwen3NextConfig,
    Qwen3MoeConfig,
    Qwen2MoeConfig,
    OlmoeConfig,
    MixtralConfig,
    HunYuanMoeConfig,
    GraniteMoeConfig,
    GptOssConfig,
    Glm4MoeConfig,
    Ernie4_5MoeConfig,
    MiniCPM3Config,
    DeepseekV2Config,
    DeepseekV3Config,
    KimiK2Config,
    Glm4MoeLiteConfig,
)


def config_of(raw: Mapping[str, object], generation: Mapping[str, object] | None = None) -> ModelConfig:
    """The config in config.json's content, with generation_config.json's where there is one.

    Raises:
        CheckpointInvalid: with every problem at once.
    """
    problems: list[str] = []
    config = parse_config(raw, generation or {}, problems)
    if config is None or problems:
        raise refuse("config", problems)
    return config


def parse_config(
    raw: Mapping[str, object],
    generation: Mapping[str, object],
    problems: list[str],
    file: str | None = None,
    notes: list[str] | None = None,
) -> ModelConfig | None:
    """Parse both files' content. Problems are appended; None where not even the architecture is known.

    `file` is where both come from, if it is one of another form; `notes` gets what a user should know.
    """
    fields = Fields(raw, problems, f"{file}, as config.json would say it" if file else "config.json")
    generated = Fields(generation, problems, file or "generation_config.json")
    architecture = _architecture(fields)
    if architecture is None:
        return None
    if "quantization_config" in fields:
        section = fields.section("quantization_config")
        method = section.string("quant_method", "unnamed") if section else "unnamed"
        problems.append(f"{fields.where}: quantization_config ({method}) is not supported; use unquantized weights")
    family = _architectures()[architecture]
    check_sampling(generated)
    config = family.parse(architecture, fields, generated)
    unknown = check_unread(fields, family.fixed, family.unused)
    if unknown and notes is not None:
        notes.append(f"{fields.where} has keys that nobody here knows, and that are not read: {', '.join(unknown)}")
    rows = config.vocab_size
    for one, key in product((fields, generated), ("bos_token_id", "eos_token_id", "pad_token_id")):
        known = [token for token in one.token_ids(key) if token >= 0]
        problems.extend(line for line in foreign_ids(one.where, key, known, rows) if line not in problems)
    return config


def build_model(config: ModelConfig) -> nn.Module:
    """The model's modules, without memory; their states know their groups."""
    model = config.build()
    number_states(model)
    return model


def gguf_families() -> Mapping[str, type[ModelConfig]]:
    """The families whose GGUF files can be read, by GGUF's name of the architecture."""
    return {family.gguf.architecture: family for family in FAMILIES if family.gguf is not None}


def _architectures() -> dict[str, type[ModelConfig]]:
    return {name: family for family in FAMILIES for name in family.architectures}


def _architecture(fields: Fields) -> str | None:
    known = _architectures()
    supported = ", ".join(known)
    names = fields.strings("architectures")
    if names:
        found = next((name for name in names if name in known), None)
        if found is None:
            fields.problems.append(
                f"{fields.where}: architecture {names[0]!r} is not supported (supported: {supported})"
            )
        return found
    model_type = fields.string("model_type", "")
    for name, family in known.items():
        if family.model_type == model_type:
            return name
    fields.problems.append(
        f"{fields.where}: names no known architecture (architectures absent, model_type {model_type!r}; "
        f"supported: {supported})"
    )
    return None


__all__ = ["FAMILIES", "build_model", "config_of", "gguf_families", "parse_config"]
