"""What is put into the slots of Megatron-Core's transformer layers: norms, attention, feed-forward parts,
residuals, heads."""

import contextlib
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from rpeg_rt.engine.activations import Room
from rpeg_rt.engine.attention import Attention
from rpeg_rt.engine.context import Share, whole_sequence
from rpeg_rt.engine.elementwise import gated, rotated
from rpeg_rt.engine.shim import MLP, TransformerLayer, attention, device, mappings


class RMSNorm(torch.nn.Module):
    """x / rms(x) * weight, computed in at least float32.

    `weight` is stored as its difference from 1 where the configuration says so.
    """

    def __init__(self, config: Any, hidden_size: int, eps: float) -> None:
        super().__init__()
        self.eps, self._offset = eps, config.layernorm_zero_centered_gamma
        self.weight = torch.nn.Parameter(torch.empty(hidden_size, dtype=config.params_dtype, device=device()))

    def factors(self) -> Tensor:
        """What normalised values are multiplied by: in the wider type if that is not what is stored."""
        if not self._offset:
            return self.weight
        return 1 + self.weight.to(torch.promote_types(self.weight.dtype, torch.float32))

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last dimension."""
        return rms_norm(x, self.factors(), self.eps)


def rms_norm(x: Tensor, factors: Tensor, eps: float) -> Tensor:
    """Root-mean-square normalisation of the last dimension, in at least float32, times `factors` in their own
    type; the result has the type of `x`."""
    if x.dtype in (torch.float32, torch.float64):
        return F.rms_norm(x, factors.shape, factors, eps)
    return (F.rms_norm(x.float(), factors.shape, None, eps).to(factors.dtype) * factors).to(x.dtype)


class CausalAttention(torch.nn.Module):
    """Megatron's core attention slot: [s, b, heads, d] to [s, b, heads * d], causal. It also turns queries
    and keys by their positions.

    `attend_as` is called once the slot is filled: Megatron does not say of which layer it is.
    """

    kind: Attention
    turns: tuple[Tensor, Tensor]

    def __init__(self, *, pg_collection: Any, **_: Any) -> None:
        super().__init__()
        self._group = pg_collection.cp
        self.share = Share(self._group.rank(), self._group.size())

    def attend_as(self, kind: Attention, dtype: torch.dtype) -> None:
        """Attend as `kind` says to heads of type `dtype`."""
        self.kind = kind
        half = kind.angles[:, None, None, : kind.angles.size(1) // 2]
        self.turns = (half.cos().to(dtype), half.sin().to(dtype))

    def forward(self, query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any) -> Tensor:
        """Attention over earlier positions of the whole sequences, of which these are the rank's share; key
        and value may have fewer heads than query."""
        blocks = self.share.blocks(query.size(0) * self.share.ranks)
        turns = [[turn[block.start : block.stop] for block in blocks] for turn in self.turns]
        cosine, sine = (torch.cat(parts) if len(parts) > 1 else parts[0] for parts in turns)
        query, key = rotated(query, cosine, sine), rotated(key, cosine, sine)
        if self.share.ranks > 1:
            key, value = whole_sequence(torch.cat([key, value], -1), self._group).tensor_split(
                [key.size(-1)], -1
            )
        q, k, v = (t.permute(1, 2, 0, 3) for t in (query, key, value))
        parts = [
            self.kind.causal(part, k[:, :, : block.stop], v[:, :, : block.stop], block.start)
            for part, block in zip(q.chunk(len(blocks), 2), blocks, strict=True)
        ]
        out = torch.cat(parts, 2) if len(parts) > 1 else parts[0]
        return out.permute(2, 0, 1, 3).reshape(query.size(0), query.size(1), -1)


class FeedForward(MLP):  # type: ignore[misc]
    """Megatron's feed-forward part, gated."""

    def forward(self, hidden_states: Tensor, *_: Any, **__: Any) -> Any:
        """Its output and the bias that is to be added, which there is none of."""
        return self.linear_fc2(gated(self.linear_fc1(hidden_states)[0], self.config.activation_func))


class NormThenAdd(torch.nn.Module):
    """Megatron's slot for adding the output of attention or feed-forward to the residual: it is normalised
    before."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.norm = RMSNorm(config, config.hidden_size, config.layernorm_epsilon)

    def forward(self, *_: Any) -> Callable[..., Tensor]:
        """The function of (output with bias, residual, dropout) that adds."""
        return lambda output, residual, _: residual + self.norm(output[0])


class SelfAttention(attention.SelfAttention):  # type: ignore[misc]
    """Megatron's self-attention where tensor ranks outnumber key/value heads.

    Megatron then gathers the projections over the global tensor-parallel group and asks for its global
    rank; both answers are given from this model's own group.
    """

    def get_query_key_value_tensors(self, *args: Any, **kwargs: Any) -> Any:
        """Query, key and value heads of this rank."""
        if self.config.num_query_groups >= self.world_size:
            return super().get_query_key_value_tensors(*args, **kwargs)
        group = self.pg_collection.tp
        names = ("all_gather_last_dim_from_tensor_parallel_region", "get_tensor_model_parallel_rank")
        saved = {name: getattr(attention, name) for name in names}
        setattr(attention, names[0], lambda x: getattr(mappings, names[0])(x, group=group))
        setattr(attention, names[1], group.rank)
        try:
            return super().get_query_key_value_tensors(*args, **kwargs)
        finally:
            for name, function in saved.items():
                setattr(attention, name, function)


class Layer(TransformerLayer):  # type: ignore[misc]
    """Megatron's transformer layer. For the backward pass it keeps all that this needs where the model has
    `room` for it, which is `kept` bytes of a shape of hidden states (None: nobody knows how many), and else
    its input alone: it then runs again."""

    room: Room
    kept: Callable[[torch.Size], int] | None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # Megatron's own would record gradients of what is added even where they are switched off.
        self.bias_dropout_add_exec_handler = contextlib.nullcontext

    def forward(self, hidden_states: Tensor, **kwargs: Any) -> tuple[Tensor, None]:
        """Hidden states [s, b, h] to [s, b, h]; the second result is Megatron's unused context."""

        def run(hidden: Tensor) -> Tensor:
            output: Tensor = super(Layer, self).forward(hidden, **kwargs)[0]
            return output

        if not torch.is_grad_enabled():
            return run(hidden_states), None
        if self.kept is not None and self.room.take(self.kept(hidden_states.shape)):
            return run(hidden_states), None
        # There is no dropout, so the second run needs no random state of the first.
        return checkpoint(run, hidden_states, use_reentrant=True, preserve_rng_state=False), None


class ScalarHead(torch.nn.Module):
    """Projection of hidden states to one number; replicated over tensor ranks."""

    def __init__(self, hidden: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.empty(1, hidden, dtype=dtype, device=device()))

    def forward(self, x: Tensor) -> Tensor:
        """[..., hidden] to [...]."""
        return F.linear(x, self.weight).squeeze(-1)


def capped(logits: Tensor, softcap: float | None) -> Tensor:
    """c * tanh(logits / c) for a softcap c."""
    return logits if softcap is None else softcap * (logits / softcap).tanh()
