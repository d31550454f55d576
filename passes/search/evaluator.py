"""Evaluation: the makespan, utilisation and peak of many plans of one problem.

The readable passes are the definition. Plans are held as rows of numbers and evaluated by `passes.fast`,
which gives the same integers; a cost model without a closed form is asked through the passes themselves.
"""

from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from ir_schema.device import Allocation, size
from ir_schema.problem import Placement, Problem
from ir_schema.stages import Configuration, DeviceMemory, Node
from passes.analysis import Analysis
from passes.cost import Durations, model_for
from passes.cost.base import CostModel, nanoseconds
from passes.evaluate import evaluate
from passes.fast.engine import Engine
from passes.lower import lower
from passes.schedule import memory_limit, memory_penalty, raw_score
from passes.search.constraints import extent_of
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


class Evaluator:
    """Evaluates plans of one problem whose structural choices are made.

    A plan is a *row*, int64 (V, 2): for each vertex of `placed` the number of its shape and its first GPU
    in the flattened device space. Batches are split over `threads`, whose number changes no figure. `model`
    is the problem's cost model, if there is one already.
    """

    def __init__(self, problem: Problem, threads: int = 1, model: CostModel | None = None) -> None:
        self.problem = problem
        self.analysis = Analysis(problem)
        self.model = model or model_for(problem)
        self.limit_bytes = memory_limit(problem)
        self.placed = tuple(v.name for v in problem.graph.vertices if v.model is not None)
        self.gpus = size(problem.device_space)
        self._durations = Durations(self.model, self.analysis)
        self.engine = Engine(self.analysis, self.model, self._operator_time, self._pair_time, threads)
        self._numbers: list[dict[Placement, int]] = [{} for _ in self.placed]

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
        key = msgspec.structs.replace(placement, origin=(0, 0, 0))
        number = self._numbers[vertex].get(key)
        if number is None:
            number = self._numbers[vertex][key] = self.engine.add(vertex, key)
        return number

    def sizes(self, vertex: int) -> NDArray[np.int64]:
        """Numbers of GPUs by shape number."""
        return np.array([p.allocation.gpus for p in self.engine.placements[vertex]], dtype=np.int64)

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
            plan[self.placed[i]] = msgspec.structs.replace(self.engine.placements[i][shape], origin=origin)
        return plan

    def keys(self, rows: Rows) -> NDArray[np.uint64]:
        """128 bits for each plan of `rows`, (N, 2): equal for plans that differ only in where they stand.

        On a homogeneous machine time and memory depend on every vertex's shape, on how many GPUs each set
        of vertices shares, and on the tier that each two allocations span.
        """
        return self.engine.keys(rows)

    # Evaluation --------------------------------------------------------------------------------------

    def evaluate_rows(self, rows: Rows) -> Batch:
        """Figures of the plans `rows`, (N, V, 2)."""
        if self.engine.closed:
            figures = self.engine.figures(rows)
        else:
            figures = np.array([self._asked(row) for row in rows], dtype=np.int64).reshape(-1, 3)
        return Batch(*np.ascontiguousarray(figures.T))

    def _asked(self, row: Row) -> tuple[int, int, int]:
        found = evaluate(Configuration(problem=self.problem, plan=self.plan(row)))
        busy = sum(n.time_ns * n.allocation.gpus for n in found.nodes if n.allocation is not None)
        return found.makespan_ns, busy, found.max_peak_bytes

    def evaluate(self, plan: Plan) -> Evaluation:
        """Makespan, score, utilisation and peak of a complete plan. Raises ValueError as `shape` does."""
        batch = self.evaluate_rows(self.row(plan)[None])
        makespan, busy = int(batch.makespan_ns[0]), int(batch.busy[0])
        return Evaluation(
            makespan_ns=makespan,
            score=raw_score(self.problem, makespan),
            utilisation=busy / (self.gpus * makespan) if makespan else 0.0,
            peak_bytes=int(batch.peak_bytes[0]),
            limit_bytes=self.limit_bytes,
        )

    def peak(self, plan: Plan) -> int:
        """Largest peak [bytes] of a complete plan."""
        return self.evaluate(plan).peak_bytes

    def memory(self, plan: Plan) -> list[tuple[Allocation, DeviceMemory]]:
        """Peaks of a complete plan, by region."""
        nodes = lower(unroll(Configuration(problem=self.problem, plan=dict(plan)))).nodes
        return self.model.memory({v: plan[v] for v in self.placed}, nodes)

    def critical_time(self, row: Row) -> NDArray[np.int64]:
        """Time [ns] that each placed vertex, with the transfers made for it, has on the critical path."""
        if self.engine.closed:
            return self.engine.critical_time(row)
        weights = dict.fromkeys(self.placed, 0)
        found = evaluate(Configuration(problem=self.problem, plan=self.plan(row)))
        for node in (found.nodes[x] for x in found.critical_path):
            for name in node.members or (node.vertex,):
                if name in weights:
                    weights[name] += node.time_ns
        return np.array(list(weights.values()), dtype=np.int64)

    # Times of operators ------------------------------------------------------------------------------

    def operator_ns(self, vertex: int, shape: int) -> int:
        """Estimated time T_op [ns] of vertex number `vertex` in a shape, alone and whole."""
        return self.engine.operator_ns(vertex, shape, 0)

    def least_ns(self, vertex: int, shape: int) -> int:
        """A lower bound [ns] on the time for which one step of `vertex` occupies its GPUs, in any plan."""
        name, options = self.placed[vertex], self.problem.options
        if options.fuse is not None and name in options.fuse:
            return 0
        whole, phases = self.operator_ns(vertex, shape), self.engine.graph.phases
        if not phases or self.analysis.vertex[name].role == "training":
            return whole
        return min(whole, sum(self.engine.operator_ns(vertex, shape, q) for q in range(1, phases + 1)))

    def _operator_time(self, vertex: int, placement: Placement, phase: int) -> int:
        operator = self.analysis.vertex[self.placed[vertex]]
        if phase:
            return nanoseconds(self.model.phase(operator, placement, phase))
        return nanoseconds(self.model.operator(operator, placement))

    def _pair_time(self, first: Placement, second: Placement) -> int:
        assert self.problem.options.fuse is not None, "only a pair is fused"
        a, b = sorted(self.problem.options.fuse, key=lambda name: self.analysis.index[name])
        composite = Node(id=0, kind="Op", vertex=f"{a}+{b}", vertex_index=0, step=0, members=(a, b))
        return nanoseconds(self._durations.parts(composite, {a: first, b: second}))
