"""Prefill and one-token decoding of one pipeline stage over Megatron's weights, with a static cache.

This is the model's arithmetic without its modules: per token it costs a few tensor operations a layer,
where Megatron's inference path spends most of its time in Python. The cache holds rotated keys; row r's
token at position p lies in slot p, so rows of different lengths share a batch and may leave it.
"""

from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from rpeg_rt.engine.attention import Attention
from rpeg_rt.engine.blocks import RMSNorm, capped, rms_norm
from rpeg_rt.engine.elementwise import ACTIVATIONS
from rpeg_rt.engine.model import Model


@dataclass
class Cache:
    """Keys and values per layer, each [b, kv heads, slots, d_h], and the next slot of every row.

    `bias` [b, 1, 1, slots] is added to attention scores: 0 for slots that hold a token, -inf elsewhere.
    """

    keys: list[Tensor]
    values: list[Tensor]
    position: Tensor
    bias: Tensor
    used: int
    uniform: bool

    def select(self, rows: Tensor) -> "Cache":
        """The cache of some of the rows."""
        return Cache(
            keys=[k[rows] for k in self.keys],
            values=[v[rows] for v in self.values],
            position=self.position[rows],
            bias=self.bias[rows],
            used=self.used,
            uniform=self.uniform,
        )


@dataclass(frozen=True)
class _Layer:
    kind: int
    input_norm: Tensor
    qkv: Tensor
    qkv_bias: Tensor | None
    qk_norms: tuple[Tensor, Tensor] | None
    projection: Tensor
    mlp_norm: Tensor
    gate_up: Tensor
    down: Tensor
    post_norms: tuple[Tensor, Tensor] | None


