"""Import of a Hugging Face `config.json` as published.

Unknown keys are tolerated, for published configs are full of them; keys that change which tensors a model
has are read or refused by name. Nothing is guessed: a size that is missing is an error, unless the family
defines a default for it.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from ir_schema.base import Head
from ir_schema.config_reader import Reader
from ir_schema.families import (
    FAMILIES,
    LATENT_ATTENTION,
    RECURRENT,
    SCORES_OF_GEMMA,
    STATE_SPACE_MARKS,
    WEIGHTS_AS_ROUTED,
    WINDOWS_ON_REQUEST,
    WITH_EXPERTS,
)
from ir_schema.model import Experts, FullAttention, LatentAttention, ModelSpec, RopeScaling

_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}
_NORMS = {"RMSNorm": "rmsnorm", "LayerNorm": "layernorm"}
_SOFTCAPS = {"attn_logit_softcapping": "attention_softcap", "final_logit_softcapping": "logit_softcap"}
# Facts written out where a config leaves them to its family: key, field, how to read the value.
_EXPLICIT: dict[str, str] = {
    "gated_mlp": "gated_ffn",
    "qkv_bias": "qkv_bias",
    "mlp_bias": "mlp_bias",
    "lm_head_bias": "lm_head_bias",
    "qk_norm": "qk_norm",
    "qk_layernorm": "qk_norm",
    "post_norms": "post_norms",
    "parallel_attn": "parallel_attention",
    "shared_norm": "shared_norm",
}


def import_config(config: Mapping[str, Any], head: Head, name: str) -> ModelSpec:
    """The model that `config` (decoded JSON) describes, with `head`; `name` is how messages call it.

    Raises DiagnosticError E321 (a family, or a feature that changes the parameters, that is not
    understood; state-space layers) or E322 (missing or impossible values).
    """
    text = config.get("text_config")
    inner = {**text} if isinstance(text, Mapping) else {**config}
    for inherited in ("tie_word_embeddings", "torch_dtype", "dtype"):
        if inherited in config:
            inner.setdefault(inherited, config[inherited])
    reader = Reader(inner, name)
    family = _family(reader)
    fields: dict[str, Any] = {**FAMILIES[family]}
    fields.update(_sizes(reader, family))
    if inner.get("attention_bias") is not None:
        fields["qkv_bias"] = fields["attention_output_bias"] = reader.flag("attention_bias", False)
    for key, field in _EXPLICIT.items():
        if inner.get(key) is not None:
            fields[field] = reader.flag(key, False)
    if inner.get("norm") is not None:
        if inner["norm"] not in _NORMS:
            raise reader.refuse(f"norm `{inner['norm']}`")
        fields["norm"] = _NORMS[inner["norm"]]
    fields["tied_embeddings"] = reader.flag("tie_word_embeddings", bool(fields.get("tied_embeddings", False)))
    if family == "falcon":
        fields.update(_falcon(reader))
    if family == "mpt":
        fields.update(_mpt(reader, fields["max_positions"]))
    fields.update(_attention_scores(reader, family, fields))
    fields.update(_attention_pattern(reader, family, fields))
    fields.update(_positions(reader, fields))
    fields["experts"] = _experts(reader, family)
    if family == "gemma4_text":
        fields["full_attention"] = _gemma4(reader)
    if family in LATENT_ATTENTION:
        fields["latent_attention"] = _latent_attention(reader)
    return ModelSpec(head=head, family=family, **fields)


def _family(reader: Reader) -> str:
    family = reader.config.get("model_type")
    if not isinstance(family, str):
        raise reader.fail("E322", "key `model_type` is missing")
    layer_types = reader.config.get("layer_types") or ()
    recurrent = [m for m in STATE_SPACE_MARKS if reader.config.get(m) is not None]
    if family in RECURRENT and not recurrent:
        recurrent = ["model_type"]
    if recurrent or any(
        "linear" in str(t) or "mamba" in str(t) or "recurrent" in str(t) for t in layer_types
    ):
        mark = (recurrent or ["layer_types"])[0]
        raise reader.fail(
            "E321",
            f"family `{family}` has state-space or other recurrent layers (`{mark}`)",
            "only attention models can be planned",
        )
    if family not in FAMILIES:
        raise reader.fail(
            "E321", f"family `{family}` is not understood", f"understood: {', '.join(FAMILIES)}"
        )
    return family


def _sizes(reader: Reader, family: str) -> dict[str, Any]:
    hidden = reader.integer("hidden_size", "n_embd", "d_model")
    heads = reader.integer("num_attention_heads", "n_head", "n_heads")
    unsaid = {"norm_epsilon": 1e-5} | FAMILIES[family]
    four_times = 4 * hidden if family in ("falcon", "gptj", "mpt") else None
    if family == "mpt" and reader.config.get("expansion_ratio") is not None:
        four_times = reader.integer("expansion_ratio") * hidden
    head_dim = reader.config.get("head_dim")
    if head_dim is None and hidden % heads and "head_dim" not in unsaid:
        raise reader.fail(
            "E322", f"{heads} heads do not divide hidden size {hidden} and `head_dim` is missing"
        )
    dtype = str(reader.first("torch_dtype", "dtype")[1] or "bfloat16").removeprefix("torch.")
    if dtype not in _BYTES:
        raise reader.refuse(f"number format `{dtype}`")
    fields: dict[str, Any] = {
        "layers": reader.integer("num_hidden_layers", "n_layer", "n_layers"),
        "hidden": hidden,
        "ffn": reader.integer("intermediate_size", "ffn_hidden_size", "n_inner", default=four_times),
        "vocabulary": reader.integer("vocab_size"),
        "attention_heads": heads,
        "kv_heads": reader.integer("num_key_value_heads", "num_kv_heads", default=heads),
        "bytes_per_parameter": _BYTES[dtype],
        "max_positions": reader.integer(
            "max_position_embeddings", "n_positions", "max_seq_len", default=0, least=0
        ),
        "norm_epsilon": reader.number(
            "rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_eps", default=unsaid["norm_epsilon"]
        ),
    }
    if head_dim is not None:
        fields["head_dim"] = reader.integer("head_dim")
    activation = reader.first("hidden_activation", "hidden_act", "activation_function", "activation")[1]
    if activation is not None:
        # Older configs of Gemma say gelu and mean its approximation.
        gemma = family.startswith("gemma") and activation == "gelu"
        fields["activation"] = "gelu_pytorch_tanh" if gemma else str(activation)
    if heads % fields["kv_heads"] and family not in LATENT_ATTENTION:
        raise reader.fail(
            "E322", f"{fields['kv_heads']} key/value heads do not divide {heads} attention heads"
        )
    return fields


def _falcon(reader: Reader) -> dict[str, Any]:
    """Falcon spells biases, grouped queries and the number of norms in its own keys."""
    fields: dict[str, Any] = {}
    if reader.config.get("bias") is not None:
        bias = reader.flag("bias", False)
        fields = {"qkv_bias": bias, "attention_output_bias": bias, "mlp_bias": bias}
    if (
        reader.config.get("new_decoder_architecture") is not None
        or reader.config.get("multi_query") is not None
    ):
        new = reader.flag("new_decoder_architecture", False)
        norms = reader.integer("num_ln_in_parallel_attn", default=2 if new else 1)
        fields["shared_norm"] = norms == 1 and reader.flag("parallel_attn", True)
        if not new:
            fields["kv_heads"] = (
                1 if reader.flag("multi_query", True) else reader.integer("num_attention_heads")
            )
    return fields


def _mpt(reader: Reader, positions: int) -> dict[str, Any]:
    """MPT: `no_bias` covers all linear layers and norms; ALiBi replaces the learned positions."""
    fields: dict[str, Any] = {}
    attention = reader.mapping("attn_config")
    if reader.config.get("no_bias") is not None:
        bias = not reader.flag("no_bias", True)
        fields = {"qkv_bias": bias, "mlp_bias": bias}
        fields["norm"] = "layernorm" if bias else "layernorm_without_bias"
        fields["shared_norm"] = False
    if attention.get("kv_n_heads") is not None:
        fields["kv_heads"] = int(attention["kv_n_heads"])
    if attention.get("qk_ln"):
        raise reader.refuse("`qk_ln`")
    alibi = bool(attention.get("alibi", False))
    if reader.flag("learned_pos_emb", True) and not alibi:
        fields["learned_positions"] = positions or reader.integer("max_seq_len")
    fields["attention_output_bias"] = bool(fields.get("qkv_bias", reader.flag("qkv_bias", False)))
    return fields


def _attention_scores(reader: Reader, family: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Gemma's scale and softcaps of attention scores and logits, as far as the family has them."""
    if family not in SCORES_OF_GEMMA:
        return {}
    width = fields.get("head_dim") or fields["hidden"] // fields["attention_heads"]
    scalar = reader.integer("query_pre_attn_scalar", default=256)
    caps = {}
    for key, field in _SOFTCAPS.items():
        if field in fields:
            unsaid = None if key in reader.config else fields[field]
            caps[field] = reader.number(key, default=unsaid or 0.0) or None
    return {"attention_scalar": None if scalar == width else scalar, **caps}


