"""Facts about a compact graph that several passes need, computed once per problem.

"Topological order" is Kahn's order of E*, smallest vertex index first (semantics: Lower): E* is E_data
plus an edge from every serving vertex of a trainable model to that model's training vertex, a fused
pair merged into one vertex. As printed, it is E_data with nothing merged.
"""

import heapq
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from ir_schema.problem import Edge, Graph, Problem, Vertex


def kahn(count: int, edges: Iterable[tuple[int, int]]) -> list[int] | None:
    """Topological order of vertices 0..count-1, smallest index first; None if there is a cycle."""
    successors: list[set[int]] = [set() for _ in range(count)]
    for u, v in edges:
        successors[u].add(v)
    indegree = [0] * count
    for targets in successors:
        for v in targets:
            indegree[v] += 1
    ready = [v for v in range(count) if indegree[v] == 0]
    order: list[int] = []
    while ready:
        u = heapq.heappop(ready)
        order.append(u)
        for v in successors[u]:
            indegree[v] -= 1
            if indegree[v] == 0:
                heapq.heappush(ready, v)
    return order if len(order) == count else None


@dataclass(frozen=True)
class Analysis:
    """Derived facts of one well-formed problem."""

    problem: Problem

    @cached_property
    def graph(self) -> Graph:
        """The compact graph."""
        return self.problem.graph

    @cached_property
    def index(self) -> dict[str, int]:
        """Vertex index by name."""
        return {v.name: i for i, v in enumerate(self.graph.vertices)}

    @cached_property
    def vertex(self) -> dict[str, Vertex]:
        """Vertex by name."""
        return {v.name: v for v in self.graph.vertices}

    @cached_property
    def payload(self) -> dict[str, int]:
        """Whole payload in bytes by container."""
        return {c.name: c.payload_bytes for c in self.graph.containers}

    @cached_property
    def weights_of(self) -> dict[str, str]:
        """Model by weight container."""
        return {c.name: c.weights_of for c in self.graph.containers if c.weights_of is not None}

    @cached_property
    def staleness(self) -> dict[str, int]:
        """tau by trainable model."""
        return {m: self.graph.staleness.get(m, 0) for m in self.graph.trainable}

    @cached_property
    def max_staleness(self) -> int:
        """max tau, 0 without trainable models."""
        return max(self.staleness.values(), default=0)

    @cached_property
    def training(self) -> dict[str, Vertex]:
        """The training vertex of each trainable model."""
        return {v.model: v for v in self.graph.vertices if v.role == "training" and v.model is not None}

    def serving(self, model: str) -> list[Vertex]:
        """Serving (generation and inference) vertices of `model`, by index."""
        return [v for v in self.graph.vertices if v.model == model and v.role != "training"]

    @cached_property
    def overwrite_edges(self) -> list[tuple[str, str]]:
        """Serving vertex -> training vertex of every trainable model: the part of E* beyond E_data."""
        return [
            (v.name, self.training[m].name)
            for m in self.graph.trainable
            if m in self.training
            for v in self.serving(m)
        ]

    @cached_property
    def sources(self) -> list[str]:
        """Vertices without incoming data edge."""
        targets = {e.target for e in self.graph.data_edges}
        return [v.name for v in self.graph.vertices if v.name not in targets]

    @cached_property
    def sinks(self) -> list[str]:
        """Vertices without outgoing data edge."""
        sources = {e.source for e in self.graph.data_edges}
        return [v.name for v in self.graph.vertices if v.name not in sources]

    @cached_property
    def producer(self) -> dict[str, str]:
        """The vertex that writes each container inside a step."""
        return {a: v.name for v in self.graph.vertices for a in v.writes}

    @cached_property
    def implied_reads(self) -> list[Edge]:
        """Containers read without an edge that another vertex produces inside the step, as edges.

        Ordered by reader index, then position in `reads`. Weights of the reader's own model and containers
        the reader writes itself are excepted.
        """
        declared = {(e.target, e.container) for e in self.graph.data_edges}
        edges = []
        for v in self.graph.vertices:
            for a in v.reads:
                if (v.name, a) in declared or a in v.writes or a not in self.producer:
                    continue
                if v.model is not None and self.weights_of.get(a) == v.model:
                    continue
                edges.append(Edge(self.producer[a], v.name, a))
        return edges

    @cached_property
    def reachable(self) -> dict[str, set[str]]:
        """Vertices that follow each vertex inside a step."""
        names = [v.name for v in self.graph.vertices]
        next_of: dict[int, set[int]] = {}
        for u, v in self.precedence():
            next_of.setdefault(u, set()).add(v)
        after: dict[str, set[str]] = {}
        for start, name in enumerate(names):
            seen: set[int] = set()
            stack = [start]
            while stack:
                for v in next_of.get(stack.pop(), ()):
                    if v not in seen:
                        seen.add(v)
                        stack.append(v)
            after[name] = {names[i] for i in seen}
        return after

    def precedence(self, *, merge: tuple[str, str] | None = None) -> list[tuple[int, int]]:
        """Edges of E* (of E_data as printed) by index, the pair `merge` contracted into its smaller index."""
        pairs = [(e.source, e.target) for e in self.graph.data_edges]
        if not self.problem.options.as_printed:
            pairs += self.overwrite_edges
        index = dict(self.index)
        if merge is not None:
            a, b = (index[x] for x in merge)
            index[merge[0]] = index[merge[1]] = min(a, b)
        return [(index[u], index[v]) for u, v in pairs]

    def is_acyclic(self, *, merge: tuple[str, str] | None = None) -> bool:
        """Whether E* is acyclic, optionally with a pair of vertices merged."""
        return kahn(len(self.graph.vertices), self.precedence(merge=merge)) is not None

    def order(self, *, merge: tuple[str, str] | None = None) -> list[int]:
        """Topological order of vertex indices; the larger index of a merged pair stands last and unused."""
        if self.problem.options.as_printed:
            merge = None
        order = kahn(len(self.graph.vertices), self.precedence(merge=merge))
        if order is None:
            raise ValueError("the precedence graph has a cycle; verify the problem first")
        return order
