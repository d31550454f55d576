"""Lower: the unrolled graph under a plan as Op, Comm and Reshard nodes (semantics: Lower).

Nodes are inserted in a fixed order, which is also their id: Ops by (step, vertex, phase); data
transfers by (step, edge, phase); reshards between serving vertices by (model, pair, step);
installations of published weights by (consumer's step, declared edge). The result is a DAG for every
legal plan of every accepted graph (except as printed, where only the presets promise it).
"""

from dataclasses import dataclass, field
from itertools import pairwise
from typing import ClassVar

from ir_schema.base import NodeKind, Record, Role
from ir_schema.device import Allocation
from ir_schema.problem import Edge, Layout, Vertex
from ir_schema.stages import Configuration, Lowered, Node, Unrolled
from passes.analysis import Analysis
from passes.base import Pass
from passes.structure import allocation, disjoint, fused_pair, phase_fractions, split_vertices


def whole(value: float) -> int | float:
    """`value` as an int where it is one."""
    return int(value) if float(value).is_integer() else value


def published_bytes(weight_bytes: int, source: Allocation, target: Allocation) -> int | float:
    """Payload of weights published to another allocation: N_m s_b (n_max - n_overlap) / n_max."""
    widest = max(source.gpus, target.gpus)
    return whole(weight_bytes * (widest - source.overlap(target)) / widest)


@dataclass
class _Draft:
    """A node under construction: its fields and the ids of its predecessors."""

    fields: dict[str, object]
    predecessors: set[int] = field(default_factory=set)


