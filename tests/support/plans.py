"""Backends that are not there, configs without checkpoints, and plans of the two. Knows shapes; opens no checkpoint."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from anychip.forecast.explain_costs import costs_json, costs_text
from anychip.forecast.price import price
from anychip.forecast.speeds import Known
from anychip.models.config import ModelConfig
from anychip.models.registry import config_of
from anychip.plan.explain import as_json, as_text
from anychip.plan.plan import Plan
from anychip.plan.resolve import CheckpointFacts, resolve
from anychip.recipe import load
from anychip.recipe.schema import Recipe
from anychip.text.thinking import TemplateThinking
from anychip_sdk.backend import Backend, BackendInfo, load_backend
from anychip_sdk.device import Capabilities, Device, DeviceConfig, DeviceInfo
from anychip_sdk.fusion import Fusion
from anychip_sdk.hooks import hookimpl
from anychip_sdk.ops import CATALOGUE
from anychip_sdk.registry import Need, Registrar, one_of
from anychip_sdk.testing import ReferenceDevice

GIB = 2**30
FLOATS = (torch.bfloat16, torch.float32, torch.float16)

#: Qwen3-8B's config.json, as far as a plan reads it
QWEN3_8B: Mapping[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": 151936,
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 40960,
    "rope_theta": 1000000,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "torch_dtype": "bfloat16",
    "bos_token_id": 151643,
    "eos_token_id": 151645,
}
#: Qwen3-30B-A3B's
QWEN3_30B_A3B: Mapping[str, Any] = {
    **QWEN3_8B,
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_hidden_layers": 48,
    "num_key_value_heads": 4,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "norm_topk_prob": True,
    "moe_intermediate_size": 768,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
}
#: SmolLM2-135M-Instruct's, as its GGUF file says it
SMOLLM2: Mapping[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 49152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "max_position_embeddings": 8192,
    "rope_theta": 100000,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
#: DeepSeek-V2-Lite-Chat's
DEEPSEEK_V2_LITE: Mapping[str, Any] = {
    "architectures": ["DeepseekV2ForCausalLM"],
    "model_type": "deepseek_v2",
    "vocab_size": 102400,
    "hidden_size": 2048,
    "intermediate_size": 10944,
    "moe_intermediate_size": 1408,
    "num_hidden_layers": 27,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "n_routed_experts": 64,
    "n_shared_experts": 2,
    "num_experts_per_tok": 6,
    "first_k_dense_replace": 1,
    "moe_layer_freq": 1,
    "topk_method": "greedy",
    "scoring_func": "softmax",
    "norm_topk_prob": False,
    "routed_scaling_factor": 1.0,
    "n_group": 1,
    "topk_group": 1,
    "q_lora_rank": None,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "max_position_embeddings": 163840,
    "rope_theta": 10000,
    "rope_scaling": {
        "type": "yarn",
        "factor": 40,
        "original_max_position_embeddings": 4096,
        "beta_fast": 32,
        "beta_slow": 1,
        "mscale": 0.707,
        "mscale_all_dim": 0.707,
    },
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "torch_dtype": "bfloat16",
    "bos_token_id": 100000,
    "eos_token_id": 100001,
}
#: what examples/smollm2_moe.py makes of it
SMOLLM2_MOE: Mapping[str, Any] = {
    **SMOLLM2,
    "architectures": ["Qwen2MoeForCausalLM"],
    "model_type": "qwen2_moe",
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "norm_topk_prob": True,
    "moe_intermediate_size": 768,
    "shared_expert_intermediate_size": 768,
    "decoder_sparse_step": 1,
    "mlp_only_layers": list(range(24)),
    "torch_dtype": "bfloat16",
}
TINY: Mapping[str, Any] = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "head_dim": 16,
    "rms_norm_eps": 1e-6,
}
ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "cohere2": "Cohere2ForCausalLM",
    "gemma2": "Gemma2ForCausalLM",
    "gemma3_text": "Gemma3ForCausalLM",
    "granite": "GraniteForCausalLM",
    "olmo2": "Olmo2ForCausalLM",
    "smollm3": "SmolLM3ForCausalLM",
}


def tiny_config(kind: str = "qwen3", **overrides: Any) -> ModelConfig:
    return config_of({"architectures": [ARCHITECTURES[kind]], **TINY, **overrides})


class StubPlugin:
    """A backend whose device is fixed: the references under its own name, or the kernels that it is given.

    Args:
        name: the backend's name; its device is `name:0`.
        capacity: bytes of the device.
        free: bytes that are free; None: all.
        kernels: op -> function; None: every op's reference.
        dtypes: what device and kernels have.
        versions: what the probe reports.
        present: whether there is a device at all.
        page_size: the page that the device wants.
        async_streams: whether work runs behind the host's back.
        requires: op -> what its kernel needs.
        fusions: of its own.
    """

    def __init__(
        self,
        name: str = "stub",
        *,
        capacity: int = 64 * GIB,
        free: int | None = None,
        kernels: Mapping[str, Callable[..., Any]] | None = None,
        dtypes: Sequence[torch.dtype] = FLOATS,
        versions: Mapping[str, str] | None = None,
        present: bool = True,
        claims: Mapping[str, str] | None = None,
        page_size: int | None = None,
        async_streams: bool = False,
        requires: Mapping[str, Mapping[str, Need]] | None = None,
        fusions: Sequence[Fusion] = (),
    ) -> None:
        self.info = BackendInfo(name, "stub", "~=1.0", claims=claims or {}, absence="its card is not there")
        self.kernels = {op: CATALOGUE[op].reference for op in CATALOGUE} if kernels is None else dict(kernels)
        self.requires = requires or {}
        self.fusions = fusions
        self.dtypes = tuple(dtypes)
        self.device = DeviceInfo(
            f"{name}:0",
            "Stub One",
            capacity,
            capacity if free is None else free,
            Capabilities(dtypes=self.dtypes, page_size=page_size, async_streams=async_streams),
            {"driver": "5.1.0"} if versions is None else versions,
        )
        self.present = present

    @hookimpl
    def anychip_backend(self) -> BackendInfo:
        return self.info

    @hookimpl
    def anychip_probe(self) -> Sequence[DeviceInfo]:
        return (self.device,) if self.present else ()

    @hookimpl
    def anychip_open_device(self, device: DeviceInfo, config: DeviceConfig) -> Device:
        return ReferenceDevice(self.info.name, device.memory_bytes_total)

    @hookimpl
    def anychip_fusions(self) -> Sequence[Fusion]:
        return self.fusions

    @hookimpl
    def anychip_register_ops(self, registry: Registrar) -> None:
        for op, kernel in self.kernels.items():
            needs = self.requires.get(op)
            registry.register(op, kernel, dtypes=self.dtypes, requires=needs, name=f"{op}_stub")


def stub_backend(name: str = "stub", **options: Any) -> Backend:
    return load_backend(name, StubPlugin(name, **options), distribution=f"anychip-{name}", version="0.1.0")


def references(*without: str) -> dict[str, Callable[..., Any]]:
    """Every op's reference as a kernel, but for those named."""
    return {name: op.reference for name, op in CATALOGUE.items() if name not in without}


