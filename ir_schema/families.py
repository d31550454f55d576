"""What each model family leaves unsaid in its `config.json`.

A family is understood when its tensors can be counted exactly from its config; that is all this table
claims, whether the runtime can execute it is the runtime's to say.
"""

from typing import Any

_LAYER_NORM: dict[str, Any] = {"norm": "layernorm", "gated_ffn": False, "activation": "gelu"}

_GEMMA: dict[str, Any] = {
    "activation": "gelu_pytorch_tanh",
    "tied_embeddings": True,
    "unit_offset_norm": True,
    "scaled_embeddings": True,
    "norm_epsilon": 1e-6,
    "head_dim": 256,
}

FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"norm_epsilon": 1e-6},
    "mistral": {"norm_epsilon": 1e-6, "sliding_window": 4096},
    "mixtral": {"rope_theta": 1e6},
    "qwen2": {"qkv_bias": True, "norm_epsilon": 1e-6},
    "qwen3": {"qk_norm": True, "norm_epsilon": 1e-6, "head_dim": 128},
    "qwen3_moe": {"qk_norm": True, "norm_epsilon": 1e-6},
    "gemma": _GEMMA,
    "gemma2": {
        **_GEMMA,
        "post_norms": True,
        "sliding_window": 4096,
        "full_attention_every": 2,
        "attention_softcap": 50.0,
        "logit_softcap": 30.0,
    },
    "gemma3_text": {
        **_GEMMA,
        "post_norms": True,
        "qk_norm": True,
        "sliding_window": 4096,
        "full_attention_every": 6,
        "logit_softcap": None,
        "rope_theta": 1e6,
        "local_rope_theta": 1e4,
    },
    "gemma4_text": {
        "activation": "gelu_pytorch_tanh",
        "tied_embeddings": True,
        "post_norms": True,
        "qk_norm": True,
    },
    "phi": {
        **_LAYER_NORM,
        "activation": "gelu_new",
        "qkv_bias": True,
        "attention_output_bias": True,
        "mlp_bias": True,
        "lm_head_bias": True,
        "parallel_attention": True,
        "shared_norm": True,
    },
    "phi3": {},
    "falcon": {**_LAYER_NORM, "tied_embeddings": True, "parallel_attention": True},
    "gptj": {
        **_LAYER_NORM,
        "activation": "gelu_new",
        "mlp_bias": True,
        "lm_head_bias": True,
        "parallel_attention": True,
        "shared_norm": True,
    },
    "mpt": {**_LAYER_NORM, "tied_embeddings": True},
    "gpt_oss": {
        "qkv_bias": True,
        "attention_output_bias": True,
        "mlp_bias": True,
        "attention_sinks": True,
    },
    "qwen2_moe": {"qkv_bias": True, "norm_epsilon": 1e-6},
    "deepseek_v2": {},
    "deepseek_v3": {},
}
"""Fields of `ModelSpec` by `model_type`; what a config says itself wins over them."""

WITH_EXPERTS = ("mixtral", "qwen2_moe", "qwen3_moe", "gpt_oss", "deepseek_v2", "deepseek_v3")
"""Families whose configs name their experts (Gemma 4 may have some)."""

WEIGHTS_AS_ROUTED = ("qwen2_moe", "qwen3_moe", "deepseek_v2")
"""Families whose experts' weights do not add up to 1 unless `norm_topk_prob` says so."""

LATENT_ATTENTION = ("deepseek_v2", "deepseek_v3")
"""Families with multi-head latent attention."""

RECURRENT = ("mamba", "mamba2", "falcon_mamba", "rwkv", "xlstm", "recurrent_gemma")
"""Families without attention in some or all layers whose configs need not show it."""

STATE_SPACE_MARKS = (
    "hybrid_override_pattern",
    "ssm_state_size",
    "mamba_num_heads",
    "mamba_d_state",
    "mamba_expand",
    "d_state",
    "state_size",
    "linear_num_key_heads",
    "lru_width",
    "attn_layer_period",
)
"""Keys that only configs with state-space or other recurrent layers have."""

SCORES_OF_GEMMA = ("gemma2", "gemma3_text")
"""Families that scale attention scores by a number of their config and may cap them and the logits."""

WINDOWS_ON_REQUEST = ("qwen2", "qwen3", "qwen2_moe", "qwen3_moe")
"""Families whose sliding window counts only with `use_sliding_window`, from layer `max_window_layers` on."""
