"""What a GPU holds under Megatron-Core, in bytes (`docs/cost-megatron.md`).

Training keeps weights, a gradient buffer in at least FP32, and for its share of the distributed optimizer
an FP32 master copy (only where the weights are narrower) and two Adam moments. Layers are recomputed one at
a time in the backward pass: a microbatch in flight keeps the inputs of its layers, and one layer's
intermediates or the logits exist beside them. All figures are those of the fullest stage.
"""

import math
from collections.abc import Mapping

from ir_schema.model import ModelSpec, padded_vocabulary
from ir_schema.problem import Layout, Placement, Workload
from passes.cost.lengths import microbatch_lengths
from passes.cost.megatron_compute import (
    Kind,
    attention_weights,
    feed_forward_weights,
    sequence_parallel,
    stage_kinds,
)
from passes.cost.parameters import attention_shape, largest_shard, state_width

Bytes = dict[str, float]


def weight_bytes(spec: ModelSpec, layout: Layout) -> float:
    """M_w: the weights of one shard."""
    return float(largest_shard(spec, layout).total * spec.bytes_per_parameter)


def optimizer_share(spec: ModelSpec, layout: Layout) -> float:
    """Parameters whose optimizer state one GPU keeps: dense ones are shared by P_d P_c ranks, experts by
    P_t P_c P_d / P_e."""
    shard = largest_shard(spec, layout)
    replicas = layout.data_parallel * layout.context_parallel
    return shard.dense / replicas + shard.expert * layout.expert_parallel / (
        replicas * layout.tensor_parallel
    )


def training_state(spec: ModelSpec, layout: Layout) -> Bytes:
    """Persistent bytes of a model on a GPU that trains it."""
    width = state_width(spec)
    copies = 2 + (spec.bytes_per_parameter < width)
    return {
        "weights": weight_bytes(spec, layout),
        "gradients": float(largest_shard(spec, layout).total * width),
        "optimizer": optimizer_share(spec, layout) * width * copies,
    }


def logit_bytes(spec: ModelSpec, layout: Layout, tokens: float) -> float:
    """Logits of `tokens` tokens on one tensor rank, with the copy in at least FP32 that a loss needs."""
    if not spec.has_lm_head:
        return 0.0
    rows = padded_vocabulary(spec.vocabulary, layout.tensor_parallel) // layout.tensor_parallel
    return tokens / layout.context_parallel * rows * (spec.bytes_per_parameter + state_width(spec))


def cache_bytes(spec: ModelSpec, layout: Layout, tokens: float) -> float:
    """Keys and values of `tokens` tokens in all layers of the fullest stage; latent attention caches its
    latents, whole on every tensor rank."""

    def per_token(kind: Kind) -> int:
        if spec.latent_attention is not None:
            return spec.latent_attention.kv_rank + spec.latent_attention.rope_head
        shape = attention_shape(spec, kind[0], layout.tensor_parallel)
        return 2 * shape.kv_heads * shape.width

    stages = stage_kinds(spec, layout.pipeline_parallel)
    return (
        tokens * spec.bytes_per_parameter * max(sum(per_token(k) * n for k, n in stage) for stage in stages)
    )


def layer_bytes(spec: ModelSpec, layout: Layout, tokens: float, *, training: bool, decoding: bool) -> float:
    """Intermediates of one layer over `tokens` tokens: all of them and their gradients in training, else the
    largest that exist together."""
    kinds = {kind for stage in stage_kinds(spec, layout.pipeline_parallel) for kind, _ in stage}
    elements = max(_layer_elements(spec, kind, layout, training, decoding) for kind in kinds)
    return tokens / layout.context_parallel * elements * spec.bytes_per_parameter


def _layer_elements(spec: ModelSpec, kind: Kind, layout: Layout, training: bool, decoding: bool) -> float:
    d = spec.hidden
    projections = attention_weights(spec, kind[0], layout.tensor_parallel)
    attention = float(sum(columns for columns, _ in projections[:-1]) + projections[-1][1])
    weights = feed_forward_weights(spec, kind[1], layout.tensor_parallel)
    feed_forward = float(sum(columns + inner - d for columns, inner in weights))
    if kind[1]:
        assert spec.experts is not None
        spread = layout.tensor_parallel if sequence_parallel(spec, layout, decoding=decoding) else 1
        copies = spec.experts.top_k * spec.experts.skew / spread
        feed_forward += copies * (2 * d + (3 if spec.gated_ffn else 2) * spec.experts.ffn)
    if not training:
        return 2 * d + max(attention, feed_forward)
    return 4 * d + attention + feed_forward + d + max(attention, feed_forward)


def training_transient(spec: ModelSpec, p: Placement, workload: Workload) -> Bytes:
    """Activations of a training operator on its fullest stage."""
    layout, stages = p.layout, p.pipeline_parallel
    batch = workload.sequences / (p.data_parallel * workload.minibatches * p.microbatches)
    lengths = microbatch_lengths(workload, p.microbatches)
    longest = [float(x) for x in lengths[::-1][:stages]] or [0.0]
    flying = min(p.microbatches, stages)
    longest += longest[-1:] * (flying - len(longest))
    layers = -(-spec.layers // stages)

    def inputs(count: int) -> float:
        tokens = sum(workload.prompt_length + x for x in longest[:count]) * batch / layout.context_parallel
        return tokens * layers * spec.hidden * spec.bytes_per_parameter

    total = batch * (workload.prompt_length + longest[0])
    layer = layer_bytes(spec, layout, total, training=True, decoding=False)
    logits = logit_bytes(spec, layout, batch * longest[0])
    first = {"layer_inputs": inputs(flying), "layer": layer, "logits": 0.0}
    last = {"layer_inputs": inputs(1), "layer": 0.0, "logits": logits}
    if stages == 1 or sum(last.values()) > sum(first.values()):
        return last if logits > layer else first
    return first


def inference_transient(spec: ModelSpec, p: Placement, workload: Workload) -> Bytes:
    """Activations of a teacher-forced pass."""
    batch = workload.sequences / (p.data_parallel * p.microbatches)
    tokens = batch * workload.total_length
    hidden = tokens / p.context_parallel * spec.hidden * spec.bytes_per_parameter
    layer = layer_bytes(spec, p.layout, tokens, training=False, decoding=False)
    logits = logit_bytes(spec, p.layout, batch * workload.response_length)
    if hidden + logits > layer:
        return {"layer": hidden, "logits": logits}
    return {"layer": layer, "logits": 0.0}


def generation_transient(spec: ModelSpec, p: Placement, workload: Workload) -> Bytes:
    """Key/value cache of one wave's sequences, and the prefill's activations."""
    wave = math.ceil(workload.sequences / (p.data_parallel * p.waves))
    batch = wave / p.microbatches
    return {
        "layer": layer_bytes(spec, p.layout, batch * workload.prompt_length, training=False, decoding=True),
        "logits": logit_bytes(spec, p.layout, batch),
        "kv_cache": cache_bytes(spec, p.layout, wave * workload.total_length),
    }


def added(*parts: Mapping[str, float]) -> Bytes:
    """Sums by part, parts in the order of their first appearance."""
    total: Bytes = {}
    for each in parts:
        for name, value in each.items():
            total[name] = total.get(name, 0.0) + value
    return total
