"""`config.json` of the families that the engine executes: compared with a model, and written for one.

Reading one is the compiler's import (`ir_schema.hugging_face`), so both see the same model in it.
"""

from typing import Any

from ir_schema.families import WITH_EXPERTS
from ir_schema.hugging_face import import_config
from ir_schema.model import Experts, ModelSpec

CLASSES = {
    "llama": ("LlamaForCausalLM", "LlamaForSequenceClassification"),
    "mistral": ("MistralForCausalLM", "MistralForSequenceClassification"),
    "qwen2": ("Qwen2ForCausalLM", "Qwen2ForSequenceClassification"),
    "qwen3": ("Qwen3ForCausalLM", "Qwen3ForSequenceClassification"),
    "mixtral": ("MixtralForCausalLM", "MixtralForSequenceClassification"),
    "qwen2_moe": ("Qwen2MoeForCausalLM", "Qwen2MoeForSequenceClassification"),
    "qwen3_moe": ("Qwen3MoeForCausalLM", "Qwen3MoeForSequenceClassification"),
    "gemma": ("GemmaForCausalLM", "GemmaForSequenceClassification"),
    "gemma2": ("Gemma2ForCausalLM", "Gemma2ForSequenceClassification"),
    "gemma3_text": ("Gemma3ForCausalLM", "Gemma3TextForSequenceClassification"),
}
"""By family: the class of a language model and that of a model with a scalar head."""

_FULL, _SLIDING = "full_attention", "sliding_attention"
# What is no part of a model's function, or is compared in another form (see `differences`).
_NOT_COMPARED = frozenset(
    {
        *("head", "bytes_per_parameter", "parameters", "family", "checkpoint"),
        *("kv_heads", "head_dim", "attention_scalar", "full_attention_every"),
        *("max_positions", "tied_embeddings", "ffn", "experts"),
    }
)


def differences(spec: ModelSpec, other: ModelSpec) -> list[tuple[str, Any, Any]]:
    """Fields of two architectures that make them compute different things, with both values."""
    pairs: dict[str, tuple[Any, Any]] = {
        name: (getattr(spec, name), getattr(other, name))
        for name in ModelSpec.__struct_fields__
        if name not in _NOT_COMPARED
    }
    pairs["kv_heads"] = (spec.query_groups, other.query_groups)
    pairs["head_dim"] = (spec.head_width, other.head_width)
    scalars = [m.attention_scalar or m.head_width for m in (spec, other)]
    pairs["attention_scalar"] = (scalars[0], scalars[1])
    if spec.max_positions and other.max_positions:
        pairs["max_positions"] = (spec.max_positions, other.max_positions)
    if not all(m.has_experts(i) for m in (spec, other) for i in range(m.layers)):
        pairs["ffn"] = (spec.ffn, other.ffn)
    pairs |= _expert_pairs(spec, other)
    if spec.has_lm_head:
        pairs["tied_embeddings"] = (spec.tied_embeddings, other.tied_embeddings)
    kinds = [[m.is_full_attention(i) for i in range(spec.layers)] for m in (spec, other)]
    if kinds[0] != kinds[1]:
        pairs["full_attention_every"] = (spec.full_attention_every, other.full_attention_every)
    return [(name, a, b) for name, (a, b) in pairs.items() if a != b]


def _expert_pairs(spec: ModelSpec, other: ModelSpec) -> dict[str, tuple[Any, Any]]:
    """What two architectures' experts compute, and which layers have them."""
    if spec.experts is None or other.experts is None:
        return {"experts": (spec.experts, other.experts)}
    pairs = {
        f"experts.{name}": (getattr(spec.experts, name), getattr(other.experts, name))
        for name in Experts.__struct_fields__
        if name not in ("dense_layers", "every", "skew")
    }
    layers = [[i for i in range(m.layers) if m.has_experts(i)] for m in (spec, other)]
    return pairs | {"layers with experts": (layers[0], layers[1])}


