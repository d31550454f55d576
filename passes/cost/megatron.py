"""Cost model `megatron`: what `rpeg-rt` and Megatron-Core really hold and run (`docs/cost-megatron.md`).

The skeleton is the paper's: T_op = gemm + bubble + tp + pp + dp + nongemm + opt, with cp and ep where a
layout has them. gemm is the time of the busiest pipeline stage over all microbatches, kernel by kernel, and
bubble one microbatch in each of the others; what a microbatch communicates inside a stage likewise. What a
term is made of stands in `megatron_compute`, `megatron_pointwise`, `megatron_network` and `megatron_memory`.
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import ClassVar

import numpy as np

from ir_schema.base import Tier
from ir_schema.device import Allocation, joint_tier
from ir_schema.model import ModelSpec, padded_vocabulary
from ir_schema.problem import Layout, Placement, Problem, Vertex
from ir_schema.stages import DeviceMemory, Node
from passes.analysis import Analysis
from passes.cost import parameters
from passes.cost.base import ClosedForm, CostModel, FusedCost, Parts, ShapeBytes
from passes.cost.lengths import DecodePhase, decode_phases, microbatch_lengths
from passes.cost.megatron_compute import Compute, Real, Work, expert_copies, sequence_parallel, stage_kinds
from passes.cost.megatron_dispatch import (
    DECODE,
    FORWARD,
    PREFILL,
    TRAINING,
    Dispatched,
    Operations,
    dispatched,
    dispatched_once,
)
from passes.cost.megatron_memory import added, optimizer_share, weight_bytes
from passes.cost.megatron_network import Network, among_computing
from passes.cost.megatron_residency import Residency
from passes.cost.megatron_sharing import Priced, in_turn, shared

# Forward equivalents of (layers, head): training computes layers forward, again, and backward (twice).
_TRAINING, _FORWARD = (4, 3), (1, 1)


class MegatronCost(CostModel):
    """See the module."""

    name: ClassVar[str] = "megatron"
    supports_accumulation: ClassVar[bool] = True

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self.workload = problem.workload
        self.hardware = problem.hardware
        self.compute = Compute(problem.hardware)
        self.network = Network(problem.hardware, problem.device_space)
        self.inner = Network(among_computing(problem.hardware), problem.device_space)
        """Communication inside of operators."""
        self.residency = Residency(Analysis(problem))
        self._known: dict[tuple[object, ...], Priced] = {}

    def parameters(self, model: str) -> int:
        """N_m as published: unpadded vocabulary, tied embeddings once."""
        return parameters.total(self.problem.models[model])

    def _model(self, vertex: Vertex) -> ModelSpec:
        assert vertex.model is not None, "a host vertex has no operator cost"
        return self.problem.models[vertex.model]

    # Operators ---------------------------------------------------------------------------------------

    def operator(self, vertex: Vertex, placement: Placement) -> Parts:
        """T_op by parts; a generation is the sum of its phases, times its waves."""
        return dict(self._once(vertex, placement, 0).parts)

    def phase(self, vertex: Vertex, placement: Placement, phase: int) -> Parts:
        """Generation: the decode steps between two breakpoints, with the prefill in phase 1; inference: the
        sequences that finish in this phase, batched by themselves."""
        return dict(self._once(vertex, placement, phase).parts)

    def node_ns(self, vertex: Vertex, placement: Placement) -> int:
        """See `CostModel.node_ns`."""
        processors = self.hardware.node_processors
        return round(self._once(vertex, placement, 0).busy / processors * 1e9) if processors else 0

    def _once(self, vertex: Vertex, p: Placement, phase: int) -> Priced:
        key = (vertex.name, phase, p.data_parallel, p.pipeline_parallel, p.tensor_parallel, p.microbatches,
               p.context_parallel, p.expert_parallel, p.waves)  # fmt: skip
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = self._compute(vertex, p, phase)
        return known

    def _compute(self, vertex: Vertex, p: Placement, phase: int) -> Priced:
        if vertex.role == "generation":
            phases = decode_phases(self.workload)
            if phase == 0:
                return in_turn(*(self._once(vertex, p, q) for q in range(1, len(phases) + 1)))
            decode = self._decode(vertex, p, phases[phase - 1])
            return in_turn(self._prefill(vertex, p), decode) if phase == 1 else decode
        low, high = 0.0, 1.0
        if phase:
            points = (0.0, *(f for f, _ in self.workload.length_quantiles))
            low, high = points[phase - 1 : phase + 1]
        return self._pass(vertex, p, low, high)

    def _pass(self, vertex: Vertex, p: Placement, low: float, high: float) -> Priced:
        """A teacher-forced pass over the sequences between two quantiles: inference, or training."""
        m, layout, training = self._model(vertex), p.layout, vertex.role == "training"
        passes = _TRAINING if training else _FORWARD
        epochs, minibatches = (self.workload.epochs, self.workload.minibatches) if training else (1, 1)
        updates, mb = epochs * minibatches, p.microbatches
        sequences = self.workload.sequences * (high - low) / (p.data_parallel * minibatches * mb)
        responses = microbatch_lengths(self.workload, mb, low, high)
        work = Work(sequences, responses + self.workload.prompt_length, responses)
        operations = TRAINING if training else FORWARD
        stages = self.compute.stages(m, layout, work, passes, self._dispatched(m, operations), decoding=False)
        gemm, mean = mb * _mean(stages.busiest), mb * _mean(stages.mean)
        tokens, heads = sequences * _mean(work.tokens), sequences * _mean(work.heads)
        hops = mb + 2 * p.pipeline_parallel - 3 if training else mb + p.pipeline_parallel - 2
        reference = self.hardware.nongemm_reference
        nongemm = (
            passes[0]
            * (m.layers / p.pipeline_parallel)
            * (0.0 if self.compute.apart else self.hardware.nongemm_seconds)
            * (1 - 1 / p.tensor_parallel)
            * (mb * tokens / p.context_parallel)
            / (reference.sequences * reference.tokens)
        )
        parts = {"gemm": gemm, "bubble": (p.pipeline_parallel * mean - gemm) / mb}
        steps = mb + p.pipeline_parallel - 1
        parts["tp"] = self._tensor_parallel(m, layout, mb, tokens, heads, training=training)
        if p.context_parallel > 1:
            parts["cp"] = steps * passes[0] * self._context_parallel(m, layout, work)
        if p.expert_parallel > 1:
            exchanges = 6 if training else 2
            parts["ep"] = steps * exchanges * self._expert_parallel(m, layout, tokens, decoding=False)
        parts["pp"] = self._pipeline(m, layout, hops, tokens, decoding=False)
        parts["dp"] = self._data_parallel(m, layout) if training else 0.0
        parts["nongemm"] = nongemm
        parts["opt"] = self._optimizer(m, layout) if training else 0.0
        return self._eager(m, layout, operations, parts, mean).times(updates)

    def _prefill(self, vertex: Vertex, p: Placement) -> Priced:
        work = Work(0.0, float(self.workload.prompt_length), 1.0)
        # The runtime runs a prompt once, whatever the number of its rollouts.
        share = 1.0 if self.hardware.dispatch is None else 1.0 / self.workload.rollouts
        return self._token_pass(vertex, p, share, work, PREFILL)

    def _decode(self, vertex: Vertex, p: Placement, phase: DecodePhase) -> Priced:
        """All one-token steps of a phase, each through the whole pipeline."""
        context = self.workload.prompt_length + phase.position
        step = self._token_pass(vertex, p, phase.alive, Work(0.0, 1.0, 1.0, context), DECODE)
        if p.pipeline_parallel > 1:
            # The last stage tells the first what it sampled.
            step.parts["pp"] += p.waves * self.inner.pipeline_step(p.layout, 4.0)
        return step.times(phase.steps)

    def _token_pass(
        self, vertex: Vertex, p: Placement, alive: float, work: Work, operations: Operations
    ) -> Priced:
        """A generation's forward pass of the sequences still alive, once in every wave."""
        m, layout, stages = self._model(vertex), p.layout, p.pipeline_parallel
        local = alive * self.workload.sequences / (p.data_parallel * p.waves)
        mb = max(1, min(p.microbatches, math.floor(local)))
        work = work._replace(sequences=local / mb)
        tokens = work.sequences * float(work.tokens)
        times = self.compute.stages(m, layout, work, _FORWARD, self._dispatched(m, operations), decoding=True)
        busiest, mean = float(times.busiest), float(times.mean)
        parts = {"gemm": mb * busiest, "bubble": stages * mean - busiest}
        steps = mb + stages - 1
        parts["tp"] = self._tensor_parallel(m, layout, mb, tokens, work.sequences, sampling=True)
        if p.expert_parallel > 1:
            parts["ep"] = steps * 2 * self._expert_parallel(m, layout, tokens, decoding=True)
        parts["pp"] = self._pipeline(m, layout, mb + stages - 2, tokens, decoding=True)
        parts |= {"dp": 0.0, "nongemm": 0.0, "opt": 0.0}
        return self._eager(m, layout, operations, parts, mb * mean).times(p.waves)

    # Terms of operations one by one, and of processors that workers share --------------------------------

    def _dispatched(self, m: ModelSpec, operations: Operations) -> Dispatched:
        return dispatched(self.hardware.dispatch, operations, vocabulary=m.has_lm_head)

    def _eager(
        self, m: ModelSpec, layout: Layout, operations: Operations, parts: Parts, work: float
    ) -> Priced:
        """`parts` with what is dispatched outside of passes, and what sharing processors adds; each worker
        computes for `work` seconds."""
        if self.hardware.dispatch is not None:
            layers = m.layers / layout.pipeline_parallel
            parts = parts | {"once": dispatched_once(self.hardware.dispatch, operations, layers)}
        return shared(self.hardware, min(layout.gpus, self.network.node), parts, work)

    # Communication of microbatches -------------------------------------------------------------------

    def _tensor_parallel(
        self, m: ModelSpec, layout: Layout, microbatches: int, tokens: float, heads: float, *,
        training: bool = False, sampling: bool = False,
    ) -> float:  # fmt: skip
        """Reductions in the layers, and at the ends that the vocabulary's sharding causes: of one microbatch
        through all stages, and of the others through the busier end."""
        if layout.tensor_parallel == 1:
            return 0.0
        width = m.hidden * m.bytes_per_parameter / layout.context_parallel
        reduces = _reductions(m) / layout.pipeline_parallel
        one = self.inner.tensor_all_reduce(layout, tokens * width)
        first, last = one, 0.0
        if m.has_lm_head and sampling:
            rows = padded_vocabulary(m.vocabulary, layout.tensor_parallel)
            last = self.inner.tensor_all_gather(layout, heads * rows * parameters.state_width(m))
        elif m.has_lm_head:
            # Maximum, sum of exponentials and the target's logit; the backward pass reduces hidden states.
            scalars = heads / layout.context_parallel * parameters.state_width(m)
            last = 3 * self.inner.tensor_all_reduce(layout, scalars)
            last += self.inner.tensor_all_reduce(layout, heads * width) if training else 0.0
        stages, layers = layout.pipeline_parallel, (3 if training else 1) * reduces * one
        others = first + last if stages == 1 else max(first, last)
        return (microbatches + stages - 1) * layers + (microbatches - 1) * others + first + last

    def _pipeline(self, m: ModelSpec, layout: Layout, hops: int, tokens: float, *, decoding: bool) -> float:
        """`hops` exposed transfers of a microbatch's hidden states, replicated over tensor ranks unless these
        hold different tokens. What leaves a node outside of generation is divided over tensor ranks."""
        split = sequence_parallel(m, layout, decoding=decoding)
        spread = layout.tensor_parallel if split else 1
        nbytes = tokens * m.hidden * m.bytes_per_parameter / (layout.context_parallel * spread)
        return hops * self.inner.pipeline_step(layout, nbytes, divided=not decoding and not split)

    def _context_parallel(self, m: ModelSpec, layout: Layout, work: Work) -> float:
        """What a forward ring of keys and values takes longer than the scores computed meanwhile, per mean
        microbatch."""
        total, steps = 0.0, layout.context_parallel - 1
        rows = work.sequences * work.tokens / layout.context_parallel
        for kind, count in max(stage_kinds(m, layout.pipeline_parallel), key=lambda s: sum(n for _, n in s)):
            shape = parameters.attention_shape(m, kind[0], layout.tensor_parallel)
            block = 2 * shape.kv_heads * shape.width
            if m.latent_attention is not None:
                block = m.latent_attention.kv_rank + m.latent_attention.rope_head
            scores = self.compute.attention(m, kind, layout, work, stored=self.compute.stored)
            scores = scores / layout.context_parallel
            link = self.inner.ring(layout)
            exposed = link.alpha + rows * block * m.bytes_per_parameter * link.beta - scores
            total += count * steps * _mean(np.maximum(exposed, 0.0))
        return total

    def _expert_parallel(self, m: ModelSpec, layout: Layout, tokens: float, *, decoding: bool) -> float:
        """One all-to-all in every layer with experts of the stage that has most of them."""
        spread = layout.tensor_parallel if sequence_parallel(m, layout, decoding=decoding) else 1
        copies = float(expert_copies(m, tokens / (layout.context_parallel * spread)))
        layers = max(sum(n for (_, moe), n in s if moe) for s in stage_kinds(m, layout.pipeline_parallel))
        return layers * self.inner.expert_all_to_all(layout, copies * m.hidden * m.bytes_per_parameter)

    # Terms of one optimizer step ---------------------------------------------------------------------

    def _data_parallel(self, m: ModelSpec, layout: Layout) -> float:
        """Gradients reduced and scattered, weights gathered, by shard; a tied embedding's gradient summed."""
        shard, width = parameters.largest_shard(m, layout), parameters.state_width(m)
        replicas = layout.data_parallel * layout.context_parallel
        time = self.inner.gradient_exchange(
            layout, width * shard.dense, m.bytes_per_parameter * shard.dense, replicas
        )
        if shard.expert:
            spread = layout.tensor_parallel / layout.expert_parallel
            time += self.inner.gradient_exchange(
                layout,
                width * shard.expert,
                m.bytes_per_parameter * shard.expert,
                max(1, round(replicas * spread)),
                spread,
            )
        if m.tied_embeddings and m.has_lm_head and layout.pipeline_parallel > 1:
            rows = padded_vocabulary(m.vocabulary, layout.tensor_parallel) // layout.tensor_parallel
            time += self.inner.embedding_exchange(layout, rows * m.hidden * width)
        return time

    def _optimizer(self, m: ModelSpec, layout: Layout) -> float:
        """Memory traffic of AdamW on this GPU's share: gradients zeroed, then read for norm and update;
        master weights and moments read and written; narrower weights written."""
        width = parameters.state_width(m)
        narrow = m.bytes_per_parameter if m.bytes_per_parameter < width else 0
        traffic = optimizer_share(m, layout) * (8 * width + narrow)
        traffic += parameters.largest_shard(m, layout).total * width
        return traffic / self.hardware.memory_bandwidth

    # Fusion and transfers ----------------------------------------------------------------------------

    def fused(self, members: tuple[Vertex, Vertex], placement: Placement, second: Placement) -> FusedCost:
        """Microtasks of T_gemm / mb per stage: a quarter forward, the rest recompute and backward."""
        both = [self.operator(v, p) for v, p in zip(members, (placement, second), strict=True)]
        mbs = (placement.microbatches, second.microbatches)
        tasks = [parts["gemm"] / mb for parts, mb in zip(both, mbs, strict=True)]
        rest = added(*both)
        del rest["gemm"], rest["bubble"]
        return FusedCost(
            forward_ns=(round(tasks[0] / 4 * 1e9), round(tasks[1] / 4 * 1e9)),
            backward_ns=(round(tasks[0] * 3 / 4 * 1e9), round(tasks[1] * 3 / 4 * 1e9)),
            microbatches=mbs,
            parts=rest,
        )

    def transfer(self, node: Node) -> Parts:
        """Data: the payload over the narrower allocation's links. Weights: every destination GPU receives its
        shard, sources send them in equal parts; between equal layouts on one allocation, a local copy."""
        target = node.allocation
        assert target is not None
        if node.model is None:
            assert node.source_allocation is not None
            source = node.source_allocation
            link = self.network.point_to_point(joint_tier(source, target))
            return {
                "latency": link.alpha,
                "bytes": node.payload_bytes / min(source.gpus, target.gpus) * link.beta,
            }
        assert node.layout is not None
        nbytes = weight_bytes(self.problem.models[node.model], node.layout)
        if node.kind == "Comm":
            assert node.source_allocation is not None
            source = node.source_allocation
            link = self.network.point_to_point(joint_tier(source, target))
            return {"latency": link.alpha, "bytes": nbytes * max(1.0, target.gpus / source.gpus) * link.beta}
        if node.layout == node.source_layout or target.gpus == 1:
            return {"latency": 0.0, "bytes": 2 * nbytes / self.hardware.memory_bandwidth}
        latency, moved = self.network.all_to_all_parts(target.tier, nbytes, target.gpus)
        return {"latency": latency, "bytes": moved}

    def closed_form(self) -> ClosedForm:
        """That of `transfer` and `memory`."""
        tiers: tuple[Tier, ...] = ("intra", "inter", "rack")
        near = tuple((link.alpha, link.beta) for link in map(self.network.point_to_point, tiers))
        wide = tuple(self.network.all_to_all_parts(tier, 1.0, 2) for tier in tiers)
        return ClosedForm("megatron", near, wide, self.hardware.memory_bandwidth)

    def shape_bytes(self, vertex: Vertex, placement: Placement) -> ShapeBytes:
        """What `memory` is made of, for one vertex and shape."""
        return self.residency.shape_bytes(vertex, placement)

    # Memory ------------------------------------------------------------------------------------------

    def operator_bytes(self, vertex: Vertex, placement: Placement) -> int:
        """Weights and state of the vertex's own layout, and its transient."""
        return self.residency.operator_bytes(vertex, placement)

    def memory(
        self, plan: dict[str, Placement], nodes: Sequence[Node]
    ) -> list[tuple[Allocation, DeviceMemory]]:
        """Peaks by region of the device space."""
        return self.residency.memory(plan, nodes)


@lru_cache(maxsize=256)
def _reductions(m: ModelSpec) -> int:
    """Sums over tensor ranks in a forward pass: two a layer, but routed experts are whole on their rank."""
    shared = m.experts is not None and m.experts.shared_ffn > 0
    return sum(2 if shared or not m.has_experts(layer) else 1 for layer in range(m.layers))


def _mean(values: Real) -> float:
    return values if isinstance(values, float) else math.fsum(values.tolist()) / len(values)
