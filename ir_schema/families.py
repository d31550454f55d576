"""What each model family leaves unsaid in its `config.json`.

A family is understood when its tensors can be counted exactly from its config; that is all this table
claims, whether the runtime can execute it is the runtime's to say.
"""

from typing import Any

_LAYER_NORM: dict[str, Any] = {"norm": "layernorm", "gated_ffn": False, "activation": "gelu"}

FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {},
    "mixtral": {},
    "qwen2": {"qkv_bias": True},
    "qwen3": {"qk_norm": True},
    "qwen3_moe": {"qk_norm": True},
    "gemma": {"activation": "gelu_pytorch_tanh", "tied_embeddings": True},
    "gemma2": {
        "activation": "gelu_pytorch_tanh",
        "tied_embeddings": True,
        "post_norms": True,
        "full_attention_every": 2,
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
    "qwen2_moe": {"qkv_bias": True},
    "deepseek_v2": {},
    "deepseek_v3": {},
}
"""Fields of `ModelSpec` by `model_type`; what a config says itself wins over them."""

WITH_EXPERTS = ("mixtral", "qwen2_moe", "qwen3_moe", "gpt_oss", "deepseek_v2", "deepseek_v3")
"""Families whose configs name their experts (Gemma 4 may have some)."""

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
