"""Time of the matrix products and of attention on one GPU, kernel by kernel (`docs/cost-megatron.md`).

A kernel takes its start-up and the longer of its arithmetic and its memory traffic; the arithmetic of a
product runs at F * rows/(rows + gamma_M) * w/(w + gamma_K), w the narrower side of the weight. Where the
hardware file has a rate F of products alone, what lies between them is counted by its traffic; elsewhere F is
the rate of whole layers. Kernels that are launched one by one take at least what launching them takes. All
functions take arrays, one entry per microbatch, or plain numbers where microbatches are alike.
"""

from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ir_schema.hardware import Hardware
from ir_schema.model import ModelSpec, padded_vocabulary
from ir_schema.problem import Layout
from passes.cost import megatron_pointwise as pointwise
from passes.cost.megatron_dispatch import Dispatched
from passes.cost.parameters import attention_shape, layer_shard, stage_layers

Array = NDArray[np.float64]
Real = float | Array
Kind = tuple[bool, bool]
"""Whether a layer attends to everything, and whether it holds experts."""


class Work(NamedTuple):
    """What one replica pushes through a stage at once: one entry per microbatch, or a number for all.

    `sequences` of `tokens` new tokens each, `heads` of which reach the head; `context` is the number of
    earlier tokens that every new one attends to (a decode step), or None for a causal pass.
    """

    sequences: float
    tokens: Real
    heads: Real
    context: Real | None = None


class Stages(NamedTuple):
    """What a microbatch takes in the pipeline's stage that takes longest, and in the mean stage."""

    busiest: Real
    mean: Real


def _larger(a: Real, b: Real) -> Real:
    # Most calls are about one number, for which NumPy takes many times as long.
    return max(a, b) if isinstance(a, float) and isinstance(b, float) else np.maximum(a, b)


def _smaller(a: Real, b: Real) -> Real:
    return min(a, b) if isinstance(a, float) and isinstance(b, float) else np.minimum(a, b)


@lru_cache(maxsize=4096)
def stage_kinds(spec: ModelSpec, pipeline_parallel: int) -> tuple[tuple[tuple[Kind, int], ...], ...]:
    """How many layers of each kind every stage has."""
    return tuple(
        tuple(
            Counter(
                (spec.is_full_attention(i), spec.has_experts(i))
                for i in stage_layers(spec, pipeline_parallel, stage)
            ).items()
        )
        for stage in range(pipeline_parallel)
    )


