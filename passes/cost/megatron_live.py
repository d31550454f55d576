"""What operators hold where the runtime's code runs one operation at a time (`docs/cost-megatron.md`).

Where nothing is fused, a result lives until the code lets go of it. These are the tensors alive at an
operator's fullest moment, as `rpeg_rt.engine` makes and drops them; they replace the transients of
`megatron_memory` where a hardware file has `dispatch`. All figures are bytes of the fullest stage.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

from ir_schema.model import ModelSpec, padded_vocabulary
from ir_schema.problem import Layout, Placement, Workload
from passes.cost.lengths import microbatch_lengths
from passes.cost.megatron_compute import Kind, attention_weights, stage_kinds
from passes.cost.megatron_memory import Bytes, cache_bytes
from passes.cost.parameters import attention_shape, largest_shard, state_width

_Elements = Callable[["_Widths"], float]
_SAMPLED_BYTES = 24
"""Of a logit in FP64 while a token is chosen: its log-probability, its probability, and their running sum."""


def training_transient(spec: ModelSpec, p: Placement, workload: Workload) -> Bytes:
    """Activations, or what the exchange of gradients copies: which is more."""
    layout, stages = p.layout, p.pipeline_parallel
    batch = workload.sequences / (p.data_parallel * workload.minibatches * p.microbatches)
    lengths = [float(x) for x in microbatch_lengths(workload, p.microbatches)[::-1]]
    flying = min(p.microbatches, stages)
    longest = (lengths + lengths[-1:] * flying)[:flying]
    layers = -(-spec.layers // stages)
    tokens = batch / layout.context_parallel
    kept = layers * spec.hidden * spec.bytes_per_parameter
    layer = tokens * (workload.prompt_length + longest[0]) * _most(spec, layout, _trained_layer)
    # Softmax, its negative, and the gradient of the logits.
    logits = tokens * longest[0] * 3 * _vocabulary(spec, layout) * state_width(spec)
    first = {
        "layer_inputs": kept * tokens * sum(workload.prompt_length + x for x in longest),
        "layer": layer,
        "logits": 0.0,
        "exchange": 0.0,
    }
    last = first | {"layer_inputs": kept * tokens * (workload.prompt_length + longest[0])}
    if logits > layer:
        last |= {"layer": 0.0, "logits": logits}
    copied = float(largest_shard(spec, layout).total * state_width(spec))
    exchange = dict.fromkeys(first, 0.0) | {"exchange": copied}
    return max((first, last, exchange), key=lambda parts: sum(parts.values()))


def inference_transient(spec: ModelSpec, p: Placement, workload: Workload) -> Bytes:
    """Activations of a teacher-forced pass: of a layer, or of the head."""
    layout, width = p.layout, spec.bytes_per_parameter
    batch = workload.sequences / (p.data_parallel * p.microbatches)
    each = batch / layout.context_parallel
    tokens = each * workload.total_length
    # Until the next microbatch's are there, a name holds those of the last one.
    before = spec.hidden * width if p.microbatches > 1 else 0
    layer = tokens * (_most(spec, layout, _scored_layer) + before)
    head = tokens * (spec.hidden * width + before)
    # Chosen rows, their logits, and the same less their maximum.
    row = spec.hidden * width + _vocabulary(spec, layout) * (width + state_width(spec))
    logits = each * workload.response_length * row
    if head + logits > layer:
        return {"layer": head, "logits": logits}
    return {"layer": layer, "logits": 0.0}


def generation_transient(spec: ModelSpec, p: Placement, workload: Workload) -> Bytes:
    """Key/value cache of one wave's sequences, and beside it the prefill of a microbatch's prompts, each of
    which is run once, or the choice of its tokens."""
    wave = math.ceil(workload.sequences / (p.data_parallel * p.waves))
    batch = math.ceil(wave / p.microbatches)
    prompts = min(batch, math.ceil(batch / workload.rollouts) + (batch % workload.rollouts > 1))
    layer = prompts * workload.prompt_length * _most(spec, p.layout, _prefilled_layer)
    logits = batch * spec.vocabulary * (state_width(spec) + _SAMPLED_BYTES) if spec.has_lm_head else 0.0
    cache = cache_bytes(spec, p.layout, wave * workload.total_length)
    if logits > layer:
        return {"layer": 0.0, "logits": float(logits), "kv_cache": cache}
    # The last layer's keys and values join the cache when its activations are gone.
    stage = -(-spec.layers // p.pipeline_parallel)
    last = cache / stage / p.microbatches
    return {"layer": max(layer - last, 0.0), "logits": 0.0, "kv_cache": cache}


def _vocabulary(spec: ModelSpec, layout: Layout) -> int:
    if not spec.has_lm_head:
        return 0
    return padded_vocabulary(spec.vocabulary, layout.tensor_parallel) // layout.tensor_parallel


class _Widths(NamedTuple):
    """Elements of a token in a layer on one tensor rank: hidden states, queries, keys, what the projections
    give together, the feed-forward part (all experts that it meets), and its copies for experts."""

    hidden: int
    query: int
    key: int
    packed: int
    inner: float
    copied: float


def _trained_layer(w: _Widths) -> float:
    """Of a layer that is run again and then backward, the gradients of its feed-forward part included: two
    norms with what they keep and the residual; heads as projected, turned and laid out anew; both
    projections of the feed-forward part, its activation, and the gradients of three of them."""
    return 7 * w.hidden + 5 * w.query + 5 * w.key + 6 * w.inner + 2 * w.copied


def _scored_layer(w: _Widths) -> float:
    """Of a forward pass: block input, residual, norm and output beside the feed-forward part's projections,
    activation and product; or beside the heads as projected, turned, attended and laid out anew."""
    fed = 4 * w.hidden + 4 * w.inner + w.copied
    return max(fed, 2 * w.hidden + w.packed + 4 * w.query + w.key)


def _prefilled_layer(w: _Widths) -> float:
    """The decoder lets go of a layer's heads only when the next one has made its own."""
    return 5 * w.hidden + 4 * w.inner + w.copied + w.packed + 3 * w.query + w.key


def _most(spec: ModelSpec, layout: Layout, elements: _Elements) -> float:
    """Bytes of a token in the kind of layer that has most of them."""
    kinds = {kind for stage in stage_kinds(spec, layout.pipeline_parallel) for kind, _ in stage}
    return max(elements(_widths(spec, kind, layout)) for kind in kinds) * spec.bytes_per_parameter


def _widths(spec: ModelSpec, kind: Kind, layout: Layout) -> _Widths:
    tensor = layout.tensor_parallel
    projections = attention_weights(spec, kind[0], tensor)
    shape = attention_shape(spec, kind[0], tensor)
    inner, copied = float(-(-spec.ffn // tensor)), 0.0
    if kind[1]:
        assert spec.experts is not None
        copies = spec.experts.top_k * spec.experts.skew
        inner = -(-spec.experts.shared_ffn // tensor) + copies * spec.experts.ffn
        copied = 2 * copies * spec.hidden
    return _Widths(
        hidden=spec.hidden,
        query=projections[-1][1],
        key=shape.kv_heads * shape.width,
        packed=sum(columns for columns, _ in projections[:-1]),
        inner=inner,
        copied=copied,
    )
