"""The keys of `config.json`: understood, known not to matter, or refused by name.

The compiler's import passes over what it does not know, for planning does not depend on it. A run does.
"""

from collections.abc import Iterator, Mapping
from typing import Any


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_UNDERSTOOD = _words("""
    model_type architectures dtype torch_dtype vocab_size hidden_size intermediate_size num_hidden_layers
    num_attention_heads num_key_value_heads head_dim hidden_act max_position_embeddings rms_norm_eps
    tie_word_embeddings rope_theta rope_scaling rope_parameters
""")
_WINDOWS = "use_sliding_window max_window_layers sliding_window layer_types"
_EXPERTS = """
    sliding_window max_window_layers layer_types num_experts num_local_experts num_experts_per_tok
    moe_intermediate_size norm_topk_prob decoder_sparse_step mlp_only_layers
"""
_GEMMA2 = """
    attention_bias hidden_activation sliding_window layer_types query_pre_attn_scalar final_logit_softcapping
"""
_OF_FAMILY = {
    "llama": _words("attention_bias mlp_bias"),
    "mistral": _words("sliding_window"),
    "qwen2": _words(_WINDOWS),
    "qwen3": _words(f"attention_bias {_WINDOWS}"),
    "mixtral": _words("sliding_window num_local_experts num_experts_per_tok"),
    "qwen2_moe": _words(f"{_EXPERTS} shared_expert_intermediate_size qkv_bias"),
    "qwen3_moe": _words(f"{_EXPERTS} attention_bias"),
    "gemma": _words("attention_bias hidden_activation"),
    "gemma2": _words(f"attn_logit_softcapping {_GEMMA2}"),
    "gemma3_text": _words(f"sliding_window_pattern rope_local_base_freq {_GEMMA2}"),
}
_OF_ROPE = _words("""
    rope_type type rope_theta factor original_max_position_embeddings low_freq_factor high_freq_factor
    beta_fast beta_slow attention_factor partial_rotary_factor
""")
_LAYER_KINDS = ("full_attention", "sliding_attention")
_IGNORED = _words("""
    transformers_version _name_or_path name_or_path unsloth_version unsloth_fixed tokenizer_class
    bos_token_id eos_token_id pad_token_id unk_token_id sep_token_id cls_token_id decoder_start_token_id
    use_cache cache_implementation initializer_range pretraining_tp base_model_tp_plan
    _attn_implementation _attn_implementation_autoset attn_implementation chunk_size_feed_forward
    id2label label2id num_labels problem_type finetuning_task task_specific_params
    return_dict use_return_dict output_attentions output_hidden_states
    max_length min_length do_sample temperature top_k top_p repetition_penalty num_beams
    sliding_window_size _sliding_window_pattern output_router_logits router_aux_loss_coef
""")
_ALLOWED: dict[str, tuple[Any, ...]] = {
    "attention_dropout": (0, 0.0),
    "use_bidirectional_attention": (False,),
    "is_encoder_decoder": (False,),
    "add_cross_attention": (False,),
    "is_decoder": (True, False),
    "rope_interleaved": (False,),
    "router_jitter_noise": (0, 0.0),
    # With experts, the families' definitions of which layers have a window changed over time.
    "use_sliding_window": (False,),
}
_LONGEST = 40


def not_understood(config: Mapping[str, Any]) -> list[str]:
    """Keys of a `config.json` that may change what the model computes in a way that nobody here knows, each
    with its value."""
    family = config.get("model_type")
    known = _UNDERSTOOD | _IGNORED | _OF_FAMILY.get(str(family), frozenset())
    found = []
    for key, value in config.items():
        if value is None or key in known:
            continue
        if key not in _ALLOWED or value not in _ALLOWED[key]:
            found.append(f"`{key}` = {_shown(value)}")
    for key in ("rope_scaling", "rope_parameters"):
        found += [f"`{key}.{inner}`" for inner in _unknown_rope(config.get(key), family == "gemma3_text")]
    return found


def _unknown_rope(rope: Any, nested: bool) -> Iterator[str]:
    if not isinstance(rope, Mapping):
        return
    for key, value in rope.items():
        if nested and key in _LAYER_KINDS:
            yield from (f"{key}.{inner}" for inner in _unknown_rope(value, False))
        elif value is not None and key not in _OF_ROPE:
            yield key


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST else text[:_LONGEST] + "…"