@lru_cache(maxsize=4096)
def attention_weights(spec: ModelSpec, full: bool, tensor_parallel: int) -> tuple[tuple[int, int], ...]:
    """(columns, rows) of a layer's attention projections on one tensor rank, the output projection last."""
    d = spec.hidden
    if spec.latent_attention is not None:
        mla, heads = spec.latent_attention, -(-spec.attention_heads // tensor_parallel)
        key = heads * (mla.nope_head + mla.rope_head)
        query = ((mla.query_rank, d), (key, mla.query_rank)) if mla.query_rank else ((key, d),)
        expanded = heads * (mla.nope_head + mla.value_head)
        return (
            *query,
            (mla.kv_rank + mla.rope_head, d),
            (expanded, mla.kv_rank),
            (d, heads * mla.value_head),
        )
    shape = attention_shape(spec, full, tensor_parallel)
    query_width, key = shape.heads * shape.width, shape.kv_heads * shape.width
    return (query_width + key * (1 if shape.shared_projection else 2), d), (d, query_width)


@lru_cache(maxsize=4096)
def feed_forward_weights(spec: ModelSpec, moe: bool, tensor_parallel: int) -> tuple[tuple[int, int], ...]:
    """(columns, rows) of what every token meets in a layer's feed-forward part on one tensor rank: all of a
    dense one, router and shared experts of the other."""
    if not moe:
        return _feed_forward(spec, spec.ffn, tensor_parallel)
    assert spec.experts is not None
    router = (spec.experts.routed, spec.hidden)
    shared = spec.experts.shared_ffn
    return (router, *_feed_forward(spec, shared, tensor_parallel)) if shared else (router,)


def _feed_forward(spec: ModelSpec, width: int, tensor_parallel: int) -> tuple[tuple[int, int], ...]:
    local = -(-width // tensor_parallel)
    return ((2 if spec.gated_ffn else 1) * local, spec.hidden), (spec.hidden, local)


def sequence_parallel(spec: ModelSpec, layout: Layout, *, decoding: bool) -> bool:
    """Whether tensor ranks hold different tokens between the products: with experts, except in generation."""
    return spec.experts is not None and layout.tensor_parallel > 1 and not decoding


class Compute:
    """Kernel times on one machine."""

    def __init__(self, hardware: Hardware) -> None:
        self.hardware = hardware
        self.rate = hardware.product_flops or hardware.peak_flops
        self.apart = hardware.product_flops > 0
        """Whether what lies between the products is counted by itself."""
        self.stored = hardware.score_bytes > 0
        """Whether training and inference keep scores in memory."""

    def _kernel(self, seconds: Real) -> Real:
        """A kernel whose arithmetic and traffic take `seconds`."""
        return _larger(self.hardware.startup_seconds + seconds, self.hardware.kernel_seconds)

    def product(self, rows: Real, columns: int, inner: int, width: int) -> Real:
        """[rows, inner] times [inner, columns], `width` bytes per element."""
        return self._kernel(self._product(rows, columns, inner, width))

    def _product(self, rows: Real, columns: int, inner: int, width: int) -> Real:
        """A product as a part of a larger kernel."""
        h = self.hardware
        narrow = min(columns, inner)
        rate = self.rate * rows / (rows + h.gamma_M) * narrow / (narrow + h.gamma_K)
        arithmetic = 2.0 * rows * columns * inner / rate
        traffic = width * (rows * inner + float(columns) * inner + rows * columns) / h.memory_bandwidth
        return _larger(arithmetic, traffic)

    def attention(
        self, spec: ModelSpec, kind: Kind, layout: Layout, work: Work, *, stored: bool = False
    ) -> Real:
        """Scores and values of one layer; a causal pass counts half of the square, or with `stored` scores
        all of it and what they move."""
        h, s, decoding = self.hardware, spec.bytes_per_parameter, work.context is not None
        window = None if kind[0] else spec.sliding_window
        if work.context is not None:
            reach = work.context if window is None else _smaller(work.context, float(window))
            pairs = work.sequences * reach
        else:
            each = work.tokens * work.tokens if stored else causal_pairs(work.tokens, window)
            pairs = work.sequences * each / layout.context_parallel
        rows = work.sequences * work.tokens / layout.context_parallel
        if spec.latent_attention is not None:
            mla, heads = spec.latent_attention, -(-spec.attention_heads // layout.tensor_parallel)
            key, value = mla.nope_head + mla.rope_head, mla.value_head
            if decoding:
                key, value = mla.kv_rank + mla.rope_head, mla.kv_rank
            flops = 2.0 * pairs * heads * (key + value)
            elements = pairs * (mla.kv_rank + mla.rope_head) if decoding else 2 * rows * heads * (key + value)
        else:
            shape = attention_shape(spec, kind[0], layout.tensor_parallel)
            heads = shape.heads
            flops = 4.0 * pairs * heads * shape.width
            cached = pairs if decoding else rows
            elements = 2 * (cached * shape.kv_heads + rows * heads) * shape.width
        seconds = _larger(flops / self.rate, elements * s / h.memory_bandwidth)
        if stored:
            seconds = seconds + h.score_bytes * pairs * heads / h.memory_bandwidth
        return self._kernel(seconds)

    def experts(self, spec: ModelSpec, layout: Layout, rows: Real) -> Real:
        """The routed experts of one layer under balanced routing, `rows` tokens entering on this GPU: two
        grouped products, one kernel each for all local experts."""
        assert spec.experts is not None
        e = spec.experts
        copies = expert_copies(spec, rows)
        local = -(-e.routed // layout.expert_parallel)
        touched = _smaller(copies, 1.0) if local == 1 else local * (1.0 - (1.0 - 1.0 / local) ** copies)
        each = copies / touched
        total: Real = 0.0
        for columns, inner in _feed_forward(spec, e.ffn, 1):
            total = total + self._kernel(
                touched * self._product(each, columns, inner, spec.bytes_per_parameter)
            )
        return total

    def layer(self, spec: ModelSpec, kind: Kind, layout: Layout, work: Work, *, decoding: bool) -> Real:
        """One layer's forward pass; generation (`decoding`) is an engine's, captured and fused."""
        rows = work.sequences * work.tokens / layout.context_parallel
        # The runtime attends in its prefill as it does in training.
        fused = decoding and (self.hardware.dispatch is None or work.context is not None)
        total = self.attention(spec, kind, layout, work, stored=self.stored and not fused)
        weights = (
            *attention_weights(spec, kind[0], layout.tensor_parallel),
            *feed_forward_weights(spec, kind[1], layout.tensor_parallel),
        )
        for columns, inner in weights:
            total = total + self.product(rows, columns, inner, spec.bytes_per_parameter)
        spread = layout.tensor_parallel if sequence_parallel(spec, layout, decoding=decoding) else 1
        if kind[1]:
            total = total + self.experts(spec, layout, rows / spread)
        if self.apart:
            moved = pointwise.layer_bytes_per_token(spec, layout, experts=kind[1], spread=spread)
            total = total + pointwise.KERNELS * self.hardware.startup_seconds
            total = total + rows * moved / self.hardware.memory_bandwidth
        if decoding:
            return total
        # Kernels wait for their launches, unless those run ahead.
        return _larger(total, (len(weights) + 1 + (2 if kind[1] else 0)) * self.hardware.launch_seconds)

    def accumulation(self, spec: ModelSpec, kind: Kind, layout: Layout) -> float:
        """Adding one layer's gradients of a microbatch to those before."""
        if not self.apart:
            return 0.0
        layer = _layer_of(spec, kind)
        count = layer_shard(spec, layer, layout.tensor_parallel, layout.expert_parallel).total
        moved = count * pointwise.accumulation_bytes_per_parameter(spec)
        return moved / self.hardware.memory_bandwidth

    def loss(self, spec: ModelSpec, layout: Layout, work: Work, *, training: bool) -> Real:
        """From logits to a loss or log-probabilities, and back in training."""
        if not self.apart:
            return 0.0
        rows = work.sequences * work.heads / layout.context_parallel
        moved = pointwise.loss_bytes_per_token(spec, layout, training=training)
        return rows * moved / self.hardware.memory_bandwidth

    def sampling(self, spec: ModelSpec, work: Work) -> Real:
        """From whole logits to tokens and their log-probabilities, on every tensor rank."""
        rows = work.sequences * work.heads
        return rows * spec.vocabulary * pointwise.SAMPLING_BYTES / self.hardware.memory_bandwidth

    def head(self, spec: ModelSpec, layout: Layout, work: Work) -> Real:
        """The heads' forward pass on the last stage."""
        rows = work.sequences * work.heads / layout.context_parallel
        total: Real = 0.0
        if spec.has_lm_head:
            columns = padded_vocabulary(spec.vocabulary, layout.tensor_parallel) // layout.tensor_parallel
            total = total + self.product(rows, columns, spec.hidden, spec.bytes_per_parameter)
        if spec.has_scalar_head:
            traffic = rows * spec.hidden * spec.bytes_per_parameter / self.hardware.memory_bandwidth
            total = total + self._kernel(traffic)
        return total

    def stages(
        self,
        spec: ModelSpec,
        layout: Layout,
        work: Work,
        passes: tuple[int, int],
        dispatched: Dispatched,
        *,
        decoding: bool,
    ) -> Stages:
        """Time per microbatch of the pipeline's stages; `passes` counts forward equivalents of the layers and
        of the head."""
        kinds = stage_kinds(spec, layout.pipeline_parallel)
        training = passes[0] > 1
        layers = {
            kind: self._launched(
                passes[0] * self.layer(spec, kind, layout, work, decoding=decoding)
                + (self.accumulation(spec, kind, layout) if training else 0.0),
                dispatched.layer,
            )
            for kind in {kind for stage in kinds for kind, _ in stage}
        }
        head = passes[1] * self.head(spec, layout, work) + self.loss(spec, layout, work, training=training)
        if decoding and self.hardware.dispatch is not None:
            head = head + self.sampling(spec, work)
        worst = total = _weighted(kinds[-1], layers) + self._launched(head, dispatched.ends)
        for stage, count in Counter(kinds[:-1]).items():
            time = _weighted(stage, layers)
            worst, total = _larger(worst, time), total + count * time
        return Stages(worst, total / layout.pipeline_parallel)

    def _launched(self, kernels: Real, dispatching: float) -> Real:
        """Kernels with what dispatching them takes: before them where the same processors do both, ahead of
        them on a GPU."""
        if not dispatching:
            return kernels
        if self.hardware.node_processors:
            return kernels + dispatching
        return _larger(kernels, dispatching)


@lru_cache(maxsize=4096)
def _layer_of(spec: ModelSpec, kind: Kind) -> int:
    """The first layer of `kind`."""
    return next(i for i in range(spec.layers) if (spec.is_full_attention(i), spec.has_experts(i)) == kind)


def _weighted(stage: Sequence[tuple[Kind, int]], layers: dict[Kind, Real]) -> Real:
    total = layers[stage[0][0]] * stage[0][1]
    for kind, count in stage[1:]:
        total = total + layers[kind] * count
    return total


def causal_pairs(tokens: Real, window: int | None) -> Real:
    """Query-key pairs of one sequence: half the square, or what a sliding window leaves of it."""
    if window is None:
        return tokens * tokens / 2.0
    inside = _smaller(tokens, float(window))
    return inside * inside / 2.0 + (tokens - inside) * window


def expert_copies(spec: ModelSpec, rows: Real) -> Real:
    """Token copies that the experts of one GPU receive when `rows` tokens enter on each GPU."""
    assert spec.experts is not None
    return rows * spec.experts.top_k * spec.experts.skew
