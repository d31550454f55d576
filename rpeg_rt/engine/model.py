"""This rank's part of a model, composed of Megatron-Core's transformer blocks.

Embedding, decoder and heads are put together here instead of in Megatron's GPTModel, because a scalar head,
both heads on one backbone and logits of response tokens alone do not exist there. Attention is plain
scaled-dot-product attention and always causal: sequences are left-aligned, so padding is only ever behind.
"""

from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ir_schema.model import ModelSpec, padded_vocabulary
from rpeg_rt.engine.activations import Room, kept_bytes
from rpeg_rt.engine.attention import attention_kinds
from rpeg_rt.engine.blocks import (
    CausalAttention,
    FeedForward,
    Layer,
    NormThenAdd,
    RMSNorm,
    ScalarHead,
    SelfAttention,
    capped,
)
from rpeg_rt.engine.elementwise import ACTIVATIONS
from rpeg_rt.engine.groups import LayoutGroups
from rpeg_rt.engine.shim import (
    ColumnParallelLinear,
    MegatronModule,
    ModuleSpec,
    RowParallelLinear,
    TransformerBlock,
    TransformerBlockSubmodules,
    TransformerConfig,
    VocabParallelEmbedding,
    get_gpt_layer_local_spec,
    set_tensor_model_parallel_attributes,
)


def transformer_config(spec: ModelSpec, groups: LayoutGroups, precision: torch.dtype) -> Any:
    """Megatron's configuration of the model. Gradients are sums over tokens, not means over replicas."""
    return TransformerConfig(
        num_layers=spec.layers,
        hidden_size=spec.hidden,
        num_attention_heads=spec.attention_heads,
        num_query_groups=spec.query_groups,
        kv_channels=spec.head_width,
        ffn_hidden_size=spec.ffn,
        normalization="RMSNorm",
        layernorm_epsilon=spec.norm_epsilon,
        layernorm_zero_centered_gamma=spec.unit_offset_norm,
        gated_linear_unit=True,
        activation_func=ACTIVATIONS[spec.activation],
        add_bias_linear=False,
        add_qkv_bias=spec.qkv_bias,
        qk_layernorm=spec.qk_norm,
        attention_dropout=0.0,
        hidden_dropout=0.0,
        params_dtype=precision,
        pipeline_dtype=precision,
        bf16=precision == torch.bfloat16,
        tensor_model_parallel_size=groups.layout.tensor_parallel,
        pipeline_model_parallel_size=groups.layout.pipeline_parallel,
        perform_initialization=False,
        gradient_accumulation_fusion=False,
        masked_softmax_fusion=False,
        calculate_per_token_loss=True,
    )