#: what Qwen3's template does
SWITCHED = TemplateThinking("switch", "enable_thinking", True, is_marked=True)


def facts(config: ModelConfig, *, thinking: TemplateThinking = SWITCHED, path: str = "/models/m") -> CheckpointFacts:
    format_name = "gguf" if path.endswith(".gguf") else "safetensors"
    return CheckpointFacts(Path(path), format_name, config, thinking)


def plan_of(recipe: Recipe, config: ModelConfig, backend: Backend, **facts_options: Any) -> Plan:
    return resolve(recipe, facts(config, **facts_options), backend, backend.probe()[0], "named in the recipe")


# --- golden plans of the shipped recipes ---

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden" / "plans"
#: every recipe that is meant to be applied; what is named base is meant to be extended
SHIPPED = tuple(
    path for path in sorted((ROOT / "recipes").rglob("*.yaml")) if "base" not in (path.parent.name, path.stem)
)


@dataclass(frozen=True)
class GoldenCase:
    """A shipped recipe, by its path below recipes/ without the ending, on a fixed device."""

    recipe: str
    path: str
    raw_config: Mapping[str, Any]
    backend: str
    options: Mapping[str, Any] = field(default_factory=dict)
    thinking: TemplateThinking = SWITCHED

    def said(self) -> Recipe:
        """The recipe as it is shipped."""
        return load(ROOT / "recipes" / f"{self.recipe}.yaml", env={}).recipe

    def plan(self) -> Plan:
        config = config_of(self.raw_config)
        backend = stub_backend(self.backend, **self.options)
        return plan_of(self.said(), config, backend, path=self.path, thinking=self.thinking)

    def files(self) -> dict[Path, str]:
        """What `tests/golden/plans` holds for it; nobody measured its device."""
        plan, stem = self.plan(), self.recipe.replace("/", "-")
        config, backend = config_of(self.raw_config), stub_backend(self.backend, **self.options)
        cost = price(self.said(), plan, facts(config), backend, Known(None, "nobody measured it"))
        data = json.dumps(as_json(plan, costs_json(plan, cost)), indent=1, ensure_ascii=False)
        data = data.replace(f"{ROOT}/", "/repository/")  # of a source that a recipe names beside itself
        return {
            GOLDEN / f"{stem}.txt": as_text(plan, costs_text(plan, cost)) + "\n",
            GOLDEN / f"{stem}.json": data + "\n",
        }


