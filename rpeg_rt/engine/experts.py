"""Mixture-of-experts feed-forward layers: routing, exchange between ranks, experts.

Megatron's own layer wants its global state, Transformer Engine or sequence parallelism in places, and one
module per expert. This one is a function of plain tensors, which serves training, scoring and decoding alike.
Nothing is dropped and nothing is added to the loss: a token is seen by the `top_k` experts that it likes
best, however many others like them.

Hidden states are equal on tensor ranks, so each of them routes its share of the tokens and the shares are put
together by the sum over tensor ranks that ends every feed-forward layer. Experts are whole on their rank.
"""

from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from ir_schema.model import ModelSpec
from rpeg_rt.engine.elementwise import ACTIVATIONS, gated
from rpeg_rt.engine.groups import LayoutGroups
from rpeg_rt.engine.shim import device, mappings, set_tensor_model_parallel_attributes


class ExpertWeights(NamedTuple):
    """The weights of one layer on this rank.

    `router` [experts, h]; of this rank's experts, one after the other, `gate_up` [n * 2 f, h] and `down`
    [n * h, f]; of the shared ones this tensor rank's part, and their gate [1, h] (None: there are none).
    """

    router: Tensor
    gate_up: Tensor
    down: Tensor
    shared_gate_up: Tensor | None = None
    shared_down: Tensor | None = None
    shared_gate: Tensor | None = None


