"""What kernels are given of a problem: its graph, links and shapes as arrays.

A *vertex* is its index in the graph; a *place* the number of a vertex among those that occupy GPUs, which is
its position in a row. Models are numbered as in the problem, trainable ones also in their own order.
"""

from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ir_schema.problem import Edge
from passes.analysis import Analysis
from passes.cost.base import ClosedForm, nanoseconds
from passes.structure import phase_fractions

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

ROLES = ("generation", "inference", "training")
GENERATION, INFERENCE, TRAINING = range(3)


class Graph(NamedTuple):
    """One structure, unrolled `steps` times, with Q `phases` (0 if nothing is ever split).

    By vertex: `place` (-1 for a host), `role`, `trained` (trainable model or -1), `host_ns` [., 1 + Q] whole
    and by phase. By trainable model: `trainer`, `staleness`, `weights` [bytes]. `pair`: the vertices that
    are fused where they meet in one layout, or -1. `splits`: generations and inferences that read them.
    `moves`: source, target, container and whether implied, of each edge that moves data; `payload`
    [bytes, by phase, whole last]. `follows`: precedence inside a step; `trainers`: what follows itself in
    the next step; `sources` wait for `sinks` `window` steps before. `handovers` [unfused, fused]: model and
    consecutive vertices it is used by. `publications`: source, target, model.
    """

    steps: int
    phases: int
    as_printed: bool
    window: int
    node: int
    rack: int
    place: Ints
    role: Ints
    trained: Ints
    host_ns: Ints
    trainer: Ints
    staleness: Ints
    weights: Ints
    pair: Ints
    splits: Ints
    moves: Ints
    payload: Floats
    follows: Ints
    trainers: Ints
    sources: Ints
    sinks: Ints
    handovers: Ints
    publications: Ints

    def most_nodes(self) -> int:
        """A bound on the nodes of any plan."""
        phases = max(1, self.phases)
        each = (len(self.role) + len(self.moves)) * phases + len(self.publications)
        return self.steps * (each + int(self.handovers.shape[1]))

    def most_edges(self) -> int:
        """A bound on the edges of any plan."""
        phases = max(1, self.phases)
        each = (len(self.role) + 2 * len(self.moves)) * phases + len(self.follows) + len(self.trainers)
        each += len(self.sources) * len(self.sinks) + 2 * int(self.handovers.shape[1])
        return self.steps * (each + len(self.publications) * (3 + len(self.role)))


class Contents(NamedTuple):
    """Who keeps what where: by place the `model`, `role`, and `trainer` (place, -1 for a frozen model) of
    its model, and tau; `after`[a, b]: whether b follows a inside a step; `pair` in places."""

    model: Ints
    role: Ints
    trainer: Ints
    staleness: Ints
    after: Flags
    pair: Ints
    models: int
    node: int
    rack: int
    gpus: int
    megatron: bool


class Links(NamedTuple):
    """Links by tier, [s] and [s/byte], and the formulas that use them: `passes.cost.base.ClosedForm`."""

    alpha: Floats
    beta: Floats
    collective_alpha: Floats
    collective_beta: Floats
    copy_bandwidth: float
    megatron: bool


class Shapes(NamedTuple):
    """What of a shape matters, by place and shape number: `gpus`, `layout` (a number common to all places),
    `waved` (whether in several waves), `alike` (its number among shapes of its layout); `node_ns` as in
    `passes.cost.base.CostModel`; `times` [ns], whole and by phase, `fused` [ns] by shape of the first of the
    pair and `alike` of the second, UNKNOWN where not yet asked for; `weights`, `copies`, `state` and
    `transient` [bytes] as in `passes.cost.base.ShapeBytes`; `digest`, 128 bits of what it is."""

    gpus: Ints
    layout: Ints
    waved: Ints
    alike: Ints
    node_ns: Ints
    times: Ints
    fused: Ints
    weights: Floats
    copies: Floats
    state: Floats
    transient: Floats
    digest: NDArray[np.uint64]


UNKNOWN, WANTED = -1, -2


def links_of(form: ClosedForm) -> Links:
    """The links of a closed form as arrays."""
    (alpha, beta), (wide_alpha, wide_beta) = (
        np.array(pairs).T.copy() for pairs in (form.point_to_point, form.collective)
    )
    return Links(alpha, beta, wide_alpha, wide_beta, form.copy_bandwidth, form.rule == "megatron")


