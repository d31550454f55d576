"""Fast evaluation: the makespan, utilisation and peak of many plans of one problem.

The readable passes are the definition; this module gives the same integers without building stages. Two
facts make it fast. The shape of the lowered graph depends on a plan only through its *pattern*: which
allocations and layouts are equal, which producers and consumers are disjoint, and which generations run
in waves; so graphs are lowered once per pattern and kept as a `Skeleton`. And the time of an operator
depends on its shape, not on where it stands; so times are kept per operator and shape.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from ir_schema.base import Tier
from ir_schema.device import Allocation, joint_tier, size
from ir_schema.problem import Placement, Problem
from ir_schema.stages import Configuration, DeviceMemory, Node, Unrolled
from passes.analysis import Analysis
from passes.cost import Durations, model_for
from passes.cost.base import nanoseconds
from passes.lower import lower, published_bytes
from passes.schedule import is_generation_phase, memory_limit, memory_penalty, raw_score, topological
from passes.search.constraints import extent_of
from passes.search.masks import gpu_mask
from passes.search.skeleton import OP_BIT, Run, Skeleton, critical_path, list_schedule
from passes.structure import Plan
from passes.unroll import unroll


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What the search needs to know of a plan: makespan [ns], Score [tokens/s], Util, peak [bytes]."""

    makespan_ns: int
    score: float
    utilisation: float
    peak_bytes: int
    limit_bytes: float

    @property
    def feasible(self) -> bool:
        """Whether every GPU keeps within M_eff."""
        return self.peak_bytes <= self.limit_bytes

    @property
    def penalty(self) -> float:
        """The factor by which exceeding memory reduces a score."""
        return memory_penalty(self.peak_bytes, self.limit_bytes)


Row = NDArray[np.int64]
Rows = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Batch:
    """Figures of N plans, int64[N] each: makespan [ns], reserved GPU-time [GPU ns], largest peak [bytes]."""

    makespan_ns: NDArray[np.int64]
    busy: NDArray[np.int64]
    peak_bytes: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Place:
    """A placement with numbers that stand for its allocation, for allocation and layout, and for its shape
    (all that the time of an operator depends on)."""

    placement: Placement
    allocation: Allocation
    gpus: int
    mask: int
    sigma: int
    layout: int
    shape: int