class Experts:
    """What a model's expert layers compute on this rank, their weights aside."""

    def __init__(self, spec: ModelSpec, groups: LayoutGroups) -> None:
        assert spec.experts is not None
        layout = groups.layout
        self._spec, self._experts = spec, spec.experts
        self._activation = ACTIVATIONS[spec.activation]
        self._ranks, self._group = layout.expert_parallel, groups.collection.ep
        self._local = spec.experts.routed // self._ranks
        self._tensor, self._rank = layout.tensor_parallel, groups.place.tensor

    def __call__(self, tokens: Tensor, weights: ExpertWeights) -> Tensor:
        """[n, h] to this tensor rank's summand of the result [n, h].

        Collective over the expert-parallel group, whose ranks may have different, and no, tokens.
        """
        n = len(tokens)
        first, last = (n * i // self._tensor for i in (self._rank, self._rank + 1))
        result = F.pad(self._routed(tokens[first:last], weights), (0, 0, first, n - last))
        if weights.shared_gate_up is None or weights.shared_down is None:
            return result
        shared = self._fed(tokens, weights.shared_gate_up, weights.shared_down)
        if weights.shared_gate is not None:
            shared = F.linear(tokens, weights.shared_gate).sigmoid() * shared
        return result + shared

    def _routed(self, tokens: Tensor, weights: ExpertWeights) -> Tensor:
        """[n, h] to what their experts make of them."""
        likings, chosen = self._route(tokens, weights.router)
        (n, k), h = chosen.shape, tokens.size(1)
        by_expert = chosen.flatten().argsort(stable=True)
        counts = torch.bincount(chosen.flatten(), minlength=self._experts.routed)
        # Neither this nor what follows adds several rows into one: on GPUs the order would be left to chance.
        copies = tokens[:, None].expand(n, k, h).reshape(n * k, h).index_select(0, by_expert)
        look = self._exchanged if self._ranks > 1 else self._seen
        seen = look(copies, counts, weights).index_select(0, by_expert.argsort())
        return (seen.view(n, k, h) * likings[..., None]).sum(1)

    def _route(self, tokens: Tensor, router: Tensor) -> tuple[Tensor, Tensor]:
        """Weights and numbers [n, k] of each token's experts; probabilities in single precision at least."""
        logits = F.linear(tokens, router)
        wide = torch.promote_types(logits.dtype, torch.float32)
        likings, chosen = logits.softmax(-1, dtype=wide).topk(self._experts.top_k, dim=-1)
        if self._experts.norm_top_k:
            likings = likings / likings.sum(-1, keepdim=True)
        return likings.to(logits.dtype), chosen

    def _exchanged(self, copies: Tensor, counts: Tensor, weights: ExpertWeights) -> Tensor:
        """Send copies, sorted by expert, to the ranks of their experts, and back what these make of them."""
        leaving = counts.view(self._ranks, self._local)
        coming = torch.empty_like(leaving)
        dist.all_to_all_single(coming, leaving, group=self._group)
        there, here = leaving.sum(1).tolist(), coming.sum(1).tolist()
        arrived = mappings.all_to_all(self._group, copies, here, there)
        # They came rank by rank, and of each rank by expert.
        experts = torch.arange(self._local, device=coming.device).repeat(self._ranks)
        by_expert = experts.repeat_interleave(coming.flatten()).argsort(stable=True)
        seen = self._seen(arrived.index_select(0, by_expert), coming.sum(0), weights)
        back: Tensor = mappings.all_to_all(
            self._group, seen.index_select(0, by_expert.argsort()), there, here
        )
        return back

    def _seen(self, copies: Tensor, counts: Tensor, weights: ExpertWeights) -> Tensor:
        """What this rank's experts, of which each sees `counts` of the copies, make of them."""
        width, hidden = self._experts.ffn, self._spec.hidden
        inner = weights.gate_up.view(self._local, 2 * width, hidden).unbind()
        outer = weights.down.view(self._local, hidden, width).unbind()
        parts = torch.split(copies, counts.tolist())
        seen = [self._fed(x, a, b) for x, a, b in zip(parts, inner, outer, strict=True) if len(x)]
        return torch.cat(seen) if seen else copies

    def _fed(self, x: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
        return F.linear(gated(F.linear(x, gate_up), self._activation), down)


class ExpertLayer(torch.nn.Module):
    """Megatron's feed-forward slot: [s, b, h] to [s, b, h] and no bias."""

    def __init__(self, config: Any, spec: ModelSpec, groups: LayoutGroups) -> None:
        super().__init__()
        e, layout = spec.experts, groups.layout
        assert e is not None
        self._tp, self._experts = groups.collection.tp, Experts(spec, groups)
        local, hidden = e.routed // layout.expert_parallel, spec.hidden
        shared = e.shared_ffn // layout.tensor_parallel

        def parameter(*shape: int, cut: int | None = None, expert: bool = False) -> torch.nn.Parameter:
            made: Any = torch.nn.Parameter(torch.empty(*shape, dtype=config.params_dtype, device=device()))
            if cut is not None:
                set_tensor_model_parallel_attributes(made, True, cut, 1)
            if expert:
                made.allreduce = False  # Megatron's mark: its replicas are other ranks than a dense weight's.
            return made  # type: ignore[no-any-return]

        self.router = parameter(e.routed, hidden)
        self.gate_up = parameter(local * 2 * e.ffn, hidden, cut=0, expert=True)
        self.down = parameter(local * hidden, e.ffn, cut=0, expert=True)
        if e.shared_ffn:
            self.shared_gate_up = parameter(2 * shared, hidden, cut=0)
            self.shared_down = parameter(hidden, shared, cut=1)
        if e.shared_gate:
            self.shared_gate = parameter(1, hidden)

    def weights(self) -> ExpertWeights:
        """The layer's weights, as parameters."""
        return ExpertWeights(**dict(self.named_parameters()))

    def forward(self, hidden_states: Tensor, **_: Any) -> tuple[Tensor, None]:
        """The layer's output; collective over the tensor- and expert-parallel groups."""
        own = self.weights()
        # What is whole on tensor ranks, but of which each knows a part of the gradient alone.
        whole = {
            name: mappings.copy_to_tensor_model_parallel_region(value, group=self._tp)
            for name, value in (("router", own.router), ("shared_gate", own.shared_gate))
            if value is not None
        }
        tokens = mappings.copy_to_tensor_model_parallel_region(hidden_states, group=self._tp)
        summand = self._experts(tokens.flatten(0, 1), own._replace(**whole))
        result = mappings.reduce_from_tensor_model_parallel_region(summand, group=self._tp)
        return result.view_as(hidden_states), None