def _attention_pattern(reader: Reader, family: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """`sliding_window` and which layers are exempt from it."""
    layers = fields["layers"]
    unsaid = 0 if "sliding_window" in reader.config else fields.get("sliding_window") or 0
    window = reader.integer("sliding_window", default=unsaid, least=0) or None
    if not reader.flag("use_sliding_window", family not in WINDOWS_ON_REQUEST):
        window = None
    types = reader.config.get("layer_types")
    if types is None:
        types = _unsaid_types(reader, family, fields, layers)
    if types is None or window is None:
        return {"sliding_window": window, "full_attention_every": None}
    if (
        not isinstance(types, Sequence)
        or len(types) != layers
        or set(types) - {"sliding_attention", "full_attention"}
    ):
        raise reader.refuse("`layer_types`")
    if "sliding_attention" not in types:
        return {"sliding_window": None, "full_attention_every": None}
    if "full_attention" not in types:
        return {"sliding_window": window, "full_attention_every": None}
    every = types.index("full_attention") + 1
    if any((t == "full_attention") != ((i + 1) % every == 0) for i, t in enumerate(types)):
        raise reader.refuse("an irregular `layer_types`")
    return {"sliding_window": window, "full_attention_every": every}


def _unsaid_types(reader: Reader, family: str, fields: Mapping[str, Any], layers: int) -> list[str] | None:
    """The kinds of the layers where `layer_types` does not list them; None where all are alike."""
    if family in WINDOWS_ON_REQUEST:
        full = reader.integer("max_window_layers", default=28, least=0)
        return ["full_attention"] * min(full, layers) + ["sliding_attention"] * (layers - full)
    every = reader.integer("sliding_window_pattern", default=fields.get("full_attention_every") or 0, least=0)
    if not every:
        return None
    return ["sliding_attention" if (i + 1) % every else "full_attention" for i in range(layers)]


def _positions(reader: Reader, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Rotary positions, spelt `rope_theta` and `rope_scaling` or, lately, `rope_parameters`."""
    rope = reader.mapping("rope_parameters")
    local, full = rope.get("sliding_attention"), rope.get("full_attention")
    rope = full if isinstance(full, Mapping) else rope
    scaling = reader.mapping("rope_scaling") or rope
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    inner = Reader({**reader.config, **rope, **scaling}, reader.name)
    found: dict[str, Any] = {
        "rope_theta": inner.number("rope_theta", default=fields.get("rope_theta", 10000.0))
    }
    if fields.get("local_rope_theta") is not None:
        inside, key = Reader(local if isinstance(local, Mapping) else {}, reader.name), "rope_theta"
        if inside.config.get("rope_type", "default") != "default":
            raise reader.refuse("scaling of the sliding layers' positions")
        if not inside.config:
            inside, key = reader, "rope_local_base_freq"
        found["local_rope_theta"] = inside.number(key, default=fields["local_rope_theta"])
    fraction = inner.number("partial_rotary_factor", default=1.0)
    if reader.config.get("rotary_dim") is not None:
        width = reader.config.get("head_dim") or reader.integer("hidden_size", "n_embd") // reader.integer(
            "num_attention_heads", "n_head"
        )
        fraction = reader.integer("rotary_dim") / width
    found["rotary_fraction"] = fraction
    if kind not in ("default", None):
        # Where the scaling does not say what it stretches, it is all positions.
        unsaid = fields["max_positions"] if kind in ("llama3", "yarn") else None
        found["rope_scaling"] = RopeScaling(
            kind=str(kind),
            factor=inner.number("factor", default=1.0),
            original_positions=scaling.get("original_max_position_embeddings") or unsaid or None,
            low_frequency_factor=scaling.get("low_freq_factor"),
            high_frequency_factor=scaling.get("high_freq_factor"),
            beta_fast=scaling.get("beta_fast"),
            beta_slow=scaling.get("beta_slow"),
            attention_factor=scaling.get("attention_factor"),
        )
    return found


def _experts(reader: Reader, family: str) -> Experts | None:
    count = reader.integer("num_experts", "num_local_experts", "n_routed_experts", default=0, least=0)
    if not count:
        if family in WITH_EXPERTS:
            raise reader.fail("E322", "the number of experts is missing")
        return None
    if family not in (*WITH_EXPERTS, "gemma4_text"):
        raise reader.refuse(f"experts in family `{family}`")
    if reader.integer("moe_layer_freq", default=1) != 1:
        raise reader.refuse("`moe_layer_freq`")
    first = list(range(reader.integer("first_k_dense_replace", default=0, least=0)))
    without = reader.config.get("mlp_only_layers") or first
    if not isinstance(without, Sequence) or list(without) != list(range(len(without))):
        raise reader.refuse("`mlp_only_layers` that are not the first ones")
    dense = reader.integer("intermediate_size")
    width = reader.integer("moe_intermediate_size", default=dense)
    shared = 0
    if family == "gemma4_text":
        shared = dense
    elif family == "qwen2_moe":
        shared = reader.integer("shared_expert_intermediate_size", default=5632)
    elif reader.config.get("n_shared_experts"):
        shared = reader.integer("n_shared_experts") * width
    top_k = reader.integer("num_experts_per_tok", "top_k_experts", "experts_per_token")
    if top_k > count:
        raise reader.fail("E322", f"{top_k} experts per token of {count}")
    return Experts(
        routed=count,
        top_k=top_k,
        ffn=width,
        shared_ffn=shared,
        dense_layers=len(without),
        every=reader.integer("decoder_sparse_step", default=1),
        norm_top_k=reader.flag("norm_topk_prob", family not in WEIGHTS_AS_ROUTED),
        router_bias=family in ("gpt_oss", "deepseek_v3"),
        shared_gate=family == "qwen2_moe",
    )


def _gemma4(reader: Reader) -> FullAttention:
    """Gemma 4: full-attention layers have their own head shape. The per-layer inputs, shared key/value layers
    and double-width layers of its small members are refused."""
    for key in ("hidden_size_per_layer_input", "num_kv_shared_layers", "use_double_wide_mlp"):
        if reader.config.get(key):
            raise reader.refuse(f"`{key}`")
    if reader.config.get("enable_moe_block") is False and reader.config.get("num_experts"):
        raise reader.refuse("`num_experts` without `enable_moe_block`")
    return FullAttention(
        head_dim=reader.integer("global_head_dim"),
        kv_heads=reader.integer("num_global_key_value_heads", "num_key_value_heads"),
        shared_projection=reader.flag("attention_k_eq_v", False),
    )


def _latent_attention(reader: Reader) -> LatentAttention:
    if reader.config.get("attention_bias"):
        raise reader.refuse("`attention_bias` with latent attention")
    return LatentAttention(
        kv_rank=reader.integer("kv_lora_rank"),
        query_rank=reader.integer("q_lora_rank", default=0, least=0),
        nope_head=reader.integer("qk_nope_head_dim"),
        rope_head=reader.integer("qk_rope_head_dim"),
        value_head=reader.integer("v_head_dim"),
    )