class Model(MegatronModule):  # type: ignore[misc]
    """One rank's stage and tensor shard: embedding on the first stage, heads on the last.

    Parameters are named as `rpeg_rt.engine.sharding` says and are left uninitialised. `wide` is the type of
    log-probabilities, values and rewards: the parameters' type, float32 at least. `room` is what layers
    may keep for the backward pass.
    """

    def __init__(self, spec: ModelSpec, groups: LayoutGroups, precision: torch.dtype, positions: int) -> None:
        config = transformer_config(spec, groups, precision)
        super().__init__(config)
        self.spec, self.groups = spec, groups
        # The next three are what Megatron's reduction of tied embeddings' gradients asks a model for.
        self.pre_process, self.post_process = groups.is_first_stage, groups.is_last_stage
        self.share_embeddings_and_output_weights = spec.has_lm_head and spec.tied_embeddings
        tensor = groups.layout.tensor_parallel
        vocabulary = padded_vocabulary(spec.vocabulary, tensor)
        tp = groups.collection.tp
        if self.pre_process:
            self.embedding = VocabParallelEmbedding(
                vocabulary, spec.hidden, init_method=None, config=config, tp_group=tp
            )
        self.decoder = _decoder(spec, groups, config)
        self.lm_head: Any = None
        self.value_head: Any = None
        if self.post_process and spec.has_lm_head:
            tied_here = self.pre_process and spec.tied_embeddings
            self.lm_head = ColumnParallelLinear(
                spec.hidden,
                vocabulary,
                config=config,
                init_method=None,
                bias=False,
                skip_weight_param_allocation=tied_here,
                tp_group=tp,
            )
        if self.post_process and spec.has_scalar_head:
            self.value_head = ScalarHead(spec.hidden, precision)
        self.wide = torch.promote_types(precision, torch.float32)
        first = groups.place.pipeline * len(self.decoder.layers)
        self.room = Room()
        kinds = attention_kinds(spec, groups.share.padded(positions), self.wide)
        self.kinds = [kinds[spec.is_full_attention(first + i)] for i in range(len(self.decoder.layers))]
        for layer, kind in zip(self.decoder.layers, self.kinds, strict=True):
            layer.self_attention.core_attention.attend_as(kind, precision)
            layer.room = self.room
            layer.kept = None if spec.experts else partial(kept_bytes, spec, groups, kind, dtype=precision)
        # Rounded to the parameters' type, as it is where such models are made.
        factor = spec.hidden**0.5 if spec.scaled_embeddings else 1.0
        self.embedding_factor = float(torch.tensor(factor, dtype=precision))
        self._mark_parameters()

    def _mark_parameters(self) -> None:
        """Set what Megatron sets when it initialises: which parameters are not replicas of each other."""
        for module in self.modules():
            if isinstance(module, ColumnParallelLinear | RowParallelLinear | VocabParallelEmbedding):
                axis = 1 if isinstance(module, RowParallelLinear) else 0
                if module.weight is not None and not hasattr(module.weight, "tensor_model_parallel"):
                    set_tensor_model_parallel_attributes(module.weight, True, axis, 1)
        tied_apart = self.share_embeddings_and_output_weights and self.pre_process != self.post_process
        if tied_apart:
            weight: Any = self.shared_embedding_or_output_weight()
            weight.shared_embedding = True  # Its gradients get a bucket that both stages cut alike.
            weight.shared = self.post_process  # Counted once in the gradient norm.

    def shared_embedding_or_output_weight(self) -> Tensor:
        """The tied weight of an end stage."""
        weight: Tensor = self.embedding.weight if self.pre_process else self.lm_head.weight
        return weight

    def output_weight(self) -> Tensor:
        """This rank's rows of the vocabulary projection (last stage)."""
        if self.lm_head is None:
            raise ValueError("the model has no vocabulary projection")
        weight: Tensor | None = self.lm_head.weight
        return self.shared_embedding_or_output_weight() if weight is None else weight

    def forward(self, tokens: Tensor, received: Tensor | None) -> Tensor:
        """Hidden states [s, b, h] of left-aligned `tokens` [b, s], of which this is the rank's share;
        `received` is the earlier stage's."""
        embedded = None
        if self.pre_process:
            embedded = self.embedding(tokens).transpose(0, 1).contiguous()
            if self.spec.scaled_embeddings:
                embedded = embedded * self.embedding_factor
        else:
            self.decoder.set_input_tensor(received)
        hidden: Tensor = self.decoder(hidden_states=embedded, attention_mask=None)
        return hidden

    def logits(self, hidden: Tensor, temperature: float = 1.0) -> Tensor:
        """This rank's part of the logits by `temperature`: [n, h] to [n, V_padded / P_t], the lowest number
        where padded."""
        weight = self.output_weight() if self.lm_head.weight is None else None
        logits: Tensor = self.lm_head(hidden, weight=weight)[0]
        logits = capped(logits, self.spec.logit_softcap)
        if temperature != 1.0:
            logits = logits / temperature
        rows = logits.size(-1)
        real = self.spec.vocabulary - self.groups.place.tensor * rows
        if real >= rows:
            return logits
        padding = torch.arange(rows, device=logits.device) >= real
        # Not -inf: its probability is 0 as well, and 0 times it is a number.
        return logits.masked_fill(padding, torch.finfo(logits.dtype).min)