class _Lowering:
    """One run of the pass. `phases[v, k]` are the Op ids of vertex v at step k, one per phase."""

    def __init__(self, unrolled: Unrolled) -> None:
        self.unrolled = unrolled
        self.configuration: Configuration = unrolled.configuration
        self.plan = self.configuration.plan
        self.analysis = Analysis(self.configuration.problem)
        self.graph = self.analysis.graph
        self.as_printed = self.configuration.problem.options.as_printed
        self.steps = 1 + max((v.step for v in unrolled.vertices), default=-1)
        self.split = split_vertices(self.analysis, self.plan)
        self.pair = fused_pair(self.analysis, self.plan)
        self.fractions = phase_fractions(self.analysis)
        self.index = dict(self.analysis.index)
        if self.pair is not None:
            self.index[self.pair[1]] = self.index[self.pair[0]]
        self.nodes: list[_Draft] = []
        self.phases: dict[tuple[str, int], list[int]] = {}

    def insert(self, kind: NodeKind, vertex: str, step: int, **fields: object) -> int:
        fields |= {
            "kind": kind,
            "vertex": vertex,
            "vertex_index": self.index[vertex.partition("+")[0]],
            "step": step,
        }
        self.nodes.append(_Draft(fields))
        return len(self.nodes) - 1

    def precede(self, source: int, target: int) -> None:
        self.nodes[target].predecessors.add(source)

    def first(self, vertex: str, step: int) -> int:
        return self.phases[vertex, step][0]

    def last(self, vertex: str, step: int) -> int:
        return self.phases[vertex, step][-1]

    def follow(self, source: str, k: int, target: str, step: int) -> None:
        """Plain precedence: last phase of the source before the first phase of the target."""
        u, v = self.last(source, k), self.first(target, step)
        if u != v:
            self.precede(u, v)

    # Stage 1 -------------------------------------------------------------------------------------------

    def operators(self) -> None:
        by_id = {(v.vertex, v.step): v for v in self.unrolled.vertices}
        for u in self.unrolled.vertices:
            members: tuple[str, ...] = ()
            name, reads, writes = u.vertex, u.reads, u.writes
            if self.pair is not None and name in self.pair:
                if name == self.pair[1]:
                    continue
                other = by_id[self.pair[1], u.step]
                members, name = self.pair, "+".join(self.pair)
                reads, writes = reads | other.reads, writes | other.writes
            placement = self.plan.get(u.vertex)
            count = len(self.fractions) if u.vertex in self.split else 1
            ids: list[int] = []
            for q in range(1, count + 1):
                x = self.insert(
                    "Op",
                    name,
                    u.step,
                    phase=q,
                    phases=count,
                    members=members,
                    reads=reads,
                    writes=writes if q == count else {},
                    allocation=None if placement is None else placement.allocation,
                    layout=None if placement is None else placement.layout,
                )
                if ids:
                    self.precede(ids[-1], x)
                ids.append(x)
            for member in members or (u.vertex,):
                self.phases[member, u.step] = ids

    def precedence(self) -> None:
        """Order, overwrite and run-ahead edges: dependences that move no data."""
        vertices = self.unrolled.vertices
        for e in self.unrolled.edges:
            if e.kind in ("order", "overwrite", "run_ahead"):
                u, v = vertices[e.source], vertices[e.target]
                self.follow(u.vertex, u.step, v.vertex, v.step)

    # Stage 2 -------------------------------------------------------------------------------------------

    def data(self) -> None:
        implied = [] if self.as_printed else self.analysis.implied_reads
        merged: dict[tuple[object, ...], int] = {}
        for k in range(self.steps):
            for e in self.graph.data_edges:
                feeds = self.role(e.source) == "generation" and self.role(e.target) == "inference"
                self.transfer(e, k, merged, by_phase=feeds and self.both_split(e))
            for e in implied:
                self.transfer(e, k, merged, by_phase=self.both_split(e))

    def role(self, vertex: str) -> Role:
        return self.analysis.vertex[vertex].role

    def both_split(self, e: Edge) -> bool:
        return {e.source, e.target} <= self.split and disjoint(self.plan, e.source, e.target)

    def transfer(self, e: Edge, k: int, merged: dict[tuple[object, ...], int], *, by_phase: bool) -> None:
        payload = self.analysis.payload[e.container]
        if not by_phase:
            self.move(e, k, None, payload, merged)
            return
        for q, fraction in enumerate(self.fractions):
            self.move(e, k, q, payload * fraction, merged)

    def move(
        self, e: Edge, k: int, phase: int | None, payload: float, merged: dict[tuple[object, ...], int]
    ) -> None:
        """One container (or its part of phase index `phase`): a precedence edge or a Comm."""
        u = self.phases[e.source, k][-1 if phase is None else phase]
        v = self.phases[e.target, k][0 if phase is None else phase]
        source, target = allocation(self.plan, e.source), allocation(self.plan, e.target)
        if source is None or target is None or source == target:
            if u != v:
                self.precede(u, v)
            return
        key = (e.container, k, phase, target)
        comm = None if self.as_printed else merged.get(key)
        if comm is None:
            comm = merged[key] = self.insert(
                "Comm",
                e.target,
                k,
                container=e.container,
                source=e.source,
                source_step=k,
                src_phase=None if phase is None else phase + 1,
                payload_bytes=whole(payload),
                allocation=target,
                source_allocation=source,
                layout=self.plan[e.target].layout,
                source_layout=self.plan[e.source].layout,
            )
            self.precede(u, comm)
        self.precede(comm, v)

    # Stage 3 -------------------------------------------------------------------------------------------

    def serving_pairs(self) -> set[str]:
        """Weights handed from one serving vertex to the next; returns consumers without a Stage 4 edge."""
        fed: set[str] = set()
        order = self.analysis.order(merge=self.pair)
        for model in self.graph.trainable:
            if self.analysis.staleness[model] > 0:
                continue
            trainer = self.plan[self.analysis.training[model].name]
            chain = [v for v in self.in_order(order, model) if v.role != "training"]
            for u, v in pairwise(chain):
                a, b = self.plan[u.name], self.plan[v.name]
                if a.allocation != b.allocation or a.layout == b.layout:
                    continue
                if trainer.allocation == b.allocation and trainer.layout == b.layout:
                    continue
                fed.add(v.name)
                self.reshard_pair(model, u, v)
        return fed

    def serving_pairs_as_printed(self) -> None:
        order = self.analysis.order()
        for model in self.graph.trainable:
            chain = self.in_order(order, model)
            for u, v in pairwise(chain):
                a, b = self.plan[u.name], self.plan[v.name]
                if self.analysis.staleness[model] > 0 and a.allocation.overlap(b.allocation) == 0:
                    continue
                if a.allocation != b.allocation:
                    for k in range(self.steps):
                        self.follow(u.name, k, v.name, k)
                elif a.layout != b.layout:
                    self.reshard_pair(model, u, v)

    def in_order(self, order: list[int], model: str) -> list[Vertex]:
        return [v for v in (self.graph.vertices[i] for i in order) if v.model == model]

    def reshard_pair(self, model: str, u: Vertex, v: Vertex) -> None:
        for k in range(self.steps):
            x = self.insert("Reshard", v.name, k, **self.weights(model, u.name, k, v.name))
            self.precede(self.last(u.name, k), x)
            self.precede(x, self.first(v.name, k))

    def weights(self, model: str, source: str, source_step: int, target: str) -> dict[str, object]:
        """Fields common to the nodes that move the weights of `model`."""
        u, v = self.plan[source], self.plan[target]
        return {
            "model": model,
            "source": source,
            "source_step": source_step,
            "payload_bytes": 0 if u.layout == v.layout else self.weight_bytes(model),
            "allocation": v.allocation,
            "source_allocation": u.allocation,
            "layout": v.layout,
            "source_layout": u.layout,
        }

    def weight_bytes(self, model: str) -> int:
        return next(c.payload_bytes for c in self.graph.containers if c.weights_of == model)

    # Stage 4 -------------------------------------------------------------------------------------------

    def publications(self, fed: set[str]) -> None:
        installed: dict[tuple[str, int, Allocation, Layout], int] = {}
        for k in range(self.steps):
            for e in self.graph.publication_edges:
                model = self.analysis.weights_of[e.container]
                tau = self.analysis.staleness[model]
                if k > tau and e.target not in fed:
                    self.publish(e, model, tau, k, installed)

    def publish(
        self, e: Edge, model: str, tau: int, k: int, installed: dict[tuple[str, int, Allocation, Layout], int]
    ) -> None:
        u, v, version = self.plan[e.source], self.plan[e.target], k - tau
        same_place = u.allocation == v.allocation
        rings = tau > 0 and not self.as_printed
        if same_place and u.layout == v.layout and not rings:
            self.follow(e.source, version - 1, e.target, k)
            return
        key = (model, version, v.allocation, v.layout)
        node = installed.get(key)
        if node is None:
            node = installed[key] = self.install(e, model, version, k, same_place=same_place, rings=rings)
        self.precede(node, self.first(e.target, k))

    def install(self, e: Edge, model: str, version: int, k: int, *, same_place: bool, rings: bool) -> int:
        u, v = self.plan[e.source], self.plan[e.target]
        fields = self.weights(model, e.source, version - 1, e.target) | {"publication": True}
        if not same_place:
            moved = published_bytes(self.weight_bytes(model), u.allocation, v.allocation)
            fields |= {"container": e.container, "payload_bytes": moved}
        kind: NodeKind = "Reshard" if same_place else "Comm"
        node = self.insert(kind, e.target, version if rings else k, **fields)
        self.precede(self.last(e.source, version - 1), node)
        if rings:
            if version >= self.analysis.staleness[model]:
                for reader in self.analysis.serving(model):
                    place = self.plan[reader.name]
                    if place.allocation == v.allocation and place.layout == v.layout:
                        self.precede(self.last(reader.name, version), node)
            self.precede(node, self.first(e.source, version))
        return node

    def run(self) -> Lowered:
        self.operators()
        self.precedence()
        self.data()
        fed: set[str] = set()
        if self.as_printed:
            self.serving_pairs_as_printed()
        else:
            fed = self.serving_pairs()
        self.publications(fed)
        nodes = tuple(
            Node(id=i, predecessors=tuple(sorted(draft.predecessors)), **draft.fields)  # type: ignore[arg-type]
            for i, draft in enumerate(self.nodes)
        )
        return Lowered(configuration=self.configuration, nodes=nodes)


def lower(unrolled: Unrolled) -> Lowered:
    """The executable graph of `unrolled` under its configuration's plan; O(K (|V| + |E|) Q)."""
    return _Lowering(unrolled).run()


@dataclass(frozen=True)
class Lower(Pass[Unrolled, Lowered]):
    """Unrolled graph to executable graph."""

    name: ClassVar[str] = "lower"
    summary: ClassVar[str] = "split, fuse, and make every transfer and installation a node"
    source: ClassVar[type[Record]] = Unrolled
    target: ClassVar[type[Record]] = Lowered

    def run(self, stage: Unrolled) -> Lowered:
        """See `lower`."""
        return lower(stage)
