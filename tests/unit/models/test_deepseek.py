"""DeepSeek's mixtures: what configs say of routing and layers, and what is refused. Knows configs; runs nothing."""

import pytest

from anychip.models.registry import config_of
from anychip_sdk.errors import CheckpointInvalid

V3 = {"architectures": ["DeepseekV3ForCausalLM"], "num_hidden_layers": 4}
V2 = {"architectures": ["DeepseekV2ForCausalLM"], "num_hidden_layers": 4}


def test_v3_chooses_by_corrected_sigmoids_and_weighs_by_plain_ones():
    config = config_of({**V3, "routed_scaling_factor": 2.827, "n_group": 1, "topk_group": 1})
    routing = config.mixture.routing
    assert (routing.score, routing.group_score, routing.renormalise) == ("sigmoid", "sum2", "sum")
    assert (routing.factor, routing.floor, routing.groups) == (2.827, 1e-20, 1)
    assert config.mixture.has_selection_bias
    assert config.is_sparse == (False, False, False, True)
    name = "model.layers.3.mlp.gate.selection_bias"
    [bias] = config.sources(name, (256,))
    assert bias.tensor == "model.layers.3.mlp.gate.e_score_correction_bias"


def test_kimi_k2_is_v3_under_its_own_name():
    raw = {"model_type": "kimi_k2", "num_hidden_layers": 2, "first_k_dense_replace": 1, "n_routed_experts": 384}
    config = config_of(raw)
    assert (config.model_type, config.mixture.experts, config.is_sparse) == ("kimi_k2", 384, (False, True))
    named = config_of({**raw, "architectures": ["DeepseekV3ForCausalLM"]})
    assert named.mixture == config.mixture


def test_v2_has_groups_where_its_method_says_so_and_never_renormalises():
    grouped = {"n_group": 8, "topk_group": 3, "num_experts_per_tok": 6}
    greedy, limited = (
        config_of({**V2, **grouped, "topk_method": method}).mixture.routing
        for method in ("greedy", "group_limited_greedy")
    )
    assert (greedy.groups, greedy.renormalise) == (1, "none")
    assert (limited.groups, limited.top_groups, limited.group_score) == (8, 3, "max")


@pytest.mark.parametrize(
    ("raw", "complaint"),
    [
        ({**V3, "scoring_func": "softmax"}, "scoring_func is 'softmax', expected sigmoid"),
        ({**V3, "topk_method": "greedy"}, "topk_method is 'greedy', expected noaux_tc"),
        ({**V3, "moe_layer_freq": 2}, "moe_layer_freq is 2, expected 1"),
        ({**V2, "norm_topk_prob": True}, "norm_topk_prob is True, expected false"),
        ({**V2, "topk_method": "noaux_tc"}, "topk_method is 'noaux_tc', expected greedy or group_limited_greedy"),
    ],
)
def test_routing_that_would_be_computed_wrongly_is_refused(raw, complaint):
    with pytest.raises(CheckpointInvalid, match=complaint):
        config_of(raw)


def test_layers_that_predict_further_tokens_are_not_read():
    config = config_of({**V3, "num_nextn_predict_layers": 1})
    assert config.ignores("model.layers.4.mlp.gate.weight")
    assert not config.ignores("model.layers.5.mlp.gate.weight")
    assert not config.ignores("model.layers.3.mlp.gate.weight")


def test_glm_names_each_layers_kind():
    raw = {"architectures": ["Glm4MoeLiteForCausalLM"], "num_hidden_layers": 3}
    assert config_of(raw).is_sparse == (False, True, True)
    assert config_of({**raw, "mlp_layer_types": ["sparse", "dense", "sparse"]}).is_sparse == (True, False, True)
    with pytest.raises(CheckpointInvalid, match="mlp_layer_types"):
        config_of({**raw, "mlp_layer_types": ["sparse", "wide", "sparse"]})
