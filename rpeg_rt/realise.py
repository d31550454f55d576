"""The template bound to workers: who takes part in a node, what it reads, what it leaves behind.

Controller, workers and verifier derive everything they must agree on from this one structure, so that a
command only needs to name a node and a step. Rank of a worker: position of its GPU among the used GPUs in
flattened order.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from ir_schema.device import Allocation, all_devices
from ir_schema.problem import Layout, Placement
from ir_schema.stages import Executable, MicrotaskSchedule, TemplateNode
from rpeg_rt.beginning import FRESH, Beginning
from rpeg_rt.engine.sharding import reverse_stages
from rpeg_rt.precision import ITEM_BYTES, number_type
from rpeg_rt.semantics import Generate, Semantics, understand
from rpeg_rt.template import UnrealisableError, check_template, vertices_of


@dataclass(frozen=True)
class Weights:
    """One place where a model's weights live: master weights (`training`) or a serving layout's copies.

    `lasting`: they stay from step to step; else each version is held from its installation (or the start of
    the run) to its last reader. `reversed`: stage s lies where stage P_p - 1 - s would (the second model of
    a fused training, and what serves in that layout).
    """

    model: str
    allocation: Allocation
    layout: Layout
    training: bool
    copies: int
    lasting: bool = True
    reversed: bool = False


@dataclass(frozen=True)
class Input:
    """A container that a node reads: the rows that template nodes `sources` leave (all of its phases)."""

    container: str
    sources: tuple[int, ...]


@dataclass(frozen=True)
class WeightTransfer:
    """Weights of `version` (an offset to the step) go from one place to another."""

    source: Weights
    target: Weights
    version: int


@dataclass(frozen=True)
class BoundNode:
    """A template node and the workers that take part: sigma of an Op, both ends of a transfer.

    `inputs` are the rows read and `outputs` the containers of which rows are left (transient data; weights
    are apart). A transfer of rows serves the Ops of `consumers`.
    """

    node: TemplateNode
    ranks: tuple[int, ...]
    inputs: tuple[Input, ...] = ()
    outputs: tuple[str, ...] = ()
    consumers: tuple[str, ...] = ()
    transfer: WeightTransfer | None = None

    @property
    def on_host(self) -> bool:
        """Whether the controller carries the node out."""
        return not self.ranks

    @property
    def vertices(self) -> tuple[str, ...]:
        """The vertex of the node, or the two of a composite."""
        return vertices_of(self.node)


class Realisation:
    """An executable bound to workers 0..`world`-1, for a run that begins at `beginning`.

    Raises UnrealisableError or NotUnderstood.
    """

    def __init__(self, executable: Executable, beginning: Beginning = FRESH) -> None:
        self.executable, self.beginning = executable, beginning
        self.problem = executable.problem
        self.plan: dict[str, Placement] = executable.plan
        self.vertices = {v.name: v for v in self.problem.graph.vertices}
        check_template(executable, self.vertices)
        self.semantics: Semantics = understand(self.problem)
        self.from_outside = self.semantics.from_outside(self.problem)
        used = {d for p in self.plan.values() for d in p.allocation.device_names()}
        self.devices = [d for d in all_devices(self.problem.device_space) if d in used]
        self._rank = {d: i for i, d in enumerate(self.devices)}
        self.nodes = {n.id: n for n in executable.template}
        self._phases: dict[str, list[int]] = {}
        for n in executable.template:
            for vertex in vertices_of(n) if n.kind == "Op" else ():
                self._phases.setdefault(vertex, []).append(n.id)
        for ids in self._phases.values():
            ids.sort(key=lambda i: self.nodes[i].phase or 0)
        self.serving = {v: self._weights_of(v) for v in self.vertices if self.vertices[v].model is not None}
        self.bound = {i: self._bind(n) for i, n in self.nodes.items()}
        self.worker_readers = self._count_readers(on_host=False)
        self.host_readers = self._count_readers(on_host=True)

    @property
    def world(self) -> int:
        """Number of workers."""
        return len(self.devices)

    @property
    def generation(self) -> frozenset[str]:
        """Names of the generation vertices."""
        return frozenset(v.name for v in self.vertices.values() if v.role == "generation")

    def ranks(self, allocation: Allocation) -> tuple[int, ...]:
        """Workers of an allocation, ascending."""
        try:
            return tuple(self._rank[d] for d in allocation.device_names())
        except KeyError as exc:
            raise UnrealisableError(f"GPU {exc.args[0]} has no worker: no vertex is placed on it") from exc

    def ranks_of(self, place: Weights) -> tuple[int, ...]:
        """Workers of a place in the order of its layout's positions."""
        ranks = self.ranks(place.allocation)
        return reverse_stages(ranks, place.layout) if place.reversed else ranks

    def destination(self, node: TemplateNode) -> tuple[int, ...]:
        """Workers of sigma of an Op, or of the receiving end of a transfer."""
        return () if node.allocation is None else self.ranks(node.allocation)

    def reservations(self) -> dict[int, frozenset[str]]:
        """R(x) by template node: the devices whose workers take part."""
        return {i: frozenset(self.devices[r] for r in b.ranks) for i, b in self.bound.items()}

    def layouts(self) -> list[tuple[tuple[int, ...], Layout]]:
        """Distinct (ranks, layout) pairs in vertex order: process groups are created in this order."""
        return list(dict.fromkeys((self.ranks_of(w), w.layout) for w in self.places()))

    def room(self, place: Weights) -> int:
        """Bytes that the plan leaves free on every GPU that trains the model of `place`, by the number of
        models that train at once. Only cost model `megatron` says what a GPU holds; 0 under others."""
        prediction, run = self.executable.prediction, self.problem.run
        if prediction.cost_model != "megatron" or not place.training:
            return 0
        wide = 2 if run is not None and run.precision == "float64" else 1
        held = [prediction.devices.get(self.devices[rank]) for rank in self.ranks_of(place)]
        peaks = [d.peak_bytes for d in held if d is not None]
        if len(peaks) < len(held):
            return 0
        at_once = max(len(b.vertices) for b in self.bound.values())
        return max(0, prediction.score.memory_limit_bytes - wide * max(peaks)) // at_once

    def places(self) -> list[Weights]:
        """Distinct places of weights in vertex order."""
        return list(dict.fromkeys(self.serving.values()))

    def version(self, node: TemplateNode, step: int) -> dict[str, int]:
        """The versions that Op `node` must read at `step`; a frozen model has version 0 only."""
        models = (self.vertices[v].model for v in vertices_of(node))
        found = {m: 0 for m in models if m is not None}
        return found | {m: self.beginning.version(m, step + offset) for m, offset in node.reads.items()}

    def transferred(self, transfer: WeightTransfer, step: int) -> int:
        """The version that a transfer of weights carries at `step`."""
        return self.beginning.version(transfer.source.model, step + transfer.version)

    def ring(self, place: Weights, step: int) -> list[int]:
        """The versions that lie between two steps, the next of which is `step`, at a place that serves a
        trained model from step to step."""
        staleness = self.problem.graph.staleness.get(place.model, 0)
        return self.beginning.ring(place.model, staleness, step)

    def first_versions(self, place: Weights) -> list[int]:
        """The versions that lie at a place when the first node starts, ascending."""
        if place.model not in self.problem.graph.trainable:
            return [0]
        if place.training:
            return [self.beginning.step]
        if place.lasting:
            return self.ring(place, self.beginning.step)
        return [] if self.beginning.step else [0]

    def weights_read(self, bound: BoundNode) -> tuple[Weights, ...]:
        """The places whose weights a node uses: an Op's own, a transfer's source."""
        if bound.transfer is not None:
            return (bound.transfer.source,)
        if bound.node.kind != "Op":
            return ()
        return tuple(self.serving[v] for v in bound.vertices if v in self.serving)

    def weight_readers(self, place: Weights, step: int) -> int:
        """How many nodes of `step` use the weights at `place`."""
        return sum(
            1 for b in self.bound.values() if b.node.first_step <= step and place in self.weights_read(b)
        )

    def microtasks(self, bound: BoundNode) -> MicrotaskSchedule | None:
        """The schedule of a composite's microtasks."""
        return self.executable.microtasks[bound.node.vertex] if bound.node.members else None

    def readers(self, node: int, container: str) -> int:
        """How many nodes read `container` of `node`, on workers and on the host."""
        return self.worker_readers[node, container] + self.host_readers[node, container]

    def row_bytes(self, container: str) -> int:
        """Bytes of one sequence's row of a container, as the runtime moves it."""
        width = self.semantics.width(container, self.problem)
        precision = "float32" if self.problem.run is None else self.problem.run.precision
        item = "int32" if self.semantics.meaning[container] == "tokens" else number_type(precision)
        return (1 if width is None else width) * ITEM_BYTES[item]

    # Binding ---------------------------------------------------------------------------------------------

    def _weights_of(self, vertex: str) -> Weights:
        v, p = self.vertices[vertex], self.plan[vertex]
        assert v.model is not None
        graph = self.problem.graph
        tau = graph.staleness.get(v.model, 0)
        trainers = [t.name for t in self.vertices.values() if t.role == "training" and t.model == v.model]
        beside = [
            t for t in trainers if self.plan[t].allocation == p.allocation and self.plan[t].layout == p.layout
        ]
        training = v.role == "training" or (tau == 0 and bool(beside))
        frozen = v.model not in graph.trainable
        copies = 1 if training or frozen else max(1, tau)
        lasting = training or frozen or tau > 0
        backwards = any(self._is_reversed(t) for t in beside)
        return Weights(v.model, p.allocation, p.layout, training, copies, lasting, backwards)

    def _is_reversed(self, trainer: str) -> bool:
        node = self.nodes[self._phases[trainer][0]]
        return trainer in node.members[1:] and self.executable.microtasks[node.vertex].second_model_reversed

    def _bind(self, n: TemplateNode) -> BoundNode:
        ranks = sorted(
            {r for a in (n.allocation, n.source_allocation) if a is not None for r in self.ranks(a)}
        )
        if n.kind == "Op":
            return self._bind_operator(n, tuple(ranks))
        if n.model is not None:
            return BoundNode(n, tuple(ranks), transfer=self._weight_transfer(n))
        if n.container is None or n.source not in self._phases:
            raise UnrealisableError(f"template node {n.id} ({n.kind}) moves neither a container nor weights")
        phases = self._phases[n.source]
        if n.src_phase is not None and not 1 <= n.src_phase <= len(phases):
            raise UnrealisableError(f"template node {n.id} moves phase {n.src_phase} of `{n.source}`")
        sources = tuple(phases) if n.src_phase is None else (phases[n.src_phase - 1],)
        consumers = dict.fromkeys(
            v
            for x in self.nodes.values()
            if x.kind == "Op" and any(e.source == n.id for e in x.edges)
            for v in vertices_of(x)
        )
        return BoundNode(
            n, tuple(ranks), (Input(n.container, sources),), (n.container,), consumers=tuple(consumers)
        )

    def _bind_operator(self, n: TemplateNode, ranks: tuple[int, ...]) -> BoundNode:
        vertices = [self.vertices[v] for v in vertices_of(n)]
        meaning = self.semantics.meaning
        reads = dict.fromkeys(a for v in vertices for a in v.reads)
        here = [a for a in reads if meaning[a] != "weights" and a not in self.from_outside]
        inputs = [Input(a, self._sources(n, a)) for a in here]
        outputs = tuple(a for v in vertices for a in v.writes if meaning[a] != "weights")
        return BoundNode(n, ranks, tuple(inputs), outputs)

    def _sources(self, n: TemplateNode, container: str) -> tuple[int, ...]:
        """The nodes whose rows make up `container` for Op `n`: its Comm, or the producing Ops in place."""
        first = self.nodes[self._phases[vertices_of(n)[0]][0]]
        for x in dict.fromkeys((n.id, first.id)):
            comms = [i for i in self._same_step(x) if self._moves(i, container)]
            if comms:
                return tuple(comms)
        producer = next(
            (v.name for v in self.vertices.values() if container in v.writes and v.role != "training"), None
        )
        phases = self._phases.get(producer or "", [])
        if not phases:
            raise UnrealisableError(f"vertex `{n.vertex}` reads `{container}`, which nothing produces")
        if len(phases) == n.phases > 1 and phases[0] in self._same_step(first.id):
            assert n.phase is not None
            return (phases[n.phase - 1],)
        if phases[-1] not in self._same_step(first.id) and producer != n.vertex:
            raise UnrealisableError(
                f"vertex `{n.vertex}` reads `{container}` of `{producer}`, but the plan neither moves it nor "
                "orders them; plans made with --as-printed are for comparison, not for running"
            )
        return tuple(phases)

    def _same_step(self, node: int) -> Iterator[int]:
        return (e.source for e in self.nodes[node].edges if e.distance == 0)

    def _moves(self, node: int, container: str) -> bool:
        n = self.nodes[node]
        return n.kind == "Comm" and n.model is None and n.container == container

    def _weight_transfer(self, n: TemplateNode) -> WeightTransfer:
        if n.source is None or n.source_step is None or n.vertex not in self.serving:
            raise UnrealisableError(f"template node {n.id} ({n.kind}) moves weights from nowhere")
        source, target = self.serving[n.source], self.serving[n.vertex]
        if self.vertices[n.source].role == "training":
            return WeightTransfer(source, target, n.source_step + 1)
        version = self.nodes[self._phases[n.source][0]].reads.get(source.model)
        if version is None:
            raise UnrealisableError(f"template node {n.id} ({n.kind}) moves weights without versions")
        return WeightTransfer(source, target, version)

    def _count_readers(self, *, on_host: bool) -> dict[tuple[int, str], int]:
        """How many nodes read what a node leaves, by (node, container)."""
        readers: dict[tuple[int, str], int] = {(i, a): 0 for i, b in self.bound.items() for a in b.outputs}
        for b in self.bound.values():
            for x in b.inputs if b.on_host == on_host else ():
                for source in x.sources:
                    if (source, x.container) not in readers:
                        raise UnrealisableError(
                            f"template node {b.node.id} reads `{x.container}` of node {source}, "
                            "which does not leave it"
                        )
                    readers[source, x.container] += 1
        return readers


def layout_name(layout: Layout) -> str:
    """A layout's spelling in traces and messages."""
    name = f"dp{layout.data_parallel}.pp{layout.pipeline_parallel}.tp{layout.tensor_parallel}"
    more = {"cp": layout.context_parallel, "ep": layout.expert_parallel}
    return name + "".join(f".{axis}{degree}" for axis, degree in more.items() if degree > 1)


def given(realisation: Realisation, node: TemplateNode) -> tuple[str, ...]:
    """The containers from outside that Op `node` is started with: prompts in the first phase of a generation,
    pairs wherever they are read."""
    if isinstance(realisation.semantics.tasks.get(node.vertex), Generate) and node.phase != 1:
        return ()
    reads = dict.fromkeys(a for v in vertices_of(node) for a in realisation.vertices[v].reads)
    return tuple(a for a in reads if a in realisation.from_outside)
