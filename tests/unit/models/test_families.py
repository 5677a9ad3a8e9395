"""What families' configs take for granted and refuse. Knows raw configs; builds no model."""

import pytest
import transformers

from anychip.models.registry import FAMILIES, config_of, gguf_families, parse_config
from anychip_sdk.errors import CheckpointInvalid

#: architecture -> the class of transformers, and what it calls things otherwise
CLASSES = {
    "MistralForCausalLM": ("MistralConfig", {}),
    "Ministral3ForCausalLM": ("Ministral3Config", {}),
    "SmolLM3ForCausalLM": ("SmolLM3Config", {}),
    "InternLM3ForCausalLM": ("InternLM3Config", {}),
    "GraniteForCausalLM": ("GraniteConfig", {}),
    "Olmo2ForCausalLM": ("Olmo2Config", {}),
    "Olmo3ForCausalLM": ("Olmo3Config", {}),
    "Gemma2ForCausalLM": ("Gemma2Config", {"hidden_act": "hidden_activation"}),
    "Gemma3ForCausalLM": ("Gemma3TextConfig", {"hidden_act": "hidden_activation"}),
    "Glm4ForCausalLM": ("Glm4Config", {}),
    "Phi3ForCausalLM": ("Phi3Config", {}),
    "Qwen3_5ForCausalLM": ("Qwen3_5TextConfig", {}),
    "Cohere2ForCausalLM": ("Cohere2Config", {"rms_norm_eps": "layer_norm_eps"}),
    "Qwen3MoeForCausalLM": ("Qwen3MoeConfig", {}),
    "Qwen3NextForCausalLM": ("Qwen3NextConfig", {}),
    "Qwen3_5MoeForCausalLM": ("Qwen3_5MoeTextConfig", {"intermediate_size": "moe_intermediate_size"}),
    "Qwen2MoeForCausalLM": ("Qwen2MoeConfig", {}),
    "OlmoeForCausalLM": ("OlmoeConfig", {}),
    "MixtralForCausalLM": ("MixtralConfig", {}),
    "Glm4MoeForCausalLM": ("Glm4MoeConfig", {}),
    "Ernie4_5_MoeForCausalLM": ("Ernie4_5_MoeConfig", {}),
    "HunYuanMoEV1ForCausalLM": ("HunYuanMoEV1Config", {}),
    "GraniteMoeForCausalLM": ("GraniteMoeConfig", {}),
    "GptOssForCausalLM": ("GptOssConfig", {}),
    "MiniCPM3ForCausalLM": ("MiniCPM3Config", {}),
    "DeepseekV2ForCausalLM": ("DeepseekV2Config", {}),
    "DeepseekV3ForCausalLM": ("DeepseekV3Config", {}),
    "Glm4MoeLiteForCausalLM": ("Glm4MoeLiteConfig", {}),
}
FIELDS = {
    "vocab_size": "vocab_size",
    "hidden_size": "hidden_size",
    "intermediate_size": "intermediate_size",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "num_kv_heads": "num_key_value_heads",
    "max_positions": "max_position_embeddings",
    "rms_norm_eps": "rms_norm_eps",
    "hidden_act": "hidden_act",
    "tie_word_embeddings": "tie_word_embeddings",
    "bos_token_id": "bos_token_id",
}


def refusal(architecture, **raw):
    with pytest.raises(CheckpointInvalid) as caught:
        config_of({"architectures": [architecture], **raw})
    return str(caught.value)


