"""Parameters of OpenAI, vLLM and SGLang that this version doesn't offer, with the values that ask for nothing.

Those values pass, since clients send them unasked; any other value would change the answer and is refused by name.
Knows names and values only.
"""

from __future__ import annotations

from collections.abc import Mapping

OFF = (False,)
ON = (True,)
NONE: tuple[list[object]] = ([],)  # nothing of what the list would hold

Neutral = Mapping[str, tuple[object, ...]]

#: names with no effect on the output
IGNORED = frozenset(
    {
        *("user", "metadata", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"),
        *("request_id", "rid"),  # what a client calls its request; the reply has an id of ours
        "parallel_tool_calls",  # says how tools may be called; tools themselves are refused
    }
)

GUIDED: Neutral = {
    "json_schema": (),
    "regex": (),
    "ebnf": (),
    "structural_tag": (),
    "structured_outputs": ({},),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": NONE,
    "guided_grammar": (),
    "guided_decoding_backend": (),
    "guided_whitespace_pattern": (),
}

GENERATING: Neutral = {
    **GUIDED,
    "store": OFF,
    "logprobs": OFF,
    "top_logprobs": (0,),
    "return_token_ids": OFF,
    "return_tokens_as_token_ids": OFF,
    "return_meta_info": OFF,
    "return_cached_tokens_details": OFF,
    "response_format": ({"type": "text"},),
    "stop_regex": ([],),
    "no_stop_trim": OFF,
    "lora_path": (),
    "extra_key": (),
    "cache_salt": (),
    "priority": (0,),
    "custom_logit_processor": (),
    "custom_params": ({},),
    "logits_processors": NONE,
    "allowed_token_ids": (),
    "bad_words": NONE,
    "use_beam_search": OFF,
    "length_penalty": (1,),
    "spaces_between_special_tokens": ON,
    "include_stop_str_in_output": OFF,
    "truncate_prompt_tokens": (),
    "prompt_logprobs": (),
    "return_hidden_states": OFF,
    "return_routed_experts": OFF,
    "kv_transfer_params": (),
    "vllm_xargs": ({},),
    "best_of": (1,),
    "echo": OFF,
    "suffix": ("",),
}

CHAT: Neutral = {
    **GENERATING,
    "tools": NONE,
    "tool_choice": ("none", "auto"),
    "functions": NONE,
    "function_call": ("none", "auto"),
    "audio": (),
    "modalities": (["text"],),
    "prediction": (),
    "web_search_options": (),
    "reasoning_effort": (),
    "reasoning": ({},),
    "thinking": (),
    "thinking_token_budget": (),
    "verbosity": ("medium",),
    "moderation": (),
    "include_reasoning": ON,
    "stream_reasoning": ON,
    "continue_final_message": OFF,
    "add_generation_prompt": ON,
    "add_special_tokens": OFF,
    "chat_template": (),
    "documents": NONE,
    "input_ids": (),
    "mm_processor_kwargs": ({},),
    "media_io_kwargs": ({},),
}

COMPLETION: Neutral = {
    **GENERATING,
    "logprobs": (),  # here 0 asks for the logprob of the chosen token
    "add_special_tokens": ON,
    "prompt_embeds": (),
}

#: of a message
MESSAGE: Neutral = {
    "refusal": ("",),
    "tool_calls": NONE,
    "tool_call_id": ("",),
    "function_call": (),
    "audio": (),
    "images": NONE,
    "reasoning_details": NONE,
    "thinking_blocks": NONE,
    "prefix": OFF,
    "partial": OFF,
    "cache_control": (),
}

__all__ = ["CHAT", "COMPLETION", "GENERATING", "GUIDED", "IGNORED", "MESSAGE", "NONE", "OFF", "ON", "Neutral"]
