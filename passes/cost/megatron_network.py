"""Where the communication groups of a layout lie on the machine, and how fast they are.

Ranks are nested: tensor index fastest, then context, pipeline stage and replica, over the allocation in
flattened order (semantics: P6). A hardware file's inter-node all-reduce figures are those of whole nodes,
all network cards together; a group with fewer members per node shares the cards with its siblings, which
run at the same time. Point-to-point figures are those of one GPU, and bound an all-to-all.
"""

import msgspec

from ir_schema.base import TIERS, Tier
from ir_schema.device import DeviceSpace
from ir_schema.hardware import AlphaBeta, Hardware, Tiers
from ir_schema.problem import Layout
from passes.cost.collectives import all_gather, all_reduce, point_to_point, reduce_scatter


def among_computing(hardware: Hardware) -> Hardware:
    """`hardware` with the latencies that messages have among workers that compute."""
    extra = hardware.wakeup_seconds
    if not extra:
        return hardware

    def later(tiers: Tiers) -> Tiers:
        links = {t: tiers.at(t) for t in TIERS}
        return Tiers(**{t: AlphaBeta(alpha=x.alpha + extra, beta=x.beta) for t, x in links.items()})

    fields = ("collective", "point_to_point", "all_gather", "reduce_scatter")
    given = {f: getattr(hardware, f) for f in fields}
    return msgspec.structs.replace(hardware, **{f: later(t) for f, t in given.items() if t is not None})


class Network:
    """Communication on one machine."""

    def __init__(self, hardware: Hardware, space: DeviceSpace) -> None:
        self.hardware = hardware
        self.node = space[2]
        self.rack = space[1] * space[2]

    def tier(self, span: int) -> Tier:
        """Tier of `span` consecutive GPUs that start at a node's (or a rack's) first."""
        if span <= self.node:
            return "intra"
        return "inter" if span <= self.rack else "rack"

    def shared(self, tiers: Tiers, tier: Tier, per_node: float) -> AlphaBeta:
        """Collective parameters of a group with `per_node` members in each node it touches."""
        link = tiers.at(tier)
        if tier == "intra":
            return link
        beta = max(tiers.intra.beta, link.beta * self.node / max(1.0, min(per_node, self.node)))
        return AlphaBeta(alpha=link.alpha, beta=beta)

    def tensor_all_reduce(self, layout: Layout, nbytes: float) -> float:
        """All-reduce over a tensor group."""
        p = layout.tensor_parallel
        return all_reduce(self.shared(self.hardware.collective, self.tier(p), p), nbytes, p)

    def tensor_all_gather(self, layout: Layout, nbytes: float) -> float:
        """All-gather over a tensor group, `nbytes` when gathered."""
        p = layout.tensor_parallel
        return all_gather(self.shared(self._gather, self.tier(p), p), nbytes, p)

    def pipeline_step(self, layout: Layout, nbytes: float, *, divided: bool = False) -> float:
        """Mean time of one stage-to-stage transfer; 0 without a pipeline. Where it leaves the node and is
        `divided`, every tensor rank sends its part of the bytes and the receivers gather them."""
        stages, ranks = layout.pipeline_parallel, layout.tensor_parallel * layout.context_parallel
        if stages == 1:
            return 0.0
        inter = max(0, -(-stages * ranks // self.node) - 1) if ranks <= self.node else stages - 1
        links = self.hardware.point_to_point
        far = links.at(self.tier(stages * ranks))
        between = point_to_point(far, nbytes)
        if divided and layout.tensor_parallel > 1:
            part = point_to_point(far, nbytes / layout.tensor_parallel)
            between = part + self.tensor_all_gather(layout, nbytes)
        near = point_to_point(links.intra, nbytes)
        return ((stages - 1 - inter) * near + inter * between) / (stages - 1)

    def ring(self, layout: Layout) -> AlphaBeta:
        """The link over which a step of a context-parallel ring goes."""
        return self.point_to_point(self.tier(layout.tensor_parallel * layout.context_parallel))

    def gradient_exchange(
        self, layout: Layout, gradients: float, weights: float, participants: int, tensor_members: float = 1.0
    ) -> float:
        """Reduce-scatter of `gradients` bytes and all-gather of `weights` bytes over `participants` replicas
        of a shard, `tensor_members` of which belong to one tensor group."""
        replica = layout.tensor_parallel * layout.context_parallel * layout.pipeline_parallel
        per_node = layout.context_parallel * max(1.0, self.node / replica) * tensor_members
        tier = self.tier(layout.gpus if layout.data_parallel > 1 else layout.gpus // layout.pipeline_parallel)
        scatter, gather = (self.shared(t, tier, per_node) for t in (self._scatter, self._gather))
        return reduce_scatter(scatter, gradients, participants) + all_gather(gather, weights, participants)

    def embedding_exchange(self, layout: Layout, nbytes: float) -> float:
        """All-reduce of a tied embedding's gradient between the first and the last stage."""
        replica = layout.tensor_parallel * layout.context_parallel * layout.pipeline_parallel
        return all_reduce(self.shared(self.hardware.collective, self.tier(replica), 1.0), nbytes, 2)

    def expert_all_to_all(self, layout: Layout, nbytes: float) -> float:
        """All-to-all over an expert group: consecutive ranks of the (data, context, tensor) plane."""
        plane, p = layout.tensor_parallel * layout.context_parallel, layout.expert_parallel
        span = p if p <= plane else p * layout.pipeline_parallel
        return self.all_to_all(self.tier(span), nbytes, p)

    def all_to_all(self, tier: Tier, nbytes: float, participants: int) -> float:
        """(p-1) alpha + M beta, beta no better than one GPU's own link."""
        if participants == 1:
            return 0.0
        latency, per_byte = self.all_to_all_parts(tier, nbytes, participants)
        return latency + per_byte

    def all_to_all_parts(self, tier: Tier, nbytes: float, participants: int) -> tuple[float, float]:
        """The two terms of an all-to-all [s]: latency and bytes."""
        collective, single = self.hardware.collective.at(tier), self.hardware.point_to_point.at(tier)
        return (participants - 1) * collective.alpha, nbytes * max(collective.beta, single.beta)

    def point_to_point(self, tier: Tier) -> AlphaBeta:
        """Point-to-point parameters at `tier`."""
        return self.hardware.point_to_point.at(tier)

    @property
    def _gather(self) -> Tiers:
        return self.hardware.all_gather or self.hardware.collective

    @property
    def _scatter(self) -> Tiers:
        return self.hardware.reduce_scatter or self.hardware.collective
