"""How many parameters a model has, and how many of them one GPU holds (`docs/cost-megatron.md`).

Pure functions of a `ModelSpec`. Totals are those of the published checkpoint: unpadded vocabulary, tied
embeddings once. Shards are what Megatron stores: padded vocabulary, tied embeddings at both ends of a
pipeline, key/value heads replicated where tensor ranks outnumber them, norms and routers on every rank,
experts whole (expert tensor parallelism is 1) and divided over expert ranks. Gemma 4's router scales and
their norms (0.001 % of it) are not counted.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import lcm

from ir_schema.model import ModelSpec, padded_vocabulary
from ir_schema.problem import Layout


@dataclass(frozen=True)
class Shard:
    """Parameters on one GPU: `dense` ones are replicated over P_d * P_c ranks, `expert` ones over
    P_t * P_c * P_d / P_e."""

    dense: int = 0
    expert: int = 0

    def __add__(self, other: "Shard") -> "Shard":
        return Shard(self.dense + other.dense, self.expert + other.expert)

    @property
    def total(self) -> int:
        """All parameters of the GPU."""
        return self.dense + self.expert


@dataclass(frozen=True)
class AttentionShape:
    """Heads and widths of one layer's attention on one tensor rank."""

    heads: int
    kv_heads: int
    width: int
    shared_projection: bool = False


def state_width(spec: ModelSpec) -> int:
    """Bytes of a gradient, a master weight or a moment."""
    return max(4, spec.bytes_per_parameter)


def attention_shape(spec: ModelSpec, full: bool, tensor_parallel: int = 1) -> AttentionShape:
    """Shape of a full-attention or sliding layer per tensor rank: max(1, n_kv/P_t) key/value heads."""
    other = spec.full_attention if full else None
    kv_heads = other.kv_heads if other else spec.query_groups
    return AttentionShape(
        heads=_ceil(spec.attention_heads, tensor_parallel),
        kv_heads=max(1, _ceil(kv_heads, tensor_parallel)),
        width=other.head_dim if other else spec.head_width,
        shared_projection=bool(other and other.shared_projection),
    )


def stage_layers(spec: ModelSpec, pipeline_parallel: int, stage: int) -> range:
    """The layers of stage `stage` (from 0); the first ones take one more where P_p does not divide L."""
    each, rest = divmod(spec.layers, pipeline_parallel)
    start = stage * each + min(stage, rest)
    return range(start, start + each + (stage < rest))


@lru_cache(maxsize=4096)
def layer_shard(spec: ModelSpec, layer: int, tensor_parallel: int = 1, expert_parallel: int = 1) -> Shard:
    """Parameters of one layer on one GPU."""
    dense = _attention(spec, spec.is_full_attention(layer), tensor_parallel) + _norms(spec)
    if not spec.has_experts(layer):
        return Shard(dense + _feed_forward(spec, spec.ffn, tensor_parallel))
    assert spec.experts is not None
    routed = spec.experts.routed
    dense += spec.hidden * routed + (routed if spec.experts.router_bias else 0)
    if spec.experts.shared_ffn:
        dense += _feed_forward(spec, spec.experts.shared_ffn, tensor_parallel)
        dense += spec.hidden if spec.experts.shared_gate else 0
    return Shard(dense, _ceil(routed, expert_parallel) * expert_parameters(spec))


def layers_shard(spec: ModelSpec, layers: range, tensor_parallel: int = 1, expert_parallel: int = 1) -> Shard:
    """Parameters of consecutive `layers` on one GPU, added by kind: it takes no longer for more layers."""
    shard = Shard()
    for layer, count in _kinds(spec, layers):
        one = layer_shard(spec, layer, tensor_parallel, expert_parallel)
        shard += Shard(one.dense * count, one.expert * count)
    return shard


def _kinds(spec: ModelSpec, layers: range) -> Iterator[tuple[int, int]]:
    """Layers that stand for all of `layers`, as many as a period has, and for how many each stands."""
    dense, every = (
        (layers.stop, 1) if spec.experts is None else (spec.experts.dense_layers, spec.experts.every)
    )
    border = min(max(dense, layers.start), layers.stop)
    full = 1 if spec.sliding_window is None else spec.full_attention_every or 1
    for part, period in ((range(layers.start, border), full), (range(border, layers.stop), lcm(full, every))):
        for offset in range(min(period, len(part))):
            yield part[offset], len(part[offset::period])


