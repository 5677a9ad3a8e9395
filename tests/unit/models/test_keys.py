"""Keys that a family didn't read: what is refused, what is ignored, what is told."""

from __future__ import annotations

import pytest
import transformers

from anychip.models.keys import HARMLESS, NEUTRAL, check_unread
from anychip.models.raw import Fields
from anychip.models.registry import FAMILIES, config_of, parse_config
from anychip.weights.checkpoint import open_checkpoint
from anychip_sdk.errors import CheckpointInvalid
from support.tiny_models import make_tiny

LLAMA = {"architectures": ["LlamaForCausalLM"]}


def judged(raw, fixed=None, unused=frozenset()):
    """The problems and the unknown keys of a config of which nobody read anything."""
    fields = Fields(raw, [], "config.json")
    return fields.problems, check_unread(fields, fixed or {}, unused)


IN_TRANSFORMERS = [family for family in FAMILIES if family.model_type in transformers.CONFIG_MAPPING]


@pytest.mark.parametrize("family", IN_TRANSFORMERS, ids=lambda family: family.__name__)
def test_every_key_of_a_familys_class_in_transformers_is_known(family):
    theirs = transformers.CONFIG_MAPPING[family.model_type]().to_dict()
    problems, notes = [], []
    parse_config({**theirs, "architectures": [family.architectures[0]]}, {}, problems, None, notes)
    # some classes' own widths make no whole heads
    assert ([one for one in problems if "for this architecture" in one], notes) == ([], [])


@pytest.mark.parametrize("family", ["Llama", "Qwen2", "Qwen3"])
@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("final_logit_softcapping", 30.0),
        ("num_experts", 8),
        ("no_rope_layers", [1, 1, 0]),
        ("attention_multiplier", 0.1),
        ("rope_scaling", {"rope_type": "linear", "factor": 2.0, "llama_4_scaling_beta": 0.1}),
        ("rope_scaling", {"factor": 8.0}),
    ],
)
def test_what_would_change_the_computation_is_refused_by_name(family, key, value):
    with pytest.raises(CheckpointInvalid) as caught:
        config_of({"architectures": [f"{family}ForCausalLM"], key: value})
    assert key in str(caught.value)
    assert "is not supported for this architecture" in str(caught.value)


@pytest.mark.parametrize("key", sorted(NEUTRAL))
def test_neutral_values_pass_and_others_are_refused_with_what_is_expected(key):
    for value in (None, [], *NEUTRAL[key], [*NEUTRAL[key]]):
        assert judged({key: value}) == ([], ())
    for value in (0.125, "something", [0.125], {"a": 1}):
        (problem,), unknown = judged({key: value})
        assert problem.startswith(f"config.json: {key} is ")
        assert "null" in problem
        assert unknown == ()


def test_all_keys_that_are_refused_are_told_at_once():
    problems, _ = judged({"alibi": True, "logit_scale": 0.0625, "use_qk_norm": True})
    assert [problem.split()[1] for problem in problems] == ["alibi", "logit_scale", "use_qk_norm"]
    assert "expected false or null" in problems[0]


def test_a_key_belongs_to_one_table():
    assert HARMLESS & set(NEUTRAL) == set()


def test_training_and_bookkeeping_are_ignored():
    assert judged(dict.fromkeys(HARMLESS, "anything")) == ([], ())


def test_a_family_says_what_it_takes_for_granted_and_what_means_nothing_to_it():
    fixed = {"scoring_func": ("sigmoid",)}
    assert judged({"scoring_func": "sigmoid"}, fixed)[0] == []
    assert 'expected "sigmoid" or null' in judged({"scoring_func": "softmax"}, fixed)[0][0]
    assert judged({"scale_emb": 12}, unused=frozenset({"scale_emb"})) == ([], ())


def test_keys_that_were_read_are_the_familys_business():
    fields = Fields({"sliding_window": 7, "alibi": True, "logit_scale": 2.0}, [], "config.json")
    fields.optional_integer("sliding_window")
    fields.settle("alibi")
    assert "logit_scale" in fields
    assert check_unread(fields, {}, frozenset()) == ()
    assert fields.problems == []


def test_what_a_section_reads_counts_as_read():
    raw = {"rope_scaling": {"factor": 2.0, "short_factor": [2.0]}}
    fields = Fields(raw, [], "config.json")
    section = fields.section("rope_scaling")
    assert section is not None
    section.number("factor", 1.0)
    check_unread(fields, {}, frozenset())
    assert [problem.split()[1] for problem in fields.problems] == ["rope_scaling.short_factor"]


def test_unknown_keys_of_every_section_are_told_and_not_refused(tmp_path):
    nested = {"full_attention": {"rope_theta": 1e4, "new": 1}, "sliding_attention": {"rope_theta": 1e4, "new": 1}}
    folder = make_tiny(tmp_path, "llama", rope_parameters=nested, brand_new=3, absent=None)
    with open_checkpoint(folder) as checkpoint:
        (note,) = checkpoint.notes
    assert note.startswith("config.json has keys that nobody here knows")
    assert note.endswith("rope_parameters.new, brand_new")
