"""The table of angles equals transformers' for every scaling. Knows no model."""

import math

import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from anychip.models.registry import config_of
from anychip.models.rope import rope_table

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 256,
}
LONGROPE = {
    "rope_type": "longrope",
    "original_max_position_embeddings": 512,
    "short_factor": [1.0 + pair / 32 for pair in range(32)],
    "long_factor": [1.0 + pair for pair in range(32)],
}
SCALINGS = {
    "default": None,
    "linear": {"rope_type": "linear", "factor": 4.0},
    "llama3": LLAMA3,
    "llama3 with other bounds": {**LLAMA3, "low_freq_factor": 2.0, "high_freq_factor": 32.0},
    "yarn": YARN,
    "yarn with bounds": {**YARN, "factor": 8.0, "beta_fast": 24.0, "beta_slow": 2.0},
    "yarn with attention factor": {**YARN, "attention_factor": 0.7},
    "yarn with mscale": {**YARN, "mscale": 1.0, "mscale_all_dim": 0.5},
    "yarn without truncation": {**YARN, "truncate": False},
    "longrope": LONGROPE,
    "longrope with attention factor": {**LONGROPE, "attention_factor": 1.3},
}
POSITIONS = 2048


def raw(scaling, theta=10000.0, head_dim=64):
    return {
        "architectures": ["LlamaForCausalLM"], "hidden_size": 4 * head_dim, "num_attention_heads": 4,
        "head_dim": head_dim, "max_position_embeddings": POSITIONS, "rope_theta": theta,
        **({} if scaling is None else {"rope_scaling": dict(scaling)}),
    }  # fmt: skip


def theirs(config, positions=POSITIONS):
    """Cosines and sines [positions, head_dim / 2] as transformers computes them."""
    config = {key: value for key, value in config.items() if key != "architectures"}
    module = LlamaRotaryEmbedding(LlamaConfig(**config))
    cos, sin = module(torch.zeros(1), torch.arange(positions).unsqueeze(0))
    half = config["head_dim"] // 2
    return torch.cat((cos[0, :, :half], sin[0, :, :half]), dim=-1)


@pytest.mark.parametrize("theta", [10000.0, 1000000.0])
@pytest.mark.parametrize("name", SCALINGS)
def test_the_table_equals_transformers(name, theta):
    config = raw(SCALINGS[name], theta)
    ours = rope_table(config_of(config).rope, 64, POSITIONS)
    assert ours.shape == (POSITIONS, 64)
    assert ours.dtype == torch.float32
    # an angle near 2000 is rounded to 1e-4
    torch.testing.assert_close(ours, theirs(config), rtol=0, atol=2e-4)


def test_longrope_takes_the_short_factors_up_to_the_original_context():
    config = raw(LONGROPE)
    short = rope_table(config_of(config).rope, 64, 512)
    torch.testing.assert_close(short, theirs(config, 512), rtol=0, atol=2e-4)
    assert (short - rope_table(config_of(config).rope, 64, 513)[:512]).abs().max() > 0.1


def test_dynamic_scaling_is_none_for_the_positions_that_the_config_names():
    config = config_of(raw({"rope_type": "dynamic", "factor": 4.0}))
    torch.testing.assert_close(rope_table(config.rope, 64, POSITIONS), theirs(raw(None)), rtol=0, atol=2e-4)
    torch.testing.assert_close(
        theirs(raw({"rope_type": "dynamic", "factor": 4.0})), theirs(raw(None)), rtol=0, atol=2e-4
    )
    assert config.longest_context == POSITIONS


@pytest.mark.parametrize("name", [name for name in SCALINGS if name != "default"])
def test_each_scaling_changes_the_table(name):
    plain = rope_table(config_of(raw(None)).rope, 64, POSITIONS)
    scaled = rope_table(config_of(raw(SCALINGS[name])).rope, 64, POSITIONS)
    assert (plain - scaled).abs().max() > 0.1


def test_position_0_is_no_rotation():
    table = rope_table(config_of(raw(None)).rope, 64, 4)
    assert table[0].tolist() == [1.0] * 32 + [0.0] * 32


def test_the_first_pair_turns_by_one_radian_per_position():
    table = rope_table(config_of(raw(None)).rope, 64, 4)
    assert table[3, 0].item() == pytest.approx(math.cos(3))
    assert table[3, 32].item() == pytest.approx(math.sin(3))


EXTENDED = {
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512},
    "yarn without an original": {"rope_type": "yarn", "factor": 4.0},
    "linear": {"rope_type": "linear", "factor": 4.0},
}


@pytest.mark.parametrize("name", EXTENDED)
def test_positions_beyond_the_config_s_are_rotated_as_in_transformers(name):
    config = {**raw(EXTENDED[name]), "max_position_embeddings": 512}
    ours = config_of(config)
    assert (ours.max_positions, ours.longest_context) == (512, POSITIONS)
    table = rope_table(ours.rope, 64, POSITIONS)
    torch.testing.assert_close(table[512:], theirs(config)[512:], rtol=0, atol=2e-4)


@pytest.mark.parametrize(
    ("scaling", "positions", "longest"),
    [
        (None, 512, 512),
        (LLAMA3, 4096, 4096),  # a llama3 config names the scaled length
        ({**YARN, "original_max_position_embeddings": 32768}, 131072, 131072),
        ({**YARN, "original_max_position_embeddings": 32768}, 40960, 131072),
        ({"rope_type": "linear", "factor": 0.5}, 512, 512),
    ],
)
def test_the_longest_context_is_what_the_scaling_reaches(scaling, positions, longest):
    assert config_of({**raw(scaling), "max_position_embeddings": positions}).longest_context == longest