@pytest.mark.parametrize("architecture", CLASSES)
def test_absent_keys_mean_what_they_mean_in_transformers(architecture):
    name, renamed = CLASSES[architecture]
    theirs = getattr(transformers, name)()
    config = config_of({"architectures": [architecture]})
    found = {field: getattr(config, field) for field in FIELDS}
    assert found == {field: getattr(theirs, renamed.get(key, key)) for field, key in FIELDS.items()}
    assert config.model_type == theirs.model_type
    assert config.head_dim == (getattr(theirs, "head_dim", None) or theirs.hidden_size // theirs.num_attention_heads)
    ends = theirs.eos_token_id
    assert config.eos_token_ids == tuple(ends if isinstance(ends, list) else [] if ends is None else [ends])
    ropes = theirs.rope_parameters
    assert config.rope.theta == ropes.get("full_attention", ropes)["rope_theta"]
    assert config.rope.partial == ropes.get("partial_rotary_factor", 1.0)
    windows = [config.window(layer) for layer in range(config.num_layers)]
    window = getattr(theirs, "sliding_window", None)
    types = getattr(theirs, "layer_types", None) or ["sliding_attention"] * config.num_layers
    assert windows == [window if one == "sliding_attention" else None for one in types]


def test_every_family_is_compared_with_its_class():
    known = {name for family in FAMILIES for name in family.architectures}
    assert known >= CLASSES.keys()


@pytest.mark.parametrize(
    ("architecture", "raw", "words"),
    [
        ("Gemma2ForCausalLM", {"use_bidirectional_attention": True}, "use_bidirectional_attention is True"),
        ("Gemma2ForCausalLM", {"attn_logit_softcapping": -1}, "attn_logit_softcapping is -1"),
        ("Gemma3ForCausalLM", {"layer_types": ["sliding_attention"]}, "layer_types has 1 entries for 26 layers"),
        ("GraniteForCausalLM", {"residual_multiplier": 0}, "residual_multiplier is 0"),
        ("SmolLM3ForCausalLM", {"no_rope_layers": [1, 0]}, "no_rope_layers has 2 entries for 36 layers"),
        ("MistralForCausalLM", {"sliding_window": "wide"}, "sliding_window is 'wide'"),
        ("MistralForCausalLM", {"layer_types": ["full_attention"]}, "layer_types is ['full_attention']"),
        ("Phi3ForCausalLM", {"rope_scaling": {"type": "su", "short_factor": [1]}}, "long_factor is missing"),
        (
            "Phi3ForCausalLM",
            {"rope_scaling": {"type": "longrope", "short_factor": [1, 2], "long_factor": ["x"]}},
            "short_factor has 2 numbers, the rotation has 48 pairs",
        ),
        ("Glm4ForCausalLM", {"partial_rotary_factor": 1.5}, "partial_rotary_factor is 1.5"),
    ],
)
def test_what_would_be_computed_wrongly_is_refused_by_name(architecture, raw, words):
    assert words in refusal(architecture, **raw)


def test_keys_of_published_configs_are_known():
    published = {
        "Cohere2ForCausalLM": {
            "layer_switch": 4,
            "order_of_interleaved_layers": "local_attn_first",
            "position_embedding_type": "rope_gptj",
            "rotary_pct": 1.0,
            "sliding_window_pattern": 4,
            "use_parallel_block": True,
        },
        "Gemma2ForCausalLM": {"hidden_act": "gelu_pytorch_tanh", "hidden_activation": "gelu_pytorch_tanh"},
        "Gemma3ForCausalLM": {"rope_local_base_freq": 10000, "rope_theta": 1000000, "sliding_window_pattern": 6},
        "InternLM3ForCausalLM": {"rope_scaling": {"factor": 6.0, "rope_type": "dynamic"}, "bias": False},
        "SmolLM3ForCausalLM": {
            "no_rope_layers": [1, 1, 1, 0] * 9,
            "max_window_layers": 28,
            "use_sliding_window": False,
        },
    }
    for architecture, raw in published.items():
        problems, notes = [], []
        parse_config({"architectures": [architecture], **raw}, {}, problems, notes=notes)
        assert (problems, notes) == ([], [])
    assert "use_parallel_block is False" in refusal("Cohere2ForCausalLM", use_parallel_block=False)


def test_a_gguf_architecture_belongs_to_one_family():
    known = [family.gguf.architecture for family in FAMILIES if family.gguf is not None]
    assert sorted(set(known)) == sorted(known)
    assert gguf_families()["granite"].architectures == ("GraniteForCausalLM",)


def test_a_sample_has_a_layer_of_each_kind():
    def windows(architecture, **raw):
        config = config_of({"architectures": [architecture], **raw}).sample(32)
        return [config.window(layer) for layer in range(config.num_layers)]

    assert windows("LlamaForCausalLM") == [None]
    assert windows("Gemma2ForCausalLM") == [4096, None]
    assert windows("Gemma3ForCausalLM", sliding_window=512) == [512, None]
    smol = config_of({"architectures": ["SmolLM3ForCausalLM"]}).sample(32)
    assert smol.is_turned == (True, False)


def test_gemmas_embeddings_are_multiplied_by_a_root_of_the_models_digits():
    raw = {"architectures": ["Gemma3ForCausalLM"], "hidden_size": 3072}
    assert config_of({**raw, "dtype": "bfloat16"}).factors.embedding == 55.5
    assert config_of({**raw, "dtype": "float32"}).factors.embedding == pytest.approx(3072**0.5)
