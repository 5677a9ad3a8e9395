"""Keys of a config that its family did not read: those that would change what is computed are refused by name.

Knows the keys that classes of transformers have; knows no family. A new key of somebody's config is neither refused nor
ignored in silence: it is told (docs/decisions/0023-config-keys.md).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence

from anychip.models.raw import Fields

#: Keys that change what some class computes, and the values with which it computes as if the key were absent. Of a
#: list, with a value for each layer or part, each entry counts. Null is always neutral; a key without values never is.
NEUTRAL: Mapping[str, Sequence[object]] = {
    # which positions see which
    "alibi": (False,),
    "attention_chunk_size": (0,),
    "is_causal": (True,),
    "layer_types": ("full_attention",),
    "sliding_window": (0,),
    "sliding_window_size": (0,),
    "use_bidirectional_attention": (False,),
    "use_sliding_window": (False,),
    # rotation
    "layer_rope_theta": (),
    "no_rope_layers": (1,),
    "partial_rotary_factor": (1,),
    "position_embedding_type": ("rope", "rotary", "absolute"),  # the last was every config's default once
    "rope_interleave": (False,),
    "rope_interleaved": (False,),
    "rope_local_base_freq": (),
    "rope_ratio": (1,),
    "rotary_dim": (),
    "rotary_emb_base": (),
    "rotary_pct": (1,),
    # scores, heads
    "attention_in_multiplier": (1,),
    "attention_k_eq_v": (False,),
    "attention_multiplier": (),
    "attention_out_multiplier": (1,),
    "attention_value_scale": (1,),
    "attn_logit_softcapping": (0,),
    "attn_output_gate": (False,),
    "attn_temperature_tuning": (False,),
    "clip_qkv": (),
    "index_topk": (),
    "key_multiplier": (1,),
    "num_kv_shared_layers": (0,),
    "qk_layernorm": (False,),
    "query_pre_attn_scalar": (),
    "scale_attn_by_inverse_layer_idx": (False,),
    "use_qk_norm": (False,),
    # residuals, feed-forward
    "activation_sparsity_pattern": (0,),
    "apply_residual_connection_post_layernorm": (False,),
    "hidden_activation": (),
    "hidden_size_per_layer_input": (0,),
    "mlp_multipliers": (1,),
    "parallel_attn": (False,),
    "residual_multiplier": (1,),
    "scale_depth": (),
    "swiglu_alpha": (),
    "swiglu_limit": (0,),
    "use_double_wide_mlp": (False,),
    "use_parallel_residual": (False,),
    # embedding, logits
    "dim_model_base": (),
    "embedding_multiplier": (1,),
    "embedding_scale": (1,),
    "final_logit_softcapping": (0,),
    "lm_head_multiplier": (1,),
    "logit_scale": (1,),
    "logits_scaling": (1,),
    "mup_enabled": (False,),
    "scale_emb": (1,),
    "scale_embedding": (False,),
    # experts and their routing
    "enable_moe_block": (False,),
    "expert_selection_fn": ("softmax",),
    "moe_apply_router_weight_on_input": (False,),
    "moe_num_experts": (0,),
    "moe_routed_scaling_factor": (1,),
    "moe_router_logit_softcapping": (0,),
    "n_group": (0, 1),
    "n_routed_experts": (0,),
    "norm_topk_prob": (False,),
    "num_expert_group": (0, 1),
    "num_experts": (0,),
    "num_local_experts": (0,),
    "route_scale": (1,),
    "routed_scaling_factor": (1,),
    "router_scaling_factor": (1,),
    "scoring_func": ("softmax",),
    "shared_expert_combination_strategy": (),
    "topk_method": ("greedy",),
    "zero_expert_num": (0,),
    # what the tensors are
    "compression_config": (),
    "is_encoder_decoder": (False,),
    "pruned_heads": (),
    "quantization": (),
    # within rope_parameters and rope_scaling
    "attn_factor": (1,),
    "extrapolation_factor": (1,),
    "factor": (1,),
    "llama_4_scaling_beta": (0,),
    "long_factor": (),
    "mrope_interleaved": (False,),
    "mrope_section": (),
    "short_factor": (),
}  # fmt: skip

_HARMLESS: Mapping[str, str] = {
    "the class, and where the files come from":
        "model_type _name_or_path transformers_version auto_map torch_dtype dtype transformers.js_config "
        "name_or_path is_llama_config unsloth_version unsloth_fixed license model_name",
    "training":
        "attention_dropout attention_probs_dropout_prob attn_pdrop aux_loss_alpha aux_loss_coef dropout "
        "embd_pdrop ep_size gradient_checkpointing hidden_dropout hidden_dropout_prob init_std "
        "initializer_factor initializer_range input_jitter_noise mlp_dropout output_router_logits "
        "pretraining_tp resid_pdrop residual_dropout router_aux_loss_coef router_jitter_noise seq_aux "
        "tf_legacy_loss use_bfloat16 z_loss_coefficient",
    "generation, and what the library returns":
        "_attn_implementation _attn_implementation_autoset _experts_implementation attn_implementation "
        "begin_suppress_tokens cache_implementation do_sample eod_token_id length_penalty max_length "
        "min_length num_beams num_logits_to_keep num_return_sequences output_attentions output_hidden_states "
        "output_scores problem_type remove_invalid_values repetition_penalty return_dict "
        "return_dict_in_generate sep_token_id temperature top_k top_p torchscript use_cache unk_token_id "
        "use_flash_attn use_mamba_kernels",
    "other tasks and other kinds of model":
        "add_cross_attention bad_words_ids chunk_size_feed_forward classifier_dropout "
        "cross_attention_hidden_size decoder_start_token_id diversity_penalty early_stopping "
        "encoder_no_repeat_ngram_size exponential_decay_length_penalty finetuning_task forced_bos_token_id "
        "forced_eos_token_id id2label is_decoder label2id no_repeat_ngram_size num_beam_groups num_labels "
        "prefix sep_token suppress_tokens task_specific_params tie_encoder_decoder tokenizer_class typical_p",
    "what the tensors show: without them, or with other shapes, the checkpoint is refused":
        "attention_bias attention_out_bias first_k_dense_replace head_dim intermediate_size "
        "intermediate_size_mlp kv_lora_rank lm_head_bias mlp_bias moe_intermediate_size moe_k moe_layer_freq "
        "moe_num_shared_experts moe_topk n_shared_experts num_key_value_heads num_shared_experts q_lora_rank "
        "qk_head_dim qk_nope_head_dim qk_rope_head_dim qkv_bias shared_expert_intermediate_size "
        "shared_intermediate_size use_bias use_qkv_bias v_head_dim",
    "prediction of several tokens, which is not served":
        "mtp_loss_scaling_factor num_mtp_layers num_nextn_predict_layers use_mtp",
    "means something beside a key of NEUTRAL only":
        "_sliding_window_pattern attn_scale floor_scale max_window_layers moe_layer_end_index "
        "moe_layer_interval moe_layer_start_index moe_norm_min no_rope_layer_interval num_experts_per_tok "
        "num_experts_per_token sliding_window_pattern topk_group",
    "lengths that max_position_embeddings says, and parameters of other rope types than the one that is set":
        "attention_factor beta_fast beta_slow finetuned high_freq_factor low_freq_factor max_sequence_length "
        "model_max_length mscale mscale_all_dim original_max_position_embeddings rope_type seq_length "
        "truncate type",
}  # fmt: skip

#: Keys that don't change what is computed from the tensors that are there.
HARMLESS = frozenset(name for names in _HARMLESS.values() for name in names.split())

_SECTIONS = ("rope_parameters", "rope_scaling")
TEXT = "text_config"  #: the config of a model's text part, within that of a model which has others


def check_unread(fields: Fields, fixed: Mapping[str, Sequence[object]], unused: frozenset[str]) -> tuple[str, ...]:
    """Refuse keys of a config that nobody read and that say something else than what is computed.

    Args:
        fields: of config.json, after the family read it; problems go there.
        fixed: keys that the family needs not read, as it computes with these values only.
        unused: keys that mean nothing to this family.

    Returns:
        The keys about which nothing is known, whatever their values.
    """
    unknown = []
    for where, key, value in _unread(fields):
        known = fixed.get(key, NEUTRAL.get(key))
        if value is None or key in unused or (known is None and key in HARMLESS):
            continue
        if known is None:
            unknown.append(f"{where}{key}")
        elif not _is_neutral(value, known):
            accepted = " or ".join(_json(one) for one in (*known, None))
            problem = f"{accepted}: another value changes what is computed, and is not supported for this architecture"
            Fields({f"{where}{key}": value}, fields.problems, fields.where).complain(f"{where}{key}", problem)
    return tuple(dict.fromkeys(unknown))


def _unread(fields: Fields) -> Iterator[tuple[str, str, object]]:
    """What is in front of a key, the key, its value."""
    for key, value in fields.raw.items():
        if key not in fields.read:
            yield "", key, value
        elif key in _SECTIONS and isinstance(value, Mapping):
            # parameters, or an object of them for each type of layer
            for parameters in [inner for inner in value.values() if isinstance(inner, Mapping)] or [value]:
                yield from ((f"{key}.", name, one) for name, one in parameters.items() if name not in fields.read)
        elif key == TEXT and isinstance(value, Mapping):
            within = Fields(value, fields.problems, fields.where, fields.read)
            yield from ((f"{key}.{where}", name, one) for where, name, one in _unread(within))


def _is_neutral(value: object, neutral: Sequence[object]) -> bool:
    if isinstance(value, (list, tuple)):
        return all(one is None or one in neutral for one in value)
    return value == {} or value in neutral


def _json(value: object) -> str:
    return json.dumps(value) if value is None or isinstance(value, (bool, str)) else repr(value)


__all__ = ["HARMLESS", "NEUTRAL", "TEXT", "check_unread"]