P800: Mapping[str, Any] = {
    "capacity": 96 * GIB,
    "versions": {"driver": "5.0.21.21"},
    "page_size": 128,
    "async_streams": True,
}
ROOMY: Mapping[str, Any] = {"capacity": 96 * GIB, "versions": {"runtime": "2.13.0"}}
#: an int8 product that has one scale for a row of activations
WHOLE_ROWS: Mapping[str, Mapping[str, Need]] = {"linear_int8": {"block": one_of(0)}}
#: without whole blocks and with one fallback, so that a plan shows both
GPU: Mapping[str, Any] = {
    "capacity": 80 * GIB,
    "kernels": references("mha", "ffn", "apply_penalties"),
    "versions": {"driver": "580.1"},
    "async_streams": True,
}
GOLDEN_CASES = (
    GoldenCase(
        "quickstart",
        "/models/SmolLM2-135M-Instruct.Q4_1.gguf",
        SMOLLM2,
        "cpu",
        {"capacity": 16 * GIB, "free": 12 * GIB, "versions": {"runtime": "2.13.0"}},
        thinking=TemplateThinking(),
    ),
    GoldenCase(
        "smollm2-moe",
        "/repository/.models/smollm2-moe",
        SMOLLM2_MOE,
        "cpu",
        {"capacity": 16 * GIB, "free": 12 * GIB, "versions": {"runtime": "2.13.0"}},
        thinking=TemplateThinking(),
    ),
    GoldenCase(
        "deepseek-v2-lite-cpu",
        "/data/models/DeepSeek-V2-Lite-Chat",
        DEEPSEEK_V2_LITE,
        "cpu",
        ROOMY,
        thinking=TemplateThinking(),
    ),
    GoldenCase("qwen3-moe-cpu", "/data/models/Qwen3-30B-A3B", QWEN3_30B_A3B, "cpu", ROOMY),
    GoldenCase("qwen3-cpu", "/data/models/Qwen3-8B", QWEN3_8B, "cpu", {"versions": {"runtime": "2.13.0"}}),
    GoldenCase("qwen3-cpu-int4", "/data/models/Qwen3-8B", QWEN3_8B, "cpu", {"versions": {"runtime": "2.13.0"}}),
    GoldenCase("qwen3-cpu-int8", "/data/models/Qwen3-8B", QWEN3_8B, "cpu", {"versions": {"runtime": "2.13.0"}}),
    GoldenCase("qwen3-cuda", "/data/models/Qwen3-8B", QWEN3_8B, "cuda", GPU),
    GoldenCase("qwen3-kunlun", "/data/models/Qwen3-8B", QWEN3_8B, "kunlun", P800),
    GoldenCase("qwen3-kunlun-int8", "/data/models/Qwen3-8B", QWEN3_8B, "kunlun", {**P800, "requires": WHOLE_ROWS}),
    GoldenCase("qwen3-moe-kunlun", "/data/models/Qwen3-30B-A3B", QWEN3_30B_A3B, "kunlun", P800),
    GoldenCase("mixed-room/cuda", "/data/models/Qwen3-8B", QWEN3_8B, "cuda", GPU),
    GoldenCase("mixed-room/kunlun", "/data/models/Qwen3-8B", QWEN3_8B, "kunlun", P800),
)