def written(spec: ModelSpec, family: str, precision: str, eos: int | None) -> dict[str, Any]:
    """The `config.json` of the model as one of `family` with weights in `precision`; `eos` ends a response.

    What the family cannot say is left out: `differences` with the import of the result tells of it.
    """
    config: dict[str, Any] = {
        "architectures": [CLASSES[family][0 if spec.has_lm_head else 1]],
        "model_type": family,
        "vocab_size": spec.vocabulary,
        "hidden_size": spec.hidden,
        "intermediate_size": spec.ffn,
        "num_hidden_layers": spec.layers,
        "num_attention_heads": spec.attention_heads,
        "num_key_value_heads": spec.query_groups,
        "head_dim": spec.head_width,
        "hidden_act": spec.activation,
        "rms_norm_eps": spec.norm_epsilon,
        "tie_word_embeddings": spec.tied_embeddings,
        "rope_theta": spec.rope_theta,
        "rope_scaling": _rope_scaling(spec),
        "torch_dtype": precision,
        "bos_token_id": None,
        "eos_token_id": eos,
        "pad_token_id": None,
    }
    if spec.max_positions:
        config["max_position_embeddings"] = spec.max_positions
    if not spec.has_lm_head:
        config["num_labels"] = 1
    if family not in ("mistral", "mixtral", "qwen2", "qwen2_moe"):
        config["attention_bias"] = spec.qkv_bias and spec.attention_output_bias
    return config | _of_family(spec, family)


def _of_family(spec: ModelSpec, family: str) -> dict[str, Any]:
    kinds = [_FULL if spec.is_full_attention(i) else _SLIDING for i in range(spec.layers)]
    windows = {"sliding_window": spec.sliding_window, "layer_types": kinds}
    if family == "llama":
        return {"mlp_bias": spec.mlp_bias}
    if family == "mistral":
        return {"sliding_window": spec.sliding_window}
    if spec.experts is not None:
        return _of_experts(spec, spec.experts, family)
    if family.startswith("qwen"):
        full = kinds.count(_FULL)
        return {"use_sliding_window": full < spec.layers, "max_window_layers": full, **windows}
    if family == "gemma":
        return {"hidden_activation": spec.activation}
    found = {
        "hidden_activation": spec.activation,
        "query_pre_attn_scalar": spec.attention_scalar or spec.head_width,
        "final_logit_softcapping": spec.logit_softcap,
        **windows,
    }
    if family == "gemma2":
        found["attn_logit_softcapping"] = spec.attention_softcap
    if family == "gemma3_text":
        found["rope_local_base_freq"] = spec.local_rope_theta or spec.rope_theta
    return found


def _of_experts(spec: ModelSpec, e: Experts, family: str) -> dict[str, Any]:
    if family == "mixtral":
        return {
            "intermediate_size": e.ffn,
            "num_local_experts": e.routed,
            "num_experts_per_tok": e.top_k,
            "sliding_window": spec.sliding_window,
        }
    found = {
        "use_sliding_window": False,
        "num_experts": e.routed,
        "num_experts_per_tok": e.top_k,
        "moe_intermediate_size": e.ffn,
        "norm_topk_prob": e.norm_top_k,
        "decoder_sparse_step": e.every,
        "mlp_only_layers": list(range(e.dense_layers)),
    }
    if family == "qwen2_moe":
        found |= {"qkv_bias": spec.qkv_bias, "shared_expert_intermediate_size": e.shared_ffn or None}
    return found


def _rope_scaling(spec: ModelSpec) -> dict[str, Any] | None:
    scaling = spec.rope_scaling
    if scaling is None:
        return None
    said = {
        "rope_type": scaling.kind,
        "factor": scaling.factor,
        "original_max_position_embeddings": scaling.original_positions,
        "low_freq_factor": scaling.low_frequency_factor,
        "high_freq_factor": scaling.high_frequency_factor,
        "beta_fast": scaling.beta_fast,
        "beta_slow": scaling.beta_slow,
        "attention_factor": scaling.attention_factor,
    }
    return {key: value for key, value in said.items() if value is not None}


def family_of(spec: ModelSpec) -> tuple[str | None, list[tuple[str, Any, Any]]]:
    """The family that a model can be written as: its own, or else any that computes the same. Where there is
    none, what its own (or the first) cannot say: field, the model's value, the family's."""
    families = [f for f in CLASSES if (f in WITH_EXPERTS) == (spec.experts is not None)]
    own = spec.family if spec.family in families else families[0]
    lacking: dict[str, list[tuple[str, Any, Any]]] = {}
    for family in dict.fromkeys((own, *families)):
        config = written(spec, family, "float32", None)
        lacking[family] = differences(spec, import_config(config, spec.head, family))
        if not lacking[family]:
            return family, []
    return None, lacking[own]