class Decoder:
    """One stage's layers with the weights that the model uses now, whatever version it uses later."""

    def __init__(self, model: Model) -> None:
        spec, layout = model.spec, model.groups.layout
        self._spec = spec
        self._group = model.groups.collection.tp
        self._tensor, self._rank = layout.tensor_parallel, model.groups.place.tensor
        self._width, self._eps = spec.head_width, spec.norm_epsilon
        self._groups_here = max(1, spec.query_groups // self._tensor)
        self._dtype = model.config.params_dtype
        self._activation = ACTIVATIONS[spec.activation]
        self._kinds = list(dict.fromkeys(model.kinds))
        self._turns = [self._turns_of(kind) for kind in self._kinds]
        self._layers = [
            _weights(layer, self._kinds.index(kind))
            for layer, kind in zip(model.decoder.layers, model.kinds, strict=True)
        ]
        self._embedding = model.embedding.weight.data if model.pre_process else None
        self._embedding_factor = model.embedding_factor
        last = model.groups.is_last_stage
        self._final_norm = model.decoder.final_layernorm.factors().data if last else None
        self._output = model.output_weight().data if last else None

    def embed(self, tokens: Tensor) -> Tensor:
        """[...] token ids to [..., h] (first stage)."""
        if self._embedding is None:
            raise ValueError("only the first stage embeds tokens")
        if self._tensor == 1:
            embedded = F.embedding(tokens, self._embedding)
        else:
            local = tokens - self._rank * len(self._embedding)
            elsewhere = (local < 0) | (local >= len(self._embedding))
            embedded = F.embedding(local.masked_fill(elsewhere, 0), self._embedding)
            embedded = self._summed(embedded.masked_fill(elsewhere[..., None], 0.0))
        return embedded * self._embedding_factor if self._spec.scaled_embeddings else embedded

    def prefill(self, hidden: Tensor, lengths: Tensor, slots: int, rows: Tensor) -> tuple[Tensor, Cache]:
        """Run prompts [n, s, h] and make the cache of the sequences that continue them.

        `lengths` [n]; sequence r continues prompt `rows[r]`, in a cache of `slots` slots. Returns the
        stage's hidden states [n, s, h] and the cache.
        """
        length = hidden.size(1)
        turned = [(cos[:length, None, :], sin[:length, None, :]) for cos, sin in self._turns]
        keys: list[Tensor] = []
        values: list[Tensor] = []
        for layer in self._layers:
            q, k, v = (t.transpose(1, 2) for t in self._attention_inputs(layer, hidden, *turned[layer.kind]))
            mixed = self._kinds[layer.kind].causal(q, k, v)
            hidden = self._finish_layer(layer, hidden, mixed.transpose(1, 2).flatten(2))
            for cached, new in ((keys, k), (values, v)):
                room = new.new_empty(len(rows), new.size(1), slots, self._width)
                room[:, :, :length] = new[rows]
                # Slots that hold nothing yet are masked, but 0 * nan would not be.
                room[:, :, length:] = 0
                cached.append(room)
        position = lengths[rows]
        filled = torch.arange(slots, device=hidden.device) < position[:, None]
        bias = torch.zeros(len(rows), slots, dtype=self._dtype, device=hidden.device)
        bias = bias.masked_fill_(~filled, float("-inf"))[:, None, None, :]
        uniform = bool((lengths == length).all())
        return hidden, Cache(keys, values, position, bias, used=length, uniform=uniform)

    def decode(self, hidden: Tensor, cache: Cache, advance: Tensor) -> Tensor:
        """Run one token [b, h] per row; rows where `advance` [b] is false keep their slot."""
        position = cache.position
        every = torch.arange(len(position), device=position.device)
        if not cache.uniform:
            cache.bias[every, 0, 0, position] = 0.0
        cache.used += 1
        used = cache.used
        biases = [_bias(cache, kind.window) for kind in self._kinds]
        turned = [(cos[position][:, None, :], sin[position][:, None, :]) for cos, sin in self._turns]
        for layer, keys, values in zip(self._layers, cache.keys, cache.values, strict=True):
            query, key, value = self._attention_inputs(layer, hidden, *turned[layer.kind])
            if cache.uniform:
                keys[:, :, used - 1], values[:, :, used - 1] = key, value
            else:
                keys[every, :, position], values[every, :, position] = key, value
            mixed = self._attend(layer, query, keys[:, :, :used], values[:, :, :used], biases[layer.kind])
            hidden = self._finish_layer(layer, hidden, mixed.flatten(1))
        cache.position = position + advance
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """Whole logits [b, V] of hidden states [b, h] (last stage), equal on all tensor ranks."""
        if self._final_norm is None or self._output is None:
            raise ValueError("only the last stage has logits")
        part = F.linear(rms_norm(hidden, self._final_norm, self._eps), self._output)
        part = capped(part, self._spec.logit_softcap)
        if self._tensor > 1:
            parts = [torch.empty_like(part) for _ in range(self._tensor)]
            dist.all_gather(parts, part, group=self._group)
            part = torch.cat(parts, dim=-1)
        return part[:, : self._spec.vocabulary]

    def _turns_of(self, kind: Attention) -> tuple[Tensor, Tensor]:
        """Cosines and sines [positions, d_h / 2] of a layer's rotations."""
        half = kind.angles[:, : self._width // 2]
        return half.cos().to(self._dtype), half.sin().to(self._dtype)

    def _attend(
        self, layer: _Layer, query: Tensor, keys: Tensor, values: Tensor, bias: Tensor | None
    ) -> Tensor:
        """Query [b, heads, d] over keys and values [b, kv heads, used, d], by group of query heads."""
        batch, groups = keys.shape[:2]
        grouped = query.reshape(batch, groups, -1, self._width)
        return self._kinds[layer.kind].biased(grouped, keys, values, bias)

    def _attention_inputs(
        self, layer: _Layer, hidden: Tensor, cos: Tensor, sin: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Rotated query and key, and value, of this rank: [..., heads, d_h] each."""
        packed = F.linear(rms_norm(hidden, layer.input_norm, self._eps), layer.qkv, layer.qkv_bias)
        query, both = self._spec.attention_heads // self._spec.query_groups, packed.shape[:-1]
        first, count = 0, query
        if self._spec.query_groups < self._tensor:
            # Several ranks share a group of heads, whose projections are spread over them.
            parts = [torch.empty_like(packed) for _ in range(self._tensor)]
            dist.all_gather(parts, packed.contiguous(), group=self._group)
            sharing = self._tensor // self._spec.query_groups
            packed = torch.cat(parts, dim=-1).chunk(self._spec.query_groups, dim=-1)[self._rank // sharing]
            count = query // sharing
            first = self._rank % sharing * count
        heads = packed.view(*both, self._groups_here, query + 2, self._width)
        q, k, v = heads[..., first : first + count, :], heads[..., query : query + 1, :], heads[..., -1, :]
        if layer.qk_norms is not None:
            q, k = rms_norm(q, layer.qk_norms[0], self._eps), rms_norm(k, layer.qk_norms[1], self._eps)
        cos, sin = cos.unsqueeze(-2), sin.unsqueeze(-2)
        q, k = _rotate(q, cos, sin), _rotate(k, cos, sin)
        return q.flatten(-3, -2), k.flatten(-3, -2), v

    def _finish_layer(self, layer: _Layer, hidden: Tensor, mixed: Tensor) -> Tensor:
        attended = self._summed(F.linear(mixed, layer.projection))
        if layer.post_norms is not None:
            attended = rms_norm(attended, layer.post_norms[0], self._eps)
        hidden = hidden + attended
        gate, up = F.linear(rms_norm(hidden, layer.mlp_norm, self._eps), layer.gate_up).chunk(2, dim=-1)
        fed = self._summed(F.linear(self._activation(gate) * up, layer.down))
        if layer.post_norms is not None:
            fed = rms_norm(fed, layer.post_norms[1], self._eps)
        return hidden + fed

    def _summed(self, partial: Tensor) -> Tensor:
        if self._tensor > 1:
            dist.all_reduce(partial, group=self._group)
        return partial


def _bias(cache: Cache, window: int | None) -> Tensor | None:
    """What is added to the scores of the slots in use where a position sees the `window` latest ones."""
    used = cache.used
    if window is None or window >= used:
        return None if cache.uniform else cache.bias[..., :used]
    slots = torch.arange(used, device=cache.position.device)
    if cache.uniform:
        outside = slots < used - window
        return torch.zeros_like(cache.bias[:1, ..., :used]).masked_fill(outside, float("-inf"))
    outside = slots <= (cache.position - window)[:, None]
    return cache.bias[..., :used].masked_fill(outside[:, None, None, :], float("-inf"))


def _weights(layer: torch.nn.Module, kind: int) -> _Layer:
    """The tensors of one of Megatron's transformer layers."""
    p = {name: parameter.data for name, parameter in layer.named_parameters()}
    p |= {f"{name}.weight": m.factors().data for name, m in layer.named_modules() if isinstance(m, RMSNorm)}
    qk = tuple(f"self_attention.{x}_layernorm.weight" for x in "qk")
    post = ("self_attn_bda.norm.weight", "mlp_bda.norm.weight")
    return _Layer(
        kind=kind,
        input_norm=p["input_layernorm.weight"],
        qkv=p["self_attention.linear_qkv.weight"],
        qkv_bias=p.get("self_attention.linear_qkv.bias"),
        qk_norms=(p[qk[0]], p[qk[1]]) if qk[0] in p else None,
        projection=p["self_attention.linear_proj.weight"],
        mlp_norm=p["pre_mlp_layernorm.weight"],
        gate_up=p["mlp.linear_fc1.weight"],
        down=p["mlp.linear_fc2.weight"],
        post_norms=(p[post[0]], p[post[1]]) if post[0] in p else None,
    )


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)
