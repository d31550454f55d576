"""Which models and layouts the engine executes, and the canonical tensors of a model.

Pure: neither torch nor Megatron is imported. Canonical names and shapes are those of Hugging Face's
Llama, Qwen and Gemma checkpoints; a scalar head is `value_head.weight` [1, hidden].
"""

from ir_schema.model import ModelSpec
from ir_schema.problem import Layout, Workload

FAMILIES = frozenset({"llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text"})
ACTIVATIONS = frozenset({"silu", "gelu_pytorch_tanh"})
ROPE_SCALINGS = frozenset({"linear", "llama3", "yarn"})
_NEEDED = {
    "llama3": ("original_positions", "low_frequency_factor", "high_frequency_factor"),
    "yarn": ("original_positions",),
}


class UnsupportedModelError(Exception):
    """A model or layout that the engine cannot execute; `reasons` says all of what is missing."""

    def __init__(self, reasons: list[str]) -> None:
        self.reasons = reasons
        super().__init__("; ".join(reasons))


def unsupported(spec: ModelSpec, layout: Layout, workload: Workload) -> list[str]:
    """What of `spec` in `layout` on sequences of `workload` the engine cannot execute, one sentence each;
    empty when all of it runs."""
    return (
        _unsupported_architecture(spec)
        + _unsupported_layout(spec, layout)
        + _unsupported_lengths(spec, workload)
    )


def _unsupported_architecture(spec: ModelSpec) -> list[str]:
    refused = {
        "a model family other than " + ", ".join(sorted(FAMILIES)): spec.family not in (None, *FAMILIES),
        "mixture-of-experts layers": spec.experts is not None,
        "multi-head latent attention": spec.latent_attention is not None,
        "a feed-forward layer without gate": not spec.gated_ffn,
        f"activation {spec.activation} (only {', '.join(sorted(ACTIVATIONS))})": spec.activation
        not in ACTIVATIONS,
        f"normalisation {spec.norm} (only rmsnorm)": spec.norm != "rmsnorm",
        "biases in the attention output": spec.attention_output_bias,
        "biases in the feed-forward layers": spec.mlp_bias,
        "a bias in the vocabulary projection": spec.lm_head_bias,
        "query/key norms over all heads at once": spec.qk_norm and spec.qk_norm_width != "head",
        "attention parallel to the feed-forward layer": spec.parallel_attention or spec.shared_norm,
        "attention sinks": spec.attention_sinks,
        "full-attention layers of another shape": spec.full_attention is not None,
        "learned positions": spec.learned_positions > 0,
        "rotary positions in a part of a head": spec.rotary_fraction != 1.0,
        f"an odd head width ({spec.head_width}), which rotary positions cannot turn": spec.head_width % 2
        == 1,
    }
    if spec.rope_scaling is not None:
        kind = spec.rope_scaling.kind
        listed = ", ".join(sorted(ROPE_SCALINGS))
        refused[f"rotary position scaling {kind} (only {listed})"] = kind not in ROPE_SCALINGS
        for field in _NEEDED.get(kind, ()):
            absent = getattr(spec.rope_scaling, field) is None
            refused[f"rotary position scaling {kind} without `{field}`"] = absent
    return [f"the runtime does not execute {what}" for what, is_so in refused.items() if is_so]


def _unsupported_layout(spec: ModelSpec, layout: Layout) -> list[str]:
    tensor, pipeline = layout.tensor_parallel, layout.pipeline_parallel
    heads, groups = spec.attention_heads, spec.query_groups
    found = []
    if layout.expert_parallel > 1:
        found.append("the runtime does not execute expert parallelism")
    if spec.layers % pipeline:
        found.append(f"{spec.layers} layers do not divide into {pipeline} pipeline stages of equal size")
    if heads % groups:
        found.append(f"{heads} attention heads do not divide into {groups} key/value heads")
    if heads % tensor:
        found.append(f"{heads} attention heads do not divide over {tensor} tensor-parallel ranks")
    if spec.ffn % tensor:
        found.append(f"feed-forward width {spec.ffn} does not divide over {tensor} tensor-parallel ranks")
    if groups % tensor and tensor % groups:
        found.append(
            f"{groups} key/value heads and {tensor} tensor-parallel ranks: one must divide the other"
        )
    if (heads + 2 * groups) * spec.head_width % tensor:
        found.append(f"the query/key/value projection does not divide over {tensor} tensor-parallel ranks")
    return found


def _unsupported_lengths(spec: ModelSpec, workload: Workload) -> list[str]:
    if 0 < spec.max_positions < workload.total_length:
        return [
            f"sequences of up to {workload.prompt_length} + {workload.response_length} tokens are longer "
            f"than the {spec.max_positions} positions that the model knows"
        ]
    return []


def norm_names(spec: ModelSpec) -> tuple[str, ...]:
    """The norms of a layer besides the first: before the feed-forward part, and with post norms after
    attention and after the feed-forward part."""
    if not spec.post_norms:
        return ("post_attention_layernorm",)
    return ("pre_feedforward_layernorm", "post_attention_layernorm", "post_feedforward_layernorm")


def canonical_shapes(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    """Names and full shapes of all tensors of the model, in the order embedding, layers, norm, heads."""
    hidden, width = spec.hidden, spec.head_width
    query, key = spec.attention_heads * width, spec.query_groups * width
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (spec.vocabulary, hidden)}
    for layer in range(spec.layers):
        prefix = f"model.layers.{layer}."
        attention, mlp = prefix + "self_attn.", prefix + "mlp."
        shapes[prefix + "input_layernorm.weight"] = (hidden,)
        for name, rows in (("q", query), ("k", key), ("v", key)):
            shapes[f"{attention}{name}_proj.weight"] = (rows, hidden)
            if spec.qkv_bias:
                shapes[f"{attention}{name}_proj.bias"] = (rows,)
        if spec.qk_norm:
            shapes[attention + "q_norm.weight"] = (width,)
            shapes[attention + "k_norm.weight"] = (width,)
        shapes[attention + "o_proj.weight"] = (hidden, query)
        for name in norm_names(spec):
            shapes[f"{prefix}{name}.weight"] = (hidden,)
        shapes[mlp + "gate_proj.weight"] = (spec.ffn, hidden)
        shapes[mlp + "up_proj.weight"] = (spec.ffn, hidden)
        shapes[mlp + "down_proj.weight"] = (hidden, spec.ffn)
    shapes["model.norm.weight"] = (hidden,)
    if spec.has_lm_head and not spec.tied_embeddings:
        shapes["lm_head.weight"] = (spec.vocabulary, hidden)
    if spec.has_scalar_head:
        shapes["value_head.weight"] = (1, hidden)
    return shapes