class Evaluator:
    """Evaluates plans of one problem whose structural choices are made."""

    def __init__(self, problem: Problem, threads: int = 1) -> None:
        self.problem = problem
        self.threads = threads
        self.analysis = Analysis(problem)
        self.model = model_for(problem)
        self.durations = Durations(self.model, self.analysis)
        self.limit_bytes = memory_limit(problem)
        self.placed = tuple(v.name for v in problem.graph.vertices if v.model is not None)
        self.gpus = size(problem.device_space)
        self._shapes: list[dict[Placement, int]] = [{} for _ in self.placed]
        self._listed: list[list[Placement]] = [[] for _ in self.placed]
        self._number = {v: i for i, v in enumerate(self.placed)}
        self._unrolled: Unrolled = unroll(Configuration(problem=problem, plan={}))
        self._tested = self._tested_pairs()
        models = list(problem.models)
        self._family = [models.index(v.model) for v in problem.graph.vertices if v.model is not None]
        self._fusible = [self._number[v] for v in problem.options.fuse or ()]
        self._waving = [self._number[v.name] for v in problem.graph.vertices if v.role == "generation"]
        self._weights = {c.weights_of: c.payload_bytes for c in problem.graph.containers}
        self._places: dict[Placement, _Place] = {}
        self._ids: dict[object, int] = {}
        self._everywhere = (1 << self.gpus) - 1
        self._tiers: dict[tuple[int, int], Tier] = {}
        self._skeletons: dict[object, Skeleton] = {}
        self._times: dict[object, int] = {}

    def _tested_pairs(self) -> list[tuple[int, int]]:
        """Pairs of vertices whose being disjoint the lowering asks about."""
        graph, serving = self.problem.graph, {v.name for v in self.problem.graph.vertices if v.model}
        serving -= {v.name for v in graph.vertices if v.role == "training"}
        pairs = {
            (e.source, e.target)
            for e in (*graph.data_edges, *self.analysis.implied_reads)
            if {e.source, e.target} <= serving
        }
        pairs |= {
            (u.name, v.name)
            for u in graph.vertices
            for v in graph.vertices
            if u.model is not None and u.model == v.model and u.name < v.name
        }
        return sorted((self._number[u], self._number[v]) for u, v in pairs)

    # Plans as rows of numbers -------------------------------------------------------------------------

    def shape(self, vertex: int, placement: Placement) -> int:
        """The number of the placement's shape (its size, layout, microbatches and waves) among those of
        vertex number `vertex`; a new shape gets the next number.

        Raises ValueError unless the placement is an interval of the flattened device space whose extent
        follows from its size (P7).
        """
        extent = extent_of(self.problem.device_space, placement.allocation.gpus)
        if placement.extent != extent or not placement.allocation.fits(self.problem.device_space):
            raise ValueError(
                f"extent {placement.extent} at {placement.origin} violates P7; expected {extent}"
            )
        known, listed = self._shapes[vertex], self._listed[vertex]
        key = msgspec.structs.replace(placement, origin=(0, 0, 0))
        number = known.setdefault(key, len(listed))
        if number == len(listed):
            listed.append(key)
        return number

    def sizes(self, vertex: int) -> NDArray[np.int64]:
        """Numbers of GPUs by shape number."""
        return np.array([p.allocation.gpus for p in self._listed[vertex]], dtype=np.int64)

    def row(self, plan: Plan) -> Row:
        """The plan in numbers, (V, 2): shape number and first GPU of each placed vertex. Raises ValueError
        as `shape` does."""
        _, nodes, per_node = self.problem.device_space
        found = np.empty((len(self.placed), 2), dtype=np.int64)
        for i, v in enumerate(self.placed):
            rack, node, gpu = plan[v].origin
            found[i] = self.shape(i, plan[v]), (rack * nodes + node) * per_node + gpu
        return found

    def plan(self, row: Row) -> Plan:
        """The plan that `row` stands for."""
        _, nodes, per_node = self.problem.device_space
        plan = {}
        for i, (shape, first) in enumerate(row.tolist()):
            node, gpu = divmod(first, per_node)
            origin = (*divmod(node, nodes), gpu)
            plan[self.placed[i]] = msgspec.structs.replace(self._listed[i][shape], origin=origin)
        return plan

    def evaluate_rows(self, rows: Rows) -> Batch:
        """Figures of the plans `rows`, (N, V, 2)."""
        figures = np.zeros((3, len(rows)), dtype=np.int64)
        for i, row in enumerate(rows):
            plan = self.plan(row)
            places, skeleton, nodes = self._lowered(plan)
            run = self._schedule(plan, places, skeleton, nodes)
            busy = [d * places[p].gpus for d, p in zip(run.duration, skeleton.place, strict=True) if p >= 0]
            figures[:, i] = max(run.finish, default=0), sum(busy), self._peak(plan, nodes)
        return Batch(*figures)

    def keys(self, rows: Rows) -> NDArray[np.uint64]:
        """128 bits for each plan of `rows`, (N, 2): equal for plans that differ only in where they stand."""
        found = np.empty((len(rows), 2), dtype=np.uint64)
        for i, row in enumerate(rows):
            text = repr(self.canonical(self.plan(row))).encode()
            found[i] = np.frombuffer(hashlib.blake2b(text, digest_size=16).digest(), dtype=np.uint64)
        return found

    # Numbers that stand for parts of a plan ----------------------------------------------------------

    def _id(self, value: object) -> int:
        return self._ids.setdefault(value, len(self._ids))

    def _place(self, p: Placement) -> _Place:
        place = self._places.get(p)
        if place is None:
            layout = p.layout
            place = self._places[p] = _Place(
                placement=p,
                allocation=p.allocation,
                gpus=p.allocation.gpus,
                mask=gpu_mask(self.problem.device_space, p.allocation),
                sigma=self._id((p.origin, p.extent)),
                layout=self._id((p.origin, p.extent, layout)),
                shape=self._id((p.extent, layout, p.microbatches, p.waves, "shape")),
            )
        return place

    def _pattern(self, places: Sequence[_Place]) -> object:
        sigmas: dict[int, int] = {}
        layouts: dict[tuple[int, int], int] = {}
        related = zip(self._family, [p.layout for p in places], strict=True)
        return (
            tuple([sigmas.setdefault(p.sigma, len(sigmas)) for p in places]),
            tuple([layouts.setdefault(key, len(layouts)) for key in related]),
            len({places[i].layout for i in self._fusible}) == 1,
            tuple([places[i].mask & places[j].mask != 0 for i, j in self._tested]),
            tuple([places[i].placement.waves > 1 for i in self._waving]),
        )

    def canonical(self, plan: Plan) -> object:
        """Equal for plans of equal evaluation that differ only in where they stand: every vertex's shape,
        the number of GPUs of every set of vertices that meet, and the tier of every two allocations."""
        places = [self._place(plan[v]) for v in self.placed]
        sets: list[tuple[int, int]] = [(0, self._everywhere)]
        for i, p in enumerate(places):
            split = []
            for users, mask in sets:
                inside = mask & p.mask
                if inside:
                    split.append((users | 1 << i, inside))
                if inside != mask:
                    split.append((users, mask & ~p.mask))
            sets = split
        meetings = sorted([(users, mask.bit_count()) for users, mask in sets])
        tiers = [self._joint_tier(a, b) for i, a in enumerate(places) for b in places[:i]]
        return tuple([p.shape for p in places]), tuple(meetings), tuple(tiers)

    def _joint_tier(self, a: _Place, b: _Place) -> Tier:
        key = (a.sigma, b.sigma)
        known = self._tiers.get(key)
        if known is None:
            known = self._tiers[key] = joint_tier(a.allocation, b.allocation)
        return known

    # The graph of a pattern --------------------------------------------------------------------------

    def _skeleton(self, plan: Plan) -> Skeleton:
        configuration = Configuration(problem=self.problem, plan=dict(plan))
        nodes = lower(msgspec.structs.replace(self._unrolled, configuration=configuration)).nodes
        kinds: dict[object, int] = {}
        representatives: list[Node] = []
        kind_of = []
        chains: dict[tuple[str, int], int] = {}
        heads: dict[int, int] = {}
        head = []
        for n in nodes:
            key = (n.kind, n.vertex, n.phase, n.source, n.src_phase, n.container, n.model, n.publication)
            if key not in kinds:
                kinds[key] = len(representatives)
                representatives.append(n)
            kind_of.append(kinds[key])
            chain = chains.setdefault((n.vertex, n.step), len(chains))
            head.append(heads.setdefault(chain, n.id) if is_generation_phase(n, self.analysis) else n.id)
        successors: list[list[int]] = [[] for _ in nodes]
        for n in nodes:
            for p in n.predecessors:
                successors[p].append(n.id)
        hold = not self.problem.options.as_printed
        held = [hold and is_generation_phase(n, self.analysis) for n in nodes]
        static = sorted(nodes, key=lambda n: (n.vertex_index, n.step, n.id))
        ties = [0] * len(nodes)
        for i, n in enumerate(static):
            ties[n.id] = i + (OP_BIT if n.kind == "Op" else 0)
        return Skeleton(
            kinds=tuple(representatives),
            kind_of=kind_of,
            predecessors=[n.predecessors for n in nodes],
            successors=successors,
            backwards=topological(nodes, successors)[::-1],
            is_op=[n.kind == "Op" for n in nodes],
            place=[-1 if n.allocation is None else self._number[_owner(n)] for n in nodes],
            chain=[chains[n.vertex, n.step] if n.kind == "Op" else -1 for n in nodes],
            head=head,
            opens=[h and n.phase == 1 for h, n in zip(held, nodes, strict=True)],
            closes=[h and n.phase == n.phases for h, n in zip(held, nodes, strict=True)],
            ties=ties,
        )

    def _nodes(self, skeleton: Skeleton, plan: Plan) -> list[Node]:
        """The representatives of all kinds, placed as `plan` says."""
        nodes = []
        for n in skeleton.kinds:
            if n.allocation is None:
                nodes.append(n)
                continue
            target = plan[_owner(n)]
            fields: dict[str, object] = {"allocation": target.allocation}
            if n.layout is not None:
                fields["layout"] = target.layout
            if n.source is not None:
                source = plan[n.source]
                fields["source_allocation"] = source.allocation
                if n.source_layout is not None:
                    fields["source_layout"] = source.layout
                if n.publication and n.kind == "Comm":
                    fields["payload_bytes"] = published_bytes(
                        self._weights[n.model], source.allocation, target.allocation
                    )
            nodes.append(msgspec.structs.replace(n, **fields))
        return nodes

    def _kind_times(self, nodes: Sequence[Node], plan: Plan, places: Sequence[_Place]) -> list[int]:
        """Duration [ns] of each kind of node."""
        times = []
        for n in nodes:
            key: object
            if n.members:
                key = (n.vertex, *(places[self._number[m]].shape for m in n.members))
            elif n.kind == "Op":
                number = self._number.get(n.vertex)
                key = (n.vertex, n.phase, n.phases, -1 if number is None else places[number].shape)
            else:
                assert n.source is not None
                source, target = places[self._number[n.source]], places[self._number[_owner(n)]]
                key = (n.kind, n.payload_bytes, n.model, n.publication, source.layout, target.layout)
            known = self._times.get(key)
            if known is None:
                known = self._times[key] = nanoseconds(self.durations.parts(n, plan))
            times.append(known)
        return times

    # Evaluation --------------------------------------------------------------------------------------

    def evaluate(self, plan: Plan) -> Evaluation:
        """Makespan, score, utilisation and peak of a complete plan."""
        places, skeleton, nodes = self._lowered(plan)
        run = self._schedule(plan, places, skeleton, nodes)
        makespan = max(run.finish, default=0)
        busy = sum([d * places[p].gpus for d, p in zip(run.duration, skeleton.place, strict=True) if p >= 0])
        return Evaluation(
            makespan_ns=makespan,
            score=raw_score(self.problem, makespan),
            utilisation=busy / (self.gpus * makespan) if makespan else 0.0,
            peak_bytes=self._peak(plan, nodes),
            limit_bytes=self.limit_bytes,
        )

    def peak(self, plan: Plan) -> int:
        """Largest peak [bytes] of a complete plan."""
        return self._peak(plan, self._lowered(plan)[2])

    def memory(self, plan: Plan) -> list[tuple[Allocation, DeviceMemory]]:
        """Peaks of a complete plan, by region."""
        return self._memory(plan, self._lowered(plan)[2])

    def run(self, plan: Plan) -> Run:
        """The schedule of a complete plan."""
        return self._schedule(plan, *self._lowered(plan))

    def _peak(self, plan: Plan, nodes: Sequence[Node]) -> int:
        return max([m.peak_bytes for _, m in self._memory(plan, nodes)], default=0)

    def _memory(self, plan: Plan, nodes: Sequence[Node]) -> list[tuple[Allocation, DeviceMemory]]:
        return self.model.memory({v: plan[v] for v in self.placed}, nodes)

    def _lowered(self, plan: Plan) -> tuple[list[_Place], Skeleton, list[Node]]:
        places = [self._place(plan[v]) for v in self.placed]
        pattern = self._pattern(places)
        skeleton = self._skeletons.get(pattern)
        if skeleton is None:
            skeleton = self._skeletons[pattern] = self._skeleton(plan)
        return places, skeleton, self._nodes(skeleton, plan)

    def _schedule(
        self, plan: Plan, places: Sequence[_Place], skeleton: Skeleton, nodes: Sequence[Node]
    ) -> Run:
        times = self._kind_times(nodes, plan, places)
        duration = [times[k] for k in skeleton.kind_of]
        return list_schedule(skeleton, *self._resources(places), duration)

    def _resources(self, places: Sequence[_Place]) -> tuple[list[int], list[list[int]]]:
        """Number of each vertex's allocation among the distinct ones, and which of those overlap which."""
        index: dict[int, int] = {}
        distinct: list[_Place] = []
        groups = []
        for p in places:
            if p.sigma not in index:
                index[p.sigma] = len(distinct)
                distinct.append(p)
            groups.append(index[p.sigma])
        conflicts = [[j for j, b in enumerate(distinct) if a.mask & b.mask] for a in distinct]
        return groups, conflicts

    def _named(self, vertex: int | str, shape: int | Placement) -> tuple[str, Placement]:
        name = vertex if isinstance(vertex, str) else self.placed[vertex]
        return name, shape if isinstance(shape, Placement) else self._listed[self._number[name]][shape]

    def operator_ns(self, vertex: int | str, shape: int | Placement) -> int:
        """Estimated time T_op [ns] of `vertex` alone and whole."""
        vertex, placement = self._named(vertex, shape)
        key = (vertex, "whole", self._place(placement).shape)
        known = self._times.get(key)
        if known is None:
            parts = self.model.operator(self.analysis.vertex[vertex], placement)
            known = self._times[key] = nanoseconds(parts)
        return known

    def least_ns(self, vertex: int | str, shape: int | Placement) -> int:
        """A lower bound [ns] on the time for which one step of `vertex` occupies its GPUs, in any plan."""
        vertex, placement = self._named(vertex, shape)
        options = self.problem.options
        if options.fuse is not None and vertex in options.fuse:
            return 0
        whole = self.operator_ns(vertex, placement)
        phases = len(self.durations.fractions)
        if options.split == "never" or phases < 2 or self.analysis.vertex[vertex].role == "training":
            return whole
        key = (vertex, "phases", self._place(placement).shape)
        known = self._times.get(key)
        if known is None:
            v = self.analysis.vertex[vertex]
            known = sum(nanoseconds(self.model.phase(v, placement, q)) for q in range(1, phases + 1))
            self._times[key] = known
        return min(whole, known)

    def critical_time(self, row: Row) -> NDArray[np.int64]:
        """Time [ns] that each placed vertex, with the transfers made for it, has on the critical path."""
        weights = self.critical_times(self.plan(row))
        return np.array([weights[v] for v in self.placed], dtype=np.int64)

    def critical_times(self, plan: Plan) -> dict[str, int]:
        """`critical_time` of a plan by name."""
        run = self.run(plan)
        weights = dict.fromkeys(self.placed, 0)
        for x in critical_path(run):
            node = run.skeleton.kinds[run.skeleton.kind_of[x]]
            for name in node.members or (node.vertex,):
                if name in weights:
                    weights[name] += run.duration[x]
        return weights


def _owner(node: Node) -> str:
    """The vertex whose allocation `node` reserves."""
    return node.members[0] if node.members else node.vertex
