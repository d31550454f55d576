"""Tiny random models of every family, made by transformers, with everything on that the family has."""

import functools
import json
from pathlib import Path
from typing import Any

import torch
import transformers

from ir_schema.hugging_face import import_config
from ir_schema.model import ModelSpec

COMMON: dict[str, Any] = {
    "vocab_size": 61,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
    "rope_theta": 10000.0,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "rope_theta": 10000.0}
LINEAR = {"rope_type": "linear", "factor": 3.0, "rope_theta": 500.0}
SCORES = {"query_pre_attn_scalar": 10, "final_logit_softcapping": 4.0}
EXPERTS = {"num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 40}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "llama tied": ("Llama", {"tie_word_embeddings": True, "num_key_value_heads": 4}),
    "llama head_dim": ("Llama", {"head_dim": 24, "rms_norm_eps": 0.1}),
    "llama linear": ("Llama", {"rope_parameters": LINEAR}),
    "llama llama3": ("Llama", {"rope_parameters": LLAMA3}),
    "llama yarn": ("Llama", {"rope_parameters": YARN}),
    "llama yarn factors": (
        "Llama",
        {"rope_parameters": {**YARN, "beta_fast": 8.0, "beta_slow": 2.0, "attention_factor": 1.3}},
    ),
    "mistral": ("Mistral", {"sliding_window": None, "head_dim": 24}),
    "mistral window": ("Mistral", {"sliding_window": 4}),
    "qwen2": ("Qwen2", {"tie_word_embeddings": True}),
    "qwen2 yarn": ("Qwen2", {"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e6}}),
    "qwen2 window": ("Qwen2", {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 0}),
    "qwen3": ("Qwen3", {"head_dim": 24, "tie_word_embeddings": True}),
    "mixtral": ("Mixtral", {"num_local_experts": 5, "num_experts_per_tok": 2, "head_dim": 24}),
    "mixtral window": ("Mixtral", {"num_local_experts": 3, "num_experts_per_tok": 1, "sliding_window": 4}),
    "qwen2_moe": ("Qwen2Moe", {**EXPERTS, "shared_expert_intermediate_size": 72}),
    "qwen2_moe normed": (
        "Qwen2Moe",
        {**EXPERTS, "shared_expert_intermediate_size": 24, "norm_topk_prob": True, "qkv_bias": False},
    ),
    "qwen3_moe": (
        "Qwen3Moe",
        {**EXPERTS, "head_dim": 24, "norm_topk_prob": True, "tie_word_embeddings": True},
    ),
    "qwen3_moe sparse": ("Qwen3Moe", {**EXPERTS, "num_hidden_layers": 4, "decoder_sparse_step": 2}),
    "qwen3_moe dense first": ("Qwen3Moe", {**EXPERTS, "mlp_only_layers": [0]}),
    "gemma": ("Gemma", {"head_dim": 24, "num_key_value_heads": 1, "tie_word_embeddings": True}),
    "gemma2": (
        "Gemma2",
        {
            "head_dim": 24,
            "sliding_window": 4,
            "attn_logit_softcapping": 3.0,
            "tie_word_embeddings": True,
            **SCORES,
        },
    ),
    "gemma3": (
        "Gemma3Text",
        {
            "head_dim": 24,
            "sliding_window": 4,
            "tie_word_embeddings": True,
            "layer_types": ["sliding_attention", "full_attention"],
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 50.0},
                "full_attention": LINEAR,
            },
            **SCORES,
        },
    ),
}


def config_of(case: str, **changes: Any) -> Any:
    """The configuration of a case as transformers has it."""
    kind, own = CASES[case]
    config = getattr(transformers, f"{kind}Config")(**COMMON | own | changes)
    config._attn_implementation = "eager"
    return config


@functools.cache
def _made(case: str, scalar: bool) -> Any:
    torch.manual_seed(0)
    auto = transformers.AutoModelForSequenceClassification if scalar else transformers.AutoModelForCausalLM
    model = auto.from_config(config_of(case, **({"num_labels": 1} if scalar else {})))
    with torch.no_grad():
        for parameter in model.parameters():  # far from where they start: every feature must show
            parameter.copy_(torch.randn_like(parameter) * 0.3 + (parameter.dim() == 1))
    return model.eval()


def saved(case: str, directory: Path, *, scalar: bool = False, **options: Any) -> tuple[ModelSpec, Any]:
    """Save a case's model (a language model, or one with a scalar head); its architecture and the model."""
    model = _made(case, scalar)
    model.save_pretrained(directory, **options)
    config = json.loads((directory / "config.json").read_text())
    return import_config(config, "scalar" if scalar else "lm", case), model
