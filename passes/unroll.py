"""Unroll: the graph over K steps, with the versions each vertex reads and writes (semantics: Unroll)."""

from dataclasses import dataclass
from typing import ClassVar

from ir_schema.base import Record
from ir_schema.problem import Vertex
from ir_schema.stages import Configuration, Unrolled, UnrolledEdge, UnrolledVertex
from passes.analysis import Analysis
from passes.base import Pass


def versions(analysis: Analysis, vertex: Vertex, step: int) -> tuple[dict[str, int], dict[str, int]]:
    """Versions of its model that `vertex` reads and writes at `step`.

    Version 0 is the initial checkpoint; training at step j produces version j + 1; a serving vertex at
    step k reads version max(0, k - tau).
    """
    model = vertex.model
    if model is None:
        return {}, {}
    if model not in analysis.staleness:
        return {model: 0}, {}
    if vertex.role == "training":
        return {model: step}, {model: step + 1}
    return {model: max(0, step - analysis.staleness[model])}, {}


def unroll(configuration: Configuration, steps: int | None = None) -> Unrolled:
    """The unrolled graph over `steps` (default: the problem's K_eval) steps; O(K (|V| + |E|))."""
    analysis = Analysis(configuration.problem)
    graph, options = configuration.problem.graph, configuration.problem.options
    horizon = options.steps if steps is None else steps
    count = len(graph.vertices)

    vertices = []
    for k in range(horizon):
        for i, v in enumerate(graph.vertices):
            reads, writes = versions(analysis, v, k)
            vertices.append(
                UnrolledVertex(
                    id=k * count + i, vertex=v.name, vertex_index=i, step=k, reads=reads, writes=writes
                )
            )

    def at(name: str, step: int) -> int:
        return step * count + analysis.index[name]

    edges = [
        UnrolledEdge(kind="data", source=at(e.source, k), target=at(e.target, k), container=e.container)
        for k in range(horizon)
        for e in graph.data_edges
    ]
    for k in range(horizon):
        for e in graph.publication_edges:
            past = k - analysis.staleness[analysis.weights_of[e.container]] - 1
            if past >= 0:
                source, target = at(e.source, past), at(e.target, k)
                edges.append(
                    UnrolledEdge(kind="publication", source=source, target=target, container=e.container)
                )
    trainers = [analysis.training[m].name for m in graph.trainable]
    edges += [
        UnrolledEdge(kind="order", source=at(t, k - 1), target=at(t, k))
        for k in range(1, horizon)
        for t in trainers
    ]
    if not options.as_printed:
        window = 2 + analysis.max_staleness
        for k in range(horizon):
            edges += [
                UnrolledEdge(kind="overwrite", source=at(u, k), target=at(t, k))
                for u, t in analysis.overwrite_edges
            ]
            if k >= window:
                edges += [
                    UnrolledEdge(kind="run_ahead", source=at(u, k - window), target=at(t, k))
                    for u in analysis.sinks
                    for t in analysis.sources
                ]
    return Unrolled(configuration=configuration, vertices=tuple(vertices), edges=tuple(edges))


@dataclass(frozen=True)
class Unroll(Pass[Configuration, Unrolled]):
    """Configuration to unrolled graph."""

    name: ClassVar[str] = "unroll"
    summary: ClassVar[str] = "repeat the graph over K_eval steps and resolve model versions"
    source: ClassVar[type[Record]] = Configuration
    target: ClassVar[type[Record]] = Unrolled

    def run(self, stage: Configuration) -> Unrolled:
        """See `unroll`."""
        return unroll(stage)
