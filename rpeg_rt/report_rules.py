"""What the reports in a trace must say: layouts, versions, rows, bytes and phases."""

from collections import deque
from itertools import zip_longest

from ir_schema.stages import Microtask
from ir_schema.trace import Evaluation, Part
from rpeg_rt.dispatch import Instance
from rpeg_rt.engine.microtasks import planned_microtasks
from rpeg_rt.engine.routing import route
from rpeg_rt.engine.sharding import in_lockstep, position_of
from rpeg_rt.findings import Rules, Verdict
from rpeg_rt.logistics import Logistics
from rpeg_rt.precision import ITEM_BYTES, weight_type
from rpeg_rt.realise import BoundNode, Realisation, Weights, WeightTransfer, layout_name
from rpeg_rt.rows import (
    MissingRowsError,
    Ranges,
    block,
    count,
    difference,
    minibatch_rows,
    phase_count,
    replica_ranks,
    union,
)
from rpeg_rt.semantics import Generate, Score, Train, Verify

Traffic = dict[int, dict[int, int]]
"""Bytes by sender and receiver."""


class ReportRules(Rules):
    """Checks each completion's reports against the plan and against what earlier ones left where."""

    def __init__(self, realisation: Realisation, verdict: Verdict, precision: str) -> None:
        super().__init__(realisation, verdict)
        self.precision = precision
        self.workload = realisation.problem.workload
        self.logistics = Logistics(realisation)
        self.versions = {
            w: deque(realisation.first_versions(w), maxlen=w.copies) for w in realisation.places()
        }
        self.phases: dict[tuple[str, int, int], Ranges] = {}

    def check(self, x: Instance, parts: dict[int, Part]) -> None:
        """All reports of `x`, by worker (-1: the host)."""
        bound = self.realisation.bound[x.node]
        self._versions(x, bound, {r: p for r, p in parts.items() if r >= 0})
        self._microtasks(x, bound, parts)
        self._rows_and_bytes(x, bound, parts)

    def evaluation(self, e: Evaluation) -> None:
        """A held-out evaluation used the newest weights of the policy, on its workers."""
        name = f"held-out evaluation at {e.start_ns} ns"
        task = self.realisation.semantics.tasks.get(e.vertex)
        if not isinstance(task, Train) or not task.policy:
            self.violated("plan", f"{name}: `{e.vertex}` trains no policy")
            return
        place = self.realisation.serving[e.vertex]
        newest = self.versions[place][-1]
        ranks = self.realisation.ranks(place.allocation)
        if any(r not in ranks or v != newest for r, v in e.versions.items()):
            self.violated(
                "version",
                f"{name} used versions {e.versions} of `{place.model}`, planned: {newest} on {ranks}",
            )

    # Versions ----------------------------------------------------------------------------------------------

    def _versions(self, x: Instance, bound: BoundNode, parts: dict[int, Part]) -> None:
        """Layouts, the versions that every worker read and wrote, and that they were where they were read."""
        node = bound.node
        reads: dict[str, int] = {}
        writes: dict[str, int] = {}
        layout, source, target = "", bound.ranks, bound.ranks
        if bound.transfer is not None:
            source, target = self._weight_ends(bound.transfer)
            version = self.realisation.transferred(bound.transfer, x.step)
            reads = writes = {bound.transfer.source.model: version}
            self._held(x, bound.transfer.source, version)
            self._install(bound.transfer.target, version)
        elif node.kind == "Op" and not bound.on_host:
            reads = self.realisation.version(node, x.step)
            layout = layout_name(self.realisation.plan[bound.vertices[0]].layout)
            for vertex in bound.vertices:
                place = self.realisation.serving[vertex]
                self._held(x, place, reads[place.model])
                if isinstance(self.realisation.semantics.tasks[vertex], Train):
                    writes = writes | {place.model: x.step + 1}
                    self._install(place, x.step + 1)
                else:
                    self._staleness(x, place, parts)
        for rank, part in parts.items():
            planned = (layout, reads if rank in source else {}, writes if rank in target else {})
            if (part.layout, part.reads, part.writes) != planned:
                self.violated(
                    "version" if part.layout == layout else "layout",
                    f"{self.name(x)} on worker {rank} used layout {part.layout or 'none'}, read "
                    f"{part.reads}, wrote {part.writes}; planned: {planned}",
                )

    def _staleness(self, x: Instance, place: Weights, parts: dict[int, Part]) -> None:
        graph = self.realisation.problem.graph
        bound = graph.staleness.get(place.model, 0)
        for rank, part in parts.items():
            version = part.reads.get(place.model, 0)
            if place.model in graph.trainable and x.step - version > bound:
                self.violated(
                    "staleness",
                    f"{self.name(x)} on worker {rank} read version {version} of `{place.model}`, more than "
                    f"{bound} behind",
                )

    def _held(self, x: Instance, place: Weights, version: int) -> None:
        if version not in self.versions[place]:
            self.violated(
                "version",
                f"{self.name(x)} needs version {version} of `{place.model}`, held were "
                f"{list(self.versions[place])}",
            )

    def _install(self, place: Weights, version: int) -> None:
        if version not in self.versions[place]:
            self.versions[place].append(version)

    def _weight_ends(self, t: WeightTransfer) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return self.realisation.ranks_of(t.source), self.realisation.ranks_of(t.target)

    # Fused training ----------------------------------------------------------------------------------------

    def _microtasks(self, x: Instance, bound: BoundNode, parts: dict[int, Part]) -> None:
        """Every worker of a composite followed the plan's schedule, in its order, at every optimizer step."""
        schedule = self.realisation.microtasks(bound)
        if schedule is None:
            for rank, part in parts.items():
                if part.fused is not None:
                    self.violated("microtasks", f"{self.name(x)} on worker {rank} is not fused in the plan")
            return
        layout = self.realisation.plan[bound.vertices[0]].layout
        for rank, part in parts.items():
            if part.fused is None or part.fused.schedule != schedule.hash:
                followed = "none" if part.fused is None else part.fused.schedule
                self.violated(
                    "microtasks",
                    f"{self.name(x)} on worker {rank} followed schedule {followed}, planned: {schedule.hash}",
                )
                continue
            position = position_of(bound.ranks.index(rank), layout)
            rows = minibatch_rows(self.workload, layout.data_parallel, position.data)
            lockstep = in_lockstep(layout)
            planned = tuple(
                planned_microtasks(schedule, position.pipeline, n, lockstep=lockstep) for n in rows
            )
            if part.fused.executed != planned:
                self.violated(
                    "microtasks",
                    f"{self.name(x)} on worker {rank} ran microtasks from {part.start_ns} to "
                    f"{part.finish_ns} ns in another order than planned: "
                    f"{_difference(part.fused.executed, planned)}",
                )

    # Rows and bytes ----------------------------------------------------------------------------------------

    def _rows_and_bytes(self, x: Instance, bound: BoundNode, parts: dict[int, Part]) -> None:
        try:
            traffic = self._weight_traffic(bound.transfer) if bound.transfer else self._row_traffic(x, bound)
            rows = self._planned_rows(x, bound, parts)
            self.logistics.release(x)
            if not bound.on_host:
                self.logistics.record(x, {rank: part.rows for rank, part in parts.items()})
        except (MissingRowsError, KeyError) as exc:
            self.violated("rows", f"{self.name(x)}: {exc}")
            return
        for rank, part in parts.items():
            sent = traffic.get(rank, {})
            received = {source: to[rank] for source, to in traffic.items() if rank in to}
            if (part.sent, part.received) != (sent, received):
                self.violated(
                    "bytes",
                    f"{self.name(x)} on worker {rank} sent {part.sent} and received {part.received} bytes by "
                    f"worker, planned: {sent} and {received}",
                )
            if part.rows != rows[rank]:
                self.violated(
                    "rows", f"{self.name(x)} on worker {rank} left {part.rows}, planned: {rows[rank]}"
                )
            self.verdict.bytes_moved += sum(part.sent.values())

    def _row_traffic(self, x: Instance, bound: BoundNode) -> Traffic:
        traffic: Traffic = {}
        if bound.on_host:
            return traffic
        for container, messages in self.logistics.messages(x).items():
            size = self.realisation.row_bytes(container)
            for m in messages:
                if m.source != m.destination:
                    to = traffic.setdefault(m.source, {})
                    to[m.destination] = to.get(m.destination, 0) + count(m.rows) * size
        return traffic

    def _weight_traffic(self, transfer: WeightTransfer) -> Traffic:
        spec = self.realisation.problem.models[transfer.source.model]
        size = ITEM_BYTES[weight_type(spec, self.precision)]
        source, target = self._weight_ends(transfer)
        traffic: Traffic = {}
        for f in route(spec, (source, transfer.source.layout), (target, transfer.target.layout)):
            if f.source != f.destination:
                to = traffic.setdefault(f.source, {})
                to[f.destination] = to.get(f.destination, 0) + f.elements * size
        return traffic

    def _planned_rows(
        self, x: Instance, bound: BoundNode, parts: dict[int, Part]
    ) -> dict[int, dict[str, Ranges]]:
        """The rows that each worker must hold afterwards."""
        node = bound.node
        if node.kind != "Op":
            moved = {} if bound.transfer else {a: self.logistics.needs(x, a) for a in bound.outputs}
            ends = self.realisation.destination(node)
            return {r: {a: n[r] for a, n in moved.items() if r in ends} for r in parts}
        task = self.realisation.semantics.tasks[bound.vertices[0]]
        if isinstance(task, Generate):
            return self._planned_phase(x, bound, task, parts)
        if isinstance(task, Verify):
            return {r: {task.output: self.logistics.rows(x)} for r in parts}
        if isinstance(task, Score):
            needs = self.logistics.needs(x, task.tokens)
            return {r: {task.output: needs[r]} for r in parts}
        return {r: {} for r in parts}

    def _planned_phase(
        self, x: Instance, bound: BoundNode, task: Generate, parts: dict[int, Part]
    ) -> dict[int, dict[str, Ranges]]:
        """A generation phase leaves any sequences of the replica's block that have not left before, as many
        as the plan's fractions say, the same on all workers of the replica."""
        node, w = bound.node, self.workload
        layout = self.realisation.plan[node.vertex].layout
        assert node.phase is not None
        planned: dict[int, dict[str, Ranges]] = {}
        for d in range(layout.data_parallel):
            mine = block(w, layout.data_parallel, d)
            before = self.phases.pop((node.vertex, x.step, d), ())
            ranks = replica_ranks(bound.ranks, layout, d)
            left = parts[ranks[0]].rows.get(task.tokens, ())
            done = count(mine)
            if node.phase < node.phases:
                done = phase_count(w, layout.data_parallel, node.phase)
                self.phases[node.vertex, x.step, d] = union(before, left)
            if count(left) != done - count(before) or difference(left, difference(mine, before)):
                self.violated(
                    "phase",
                    f"{self.name(x)}, replica {d}: sequences {left} left, planned: {done - count(before)} of "
                    f"{difference(mine, before)}",
                )
            planned |= {r: {task.tokens: left, task.logprobs: left} for r in ranks}
        return planned


def _difference(
    executed: tuple[tuple[Microtask, ...], ...], planned: tuple[tuple[Microtask, ...], ...]
) -> str:
    """The first place where two orders of microtasks differ."""
    for step, (mine, theirs) in enumerate(zip_longest(executed, planned, fillvalue=())):
        for i, (a, b) in enumerate(zip_longest(mine, theirs)):
            if a != b:
                return f"microtask {i} of optimizer step {step} was {_spell(a)}, planned: {_spell(b)}"
    return "an optimizer step too many or too few"


def _spell(t: Microtask | None) -> str:
    return "none" if t is None else f"{t.direction} of model {t.model}, microbatch {t.microbatch}"