def graph_tables(analysis: Analysis) -> Graph:
    """The graph of the analysed problem."""
    problem, graph, index = analysis.problem, analysis.graph, analysis.index
    options, fractions = problem.options, phase_fractions(analysis)
    count = 0 if options.split == "never" or len(fractions) < 2 else len(fractions)
    fractions = fractions[:count]
    trainable, pair = list(graph.trainable), _fusible(analysis)
    containers = [c.name for c in graph.containers]

    def ends(edges: list[Edge]) -> list[tuple[int, int]]:
        return [(index[e.source], index[e.target]) for e in edges]

    host_ns = np.zeros((len(graph.vertices), 1 + count), dtype=np.int64)
    for name, host in problem.host.items():
        for q, share in enumerate((1.0, *fractions)):
            seconds = problem.workload.sequences * share * host.seconds_per_response / host.workers
            host_ns[index[name], q] = nanoseconds({"host": seconds})
    data = list(graph.data_edges)
    implied = [] if options.as_printed else analysis.implied_reads
    roles = {v.name: v.role for v in graph.vertices}
    feeds = [e for e in data if (roles[e.source], roles[e.target]) == ("generation", "inference")]
    names = {c.weights_of: c.payload_bytes for c in graph.containers}
    return Graph(
        steps=options.steps,
        phases=count,
        as_printed=options.as_printed,
        window=2 + analysis.max_staleness,
        node=problem.device_space[2],
        rack=problem.device_space[1] * problem.device_space[2],
        place=_ints(_places(analysis)),
        role=_ints([ROLES.index(v.role) for v in graph.vertices]),
        trained=_ints([trainable.index(v.model) if v.model in trainable else -1 for v in graph.vertices]),
        host_ns=host_ns,
        trainer=_ints([index[analysis.training[m].name] for m in trainable]),
        staleness=_ints([analysis.staleness[m] for m in trainable]),
        weights=_ints([names.get(m, 0) for m in trainable]),
        pair=_ints([-1, -1] if pair is None else sorted(index[v] for v in pair)),
        splits=_ints(ends(feeds), 2),
        moves=_ints(
            [
                (*ends([e])[0], containers.index(e.container), i >= len(data))
                for i, e in enumerate([*data, *implied])
            ],
            4,
        ),
        payload=np.array(
            [
                [*(analysis.payload[e.container] * f for f in fractions), analysis.payload[e.container]]
                for e in [*data, *implied]
            ],
            dtype=np.float64,
        ).reshape(-1, 1 + count),
        follows=_ints(
            [] if options.as_printed else [(index[u], index[v]) for u, v in analysis.overwrite_edges], 2
        ),
        trainers=_ints([index[analysis.training[m].name] for m in trainable]),
        sources=_ints([] if options.as_printed else [index[v] for v in analysis.sources]),
        sinks=_ints([] if options.as_printed else [index[v] for v in analysis.sinks]),
        handovers=np.stack([_handovers(analysis, None), _handovers(analysis, pair)]),
        publications=_ints(
            [
                (*ends([e])[0], trainable.index(analysis.weights_of[e.container]))
                for e in graph.publication_edges
            ],
            3,
        ),
    )


def contents_tables(analysis: Analysis, *, megatron: bool) -> Contents:
    """Who keeps what, for `passes.fast.regions`."""
    problem, placed = analysis.problem, [v for v in analysis.graph.vertices if v.model is not None]
    place = {v.name: i for i, v in enumerate(placed)}
    trainer = {m: place[v.name] for m, v in analysis.training.items()}
    after = np.array(
        [[v.name in analysis.reachable[u.name] for v in placed] for u in placed], dtype=np.bool_
    ).reshape(len(placed), len(placed))
    pair, (racks, nodes, per_node) = _fusible(analysis), problem.device_space
    models = list(problem.models)
    return Contents(
        model=_ints([models.index(v.model or "") for v in placed]),
        role=_ints([ROLES.index(v.role) for v in placed]),
        trainer=_ints([trainer[v.model or ""] if v.model in analysis.staleness else -1 for v in placed]),
        staleness=_ints([analysis.staleness.get(v.model or "", 0) for v in placed]),
        after=after,
        pair=_ints([-1, -1] if pair is None else sorted(place[v] for v in pair)),
        models=len(models),
        node=per_node,
        rack=nodes * per_node,
        gpus=racks * nodes * per_node,
        megatron=megatron,
    )


def _places(analysis: Analysis) -> list[int]:
    models = [v.model for v in analysis.graph.vertices]
    return [-1 if m is None else i - models[:i].count(None) for i, m in enumerate(models)]


def _fusible(analysis: Analysis) -> tuple[str, str] | None:
    """The pair that is fused wherever it has one allocation and layout."""
    pair = analysis.problem.options.fuse
    if pair is None:
        return None
    a, b = (analysis.vertex[name] for name in pair)
    if a.role != "training" or b.role != "training" or a.model == b.model:
        return None
    return pair if analysis.is_acyclic(merge=pair) else None


def _handovers(analysis: Analysis, pair: tuple[str, str] | None) -> Ints:
    """Model, and two of its vertices that come one after the other, [., 3]: as printed of all vertices of
    every trainable model, otherwise of the serving vertices of the synchronous ones."""
    graph, printed = analysis.graph, analysis.problem.options.as_printed
    order = [graph.vertices[i] for i in analysis.order(merge=pair)]
    found = []
    for number, model in enumerate(graph.trainable):
        if not printed and analysis.staleness[model] > 0:
            continue
        chain = [v for v in order if v.model == model and (printed or v.role != "training")]
        found += [(number, analysis.index[u.name], analysis.index[v.name]) for u, v in pairwise(chain)]
    return _ints(found, 3)


def _ints(values: object, columns: int | None = None) -> Ints:
    array = np.array(values, dtype=np.int64)
    return array if columns is None else array.reshape(-1, columns)