def expert_parameters(spec: ModelSpec) -> int:
    """Parameters of one routed expert; 0 for a dense model."""
    return _feed_forward(spec, spec.experts.ffn, 1) if spec.experts else 0


@lru_cache(maxsize=1024)
def total(spec: ModelSpec) -> int:
    """N_m: parameters of the whole model."""
    layers = layers_shard(spec, range(spec.layers))
    ends = spec.vocabulary * spec.hidden + spec.learned_positions * spec.hidden + _norm(spec)
    if spec.has_lm_head:
        ends += 0 if spec.tied_embeddings else spec.vocabulary * spec.hidden
        ends += spec.vocabulary if spec.lm_head_bias else 0
    if spec.has_scalar_head:
        ends += spec.hidden
    return layers.total + ends


def active(spec: ModelSpec) -> int:
    """Parameters that one token uses: all but the experts it is not routed to."""
    if spec.experts is None:
        return total(spec)
    moe_layers = sum(spec.has_experts(i) for i in range(spec.layers))
    return total(spec) - moe_layers * (spec.experts.routed - spec.experts.top_k) * expert_parameters(spec)


@lru_cache(maxsize=4096)
def stage_shard(spec: ModelSpec, layout: Layout, stage: int) -> Shard:
    """Parameters on one GPU of pipeline stage `stage` (from 0)."""
    tensor, expert, pipeline = layout.tensor_parallel, layout.expert_parallel, layout.pipeline_parallel
    shard = layers_shard(spec, stage_layers(spec, pipeline, stage), tensor, expert)
    rows = padded_vocabulary(spec.vocabulary, tensor) // tensor
    ends = 0
    if stage == 0:
        ends += rows * spec.hidden + spec.learned_positions * spec.hidden
    if stage == pipeline - 1:
        ends += _norm(spec)
        if spec.has_lm_head:
            ends += 0 if spec.tied_embeddings and pipeline == 1 else rows * spec.hidden
            ends += rows if spec.lm_head_bias else 0
        if spec.has_scalar_head:
            ends += spec.hidden
    return shard + Shard(ends)


@lru_cache(maxsize=4096)
def largest_shard(spec: ModelSpec, layout: Layout) -> Shard:
    """W_shard: the stage shard with the most parameters (the first on ties)."""
    stages = (stage_shard(spec, layout, p) for p in range(layout.pipeline_parallel))
    return max(stages, key=lambda shard: shard.total)


def _ceil(a: int, b: int) -> int:
    return -(-a // b)


def _norm(spec: ModelSpec) -> int:
    return spec.hidden * (2 if spec.norm == "layernorm" else 1)


def _norms(spec: ModelSpec) -> int:
    return _norm(spec) * ((1 if spec.shared_norm else 2) + (2 if spec.post_norms else 0))


def _attention(spec: ModelSpec, full: bool, tensor_parallel: int) -> int:
    d = spec.hidden
    if spec.latent_attention is not None:
        mla = spec.latent_attention
        heads = _ceil(spec.attention_heads, tensor_parallel)
        key = mla.nope_head + mla.rope_head
        if mla.query_rank:
            query = d * mla.query_rank + mla.query_rank + mla.query_rank * heads * key
        else:
            query = d * heads * key
        latent = d * (mla.kv_rank + mla.rope_head) + mla.kv_rank
        return (
            query
            + latent
            + mla.kv_rank * heads * (mla.nope_head + mla.value_head)
            + heads * mla.value_head * d
        )
    shape = attention_shape(spec, full, tensor_parallel)
    query, key = shape.heads * shape.width, shape.kv_heads * shape.width
    columns = query + key * (1 if shape.shared_projection else 2)
    count = d * columns + query * d
    if spec.qkv_bias:
        count += columns
    if spec.attention_output_bias:
        count += d
    if spec.qk_norm:
        count += query + key if spec.qk_norm_width == "hidden" else 2 * shape.width
    if spec.attention_sinks:
        count += shape.heads
    return count


def _feed_forward(spec: ModelSpec, width: int, tensor_parallel: int) -> int:
    local = _ceil(width, tensor_parallel)
    columns = (2 if spec.gated_ffn else 1) * local
    return spec.hidden * (columns + local) + (columns + spec.hidden if spec.mlp_bias else 0)
