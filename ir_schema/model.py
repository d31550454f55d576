"""The architecture facts of one model that planning and running need."""

from ir_schema.base import Head, Record

VOCABULARY_MULTIPLE = 128


def padded_vocabulary(vocabulary: int, tensor_parallel: int) -> int:
    """Rows of an embedding or output projection as they are stored: padded, as Megatron does, to the next
    multiple of 128 * P_t, so that every tensor rank holds the same number."""
    multiple = VOCABULARY_MULTIPLE * tensor_parallel
    return -(-vocabulary // multiple) * multiple


class Experts(Record, frozen=True, kw_only=True):
    """Mixture-of-experts feed-forward layers.

    `routed` experts of width `ffn` of which `top_k` see each token, `shared_ffn` the total width of what
    every token sees beside them (scaled by a learned gate with `shared_gate`), and the number of leading
    dense layers. Of the layers behind them those have experts whose number, from 1, `every` divides. With
    `norm_top_k` the weights of the experts that see a token add up to 1. `skew` >= 1 multiplies expert work
    and received bytes.
    """

    routed: int
    top_k: int
    ffn: int
    shared_ffn: int = 0
    dense_layers: int = 0
    every: int = 1
    norm_top_k: bool = True
    router_bias: bool = False
    shared_gate: bool = False
    skew: float = 1.0


class LatentAttention(Record, frozen=True, kw_only=True):
    """Multi-head latent attention (DeepSeek): ranks and head widths; `query_rank` 0 for none."""

    kv_rank: int
    query_rank: int
    nope_head: int
    rope_head: int
    value_head: int


class FullAttention(Record, frozen=True, kw_only=True):
    """Shape of the full-attention layers where it differs from that of the sliding ones (Gemma 4).

    `shared_projection`: values are made by the key projection, which has no counterpart of its own.
    """

    head_dim: int
    kv_heads: int
    shared_projection: bool = False


class RopeScaling(Record, frozen=True, kw_only=True):
    """Rotary position scaling as published configs spell it (`kind`: linear, llama3, yarn)."""

    kind: str
    factor: float
    original_positions: int | None = None
    low_frequency_factor: float | None = None
    high_frequency_factor: float | None = None
    beta_fast: float | None = None
    beta_slow: float | None = None
    attention_factor: float | None = None


class ModelSpec(Record, frozen=True, kw_only=True, omit_defaults=True):
    """One model of the problem.

    `layers` L, `hidden` d, `ffn` d_ff, `vocabulary` V, `head` (lm: policy and reference; scalar:
    value and reward; both: shared actor-critic), `bytes_per_parameter` s_b. The remaining fields are
    read by cost model `megatron` and by the runtime; cost model `paper` ignores them. `sliding_window`
    holds for all layers, or with `full_attention_every` n for all but each n-th, whose shape is
    `full_attention` where that differs. `rotary_fraction` is the part of a head that is rotated.

    `unit_offset_norm`: norm weights are stored as their difference from 1; `scaled_embeddings`: embeddings
    are multiplied by sqrt(hidden). Attention scores are divided by sqrt(`attention_scalar`) (None: the head
    width) and, like the logits, squashed to c * tanh(x / c) where a softcap c is given. `local_rope_theta` is
    the base of the sliding layers' positions, which are not scaled (None: as in all others).

    `parameters` is N_m of the cost model in use, which is always derived: a value in a file is ignored.
    `head_dim` None means hidden / attention_heads; `kv_heads` None means attention_heads.

    `checkpoint` is a Hugging Face checkpoint directory or `random:LABEL`: weights drawn from the run's
    seed and the label, so that models with one label start equal. Without it all models with an lm head
    share one label, and every other model has its own.
    """

    layers: int
    hidden: int
    ffn: int
    vocabulary: int
    head: Head
    bytes_per_parameter: int = 2
    attention_heads: int
    kv_heads: int | None = None
    parameters: int | None = None
    head_dim: int | None = None
    gated_ffn: bool = True
    tied_embeddings: bool = False
    qkv_bias: bool = False
    attention_output_bias: bool = False
    mlp_bias: bool = False
    lm_head_bias: bool = False
    norm: str = "rmsnorm"
    norm_epsilon: float = 1e-5
    qk_norm: bool = False
    qk_norm_width: str = "head"
    post_norms: bool = False
    parallel_attention: bool = False
    shared_norm: bool = False
    attention_sinks: bool = False
    attention_scalar: int | None = None
    attention_softcap: float | None = None
    logit_softcap: float | None = None
    unit_offset_norm: bool = False
    scaled_embeddings: bool = False
    sliding_window: int | None = None
    full_attention_every: int | None = None
    full_attention: FullAttention | None = None
    learned_positions: int = 0
    max_positions: int = 0
    rope_theta: float = 10000.0
    local_rope_theta: float | None = None
    rotary_fraction: float = 1.0
    rope_scaling: RopeScaling | None = None
    activation: str = "silu"
    experts: Experts | None = None
    latent_attention: LatentAttention | None = None
    family: str | None = None
    checkpoint: str | None = None

    @property
    def query_groups(self) -> int:
        """Number of key/value heads n_kv."""
        return self.kv_heads if self.kv_heads is not None else self.attention_heads

    @property
    def head_width(self) -> int:
        """Width d_h of one attention head."""
        return self.head_dim if self.head_dim is not None else self.hidden // self.attention_heads

    def is_full_attention(self, layer: int) -> bool:
        """Whether layer `layer` (from 0) attends to the whole context rather than to a sliding window."""
        every = self.full_attention_every
        return self.sliding_window is None or (every is not None and (layer + 1) % every == 0)

    def has_experts(self, layer: int) -> bool:
        """Whether the feed-forward part of layer `layer` (from 0) is a mixture of experts."""
        e = self.experts
        return e is not None and layer >= e.dense_layers and (layer + 1) % e.every == 0

    @property
    def has_lm_head(self) -> bool:
        """chi_LM: the model ends in a vocabulary projection."""
        return self.head in ("lm", "both")

    @property
    def has_scalar_head(self) -> bool:
        """chi_scal: the model ends in a scalar projection."""
        return self.head in ("scalar", "both")