def _decoder(spec: ModelSpec, groups: LayoutGroups, config: Any) -> Any:
    layer = get_gpt_layer_local_spec(normalization="RMSNorm", qk_layernorm=spec.qk_norm)
    layer.module = Layer
    layer.submodules.input_layernorm = RMSNorm
    layer.submodules.pre_mlp_layernorm = RMSNorm
    layer.submodules.self_attention.module = SelfAttention
    layer.submodules.mlp.module = FeedForward
    layer.submodules.mlp.params["tp_group"] = groups.collection.tp
    inner = layer.submodules.self_attention.submodules
    inner.core_attention = CausalAttention
    if spec.qk_norm:
        inner.q_layernorm = inner.k_layernorm = RMSNorm
    if spec.post_norms:
        add = ModuleSpec(module=NormThenAdd, params={"config": config})
        layer.submodules.self_attn_bda = layer.submodules.mlp_bda = add
    stages = groups.layout.pipeline_parallel
    return TransformerBlock(
        config,
        TransformerBlockSubmodules(layer_specs=[layer] * (spec.layers // stages), layer_norm=RMSNorm),
        pre_process=groups.is_first_stage,
        post_process=groups.is_last_stage,
        pg_collection=groups.collection,
    )


class _TokenLogProbability(torch.autograd.Function):
    """log softmax(logits)[target] for logits cut along the vocabulary, and where it is asked for the entropy
    of softmax(logits), which has no gradient; the group's ranks all get both."""

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, target: Tensor, group: Any, with_entropy: bool
    ) -> tuple[Tensor, Tensor | None]:
        wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
        highest = wide.amax(-1)
        parallel = group.size() > 1 and wide.size(0) > 0
        if parallel:
            dist.all_reduce(highest, op=dist.ReduceOp.MAX, group=group)
        shifted = wide - highest[:, None]
        local = target - group.rank() * logits.size(-1)
        elsewhere = (local < 0) | (local >= logits.size(-1))
        local = local.masked_fill(elsewhere, 0)
        chosen = shifted.gather(-1, local[:, None])[:, 0].masked_fill(elsewhere, 0.0)
        exponent = shifted.exp_()  # In place: these are the largest tensors of a training step.
        parts = [exponent.sum(-1), chosen]
        if with_entropy:
            # A matrix product makes no further tensor of that size.
            parts.append(torch.bmm(exponent[:, None, :], wide[:, :, None]).flatten())
        sums = torch.stack(parts)
        if parallel:
            dist.all_reduce(sums, group=group)
        total, logarithm = sums[0], sums[0].log()
        ctx.save_for_backward(exponent.div_(total[:, None]), local, elsewhere)
        ctx.dtype = logits.dtype
        if not with_entropy:
            return sums[1] - logarithm, None
        entropy = highest + logarithm - sums[2] / total
        ctx.mark_non_differentiable(entropy)
        return sums[1] - logarithm, entropy

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        softmax, local, elsewhere = ctx.saved_tensors
        gradient = gradients[0]
        result = -softmax * gradient[:, None]
        result.scatter_add_(-1, local[:, None], gradient.masked_fill(elsewhere, 0.0)[:, None])
        return result.to(ctx.dtype), None, None, None


def token_logp(logits: Tensor, target: Tensor, group: Any) -> Tensor:
    """Log-probabilities [n] of `target` [n] under vocabulary-parallel `logits` [n, V_padded / P_t].

    Megatron's own cross-entropy uses the global tensor-parallel group.
    """
    result: Tensor = _TokenLogProbability.apply(logits, target, group, False)[0]  # type: ignore[no-untyped-call]
    return result


def token_logp_and_entropy(logits: Tensor, target: Tensor, group: Any) -> tuple[Tensor, Tensor]:
    """As `token_logp`, and the entropies [n] of softmax(logits) over the whole vocabulary, in nats and
    without a gradient. They take no further message between ranks."""
    both: tuple[Tensor, Tensor] = _TokenLogProbability.apply(logits, target, group, True)  # type: ignore[no-untyped-call]
    return both
