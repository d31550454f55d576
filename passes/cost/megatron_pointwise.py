"""Memory traffic of what lies between the matrix products (`docs/cost-megatron.md`).

Norms, residuals, activations, losses and the accumulation of gradients do little arithmetic: their time is
that of the bytes they move. The counts are those of the kernels that Megatron-Core runs by default; nothing
here is fitted.
"""

from ir_schema.model import ModelSpec, padded_vocabulary
from ir_schema.problem import Layout
from passes.cost.parameters import state_width

KERNELS = 3
"""Kernels between the products of a layer: two norms with what is fused to them, and an activation."""

SAMPLING_BYTES = 68
"""Traffic of one logit in the runtime's sampling, in FP64: read and widened (12), made a log-probability
(24: read twice), exponentiated (16), and summed up along the vocabulary (16)."""


def layer_bytes_per_token(spec: ModelSpec, layout: Layout, *, experts: bool, spread: int) -> float:
    """Bytes that one token moves between the products of a layer's forward pass on one tensor rank, the
    layer with or without `experts`; `spread` is over how many tensor ranks tokens are divided.

    Two norms read and write hidden states; two residual sums, with bias and dropout, read two and write one.
    These are repeated on every tensor rank unless ranks hold different tokens. An activation reads one or,
    gated, two values of the feed-forward width and writes one. A routed token is copied to its experts and
    their outputs are gathered and summed.
    """
    hidden = (10 + (4 if spec.post_norms else 0)) / spread
    per_width = 3 if spec.gated_ffn else 2
    width, copies = float(-(-spec.ffn // layout.tensor_parallel)), 0.0
    if experts:
        assert spec.experts is not None
        width = float(-(-spec.experts.shared_ffn // layout.tensor_parallel))
        copies = spec.experts.top_k * spec.experts.skew / spread
        width += copies * spec.experts.ffn
    values = hidden * spec.hidden + per_width * width + 4 * copies * spec.hidden
    return values * spec.bytes_per_parameter


def accumulation_bytes_per_parameter(spec: ModelSpec) -> int:
    """A microbatch's gradient is written, read, and added to the buffer, which is read and written."""
    return 2 * (spec.bytes_per_parameter + state_width(spec))


def loss_bytes_per_token(spec: ModelSpec, layout: Layout, *, training: bool) -> float:
    """Logits of a token on one tensor rank from the head to the loss: written, widened, reduced to their
    maximum, exponentiated and summed; in training the softmax is turned into a gradient and narrowed."""
    if not spec.has_lm_head:
        return 0.0
    rows = padded_vocabulary(spec.vocabulary, layout.tensor_parallel) // layout.tensor_parallel
    narrow, wide = spec.bytes_per_parameter, state_width(spec)
    forward = 2 * narrow + wide + 3 * wide
    backward = 2 * wide + wide + narrow
    return float(rows * (forward + (backward if training else 0)))
