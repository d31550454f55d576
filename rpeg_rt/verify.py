"""Whether a trace shows the execution of its plan: every rule of `05-runtime`, Verification.

Each rule is checked by its own means from the lines of the trace, and the whole order is replayed through
the dispatcher; a violation names the nodes and times. A run that ended early is held to the same rules as
far as it went.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from rpeg_rt.dispatch import Dispatcher, Instance
from rpeg_rt.engine.routing import route
from rpeg_rt.failure import ExitCode, FileError, VerificationError
from rpeg_rt.load import Plan, load_plan
from rpeg_rt.logistics import Logistics
from rpeg_rt.precision import ITEM_BYTES, weight_type
from rpeg_rt.realise import BoundNode, Realisation, UnrealisableError, Weights, WeightTransfer, layout_name
from rpeg_rt.rows import MissingRowsError, Ranges, block, count, difference, phase_count, replica_ranks, union
from rpeg_rt.semantics import Generate, NotUnderstood, Score, Train, Verify
from rpeg_rt.trace import (
    VERSION,
    BrokenTraceError,
    Complete,
    Dispatch,
    Evaluation,
    Footer,
    Header,
    Line,
    Part,
    read_trace,
)

MOST_VIOLATIONS = 20
Traffic = dict[int, dict[int, int]]


@dataclass
class Verdict:
    """What a trace was found to show: it is faithful if there are no violations.

    `exit_code` is that of the run; `bytes_moved` counts what workers sent to each other.
    """

    plan: str
    nodes: int = 0
    exit_code: int | None = None
    bytes_moved: int = 0
    violations: list[str] = field(default_factory=list)


class _Verifier:
    """State of the check after some lines of the trace."""

    def __init__(self, plan: Plan, realisation: Realisation, header: Header, verdict: Verdict) -> None:
        self.realisation, self.header, self.verdict = realisation, header, verdict
        self.workload = realisation.problem.workload
        self.logistics = Logistics(realisation)
        self.reservations = realisation.reservations()
        self.dispatcher = Dispatcher(
            plan.executable.template, header.steps, self.reservations, realisation.generation
        )
        self.in_order = True
        self.running: dict[Instance, Dispatch] = {}
        self.finished: dict[Instance, int] = {}
        self.reserved: dict[str, Instance] = {}
        self.chains: dict[str, tuple[str, int]] = {}
        self.last_work: dict[int, tuple[int, Instance]] = {}
        self.versions = {w: deque([0], maxlen=w.copies) for w in realisation.places()}
        self.phases: dict[tuple[str, int, int], Ranges] = {}
        self.clock = 0

    def violated(self, rule: str, text: str) -> None:
        self.verdict.violations.append(f"{rule}: {text}")

    def name(self, x: Instance) -> str:
        n = self.realisation.nodes[x.node]
        phase = f" phase {n.phase}" if n.phases > 1 else ""
        return f"{n.kind} `{n.vertex}`{phase} at step {x.step} (node {n.id})"

    def end(self, footer: Footer | None) -> None:
        """All lines have been read."""
        if footer is None:
            self.violated("integrity", "the trace has no footer: it was cut off")
            return
        self.verdict.exit_code = footer.exit_code
        counts = (len(self.finished) + len(self.running), len(self.finished))
        if counts != (footer.dispatched, footer.completed):
            self.violated(
                "integrity",
                f"the trace shows {counts[0]} dispatches and {counts[1]} completions, its footer counts "
                f"{footer.dispatched} and {footer.completed}",
            )
        if footer.exit_code == ExitCode.DONE and len(self.finished) < self.dispatcher.total:
            self.violated(
                "plan",
                f"the run says that it is done after {len(self.finished)} of {self.dispatcher.total} nodes",
            )

    def evaluation(self, e: Evaluation) -> None:
        """A held-out evaluation used the newest weights of the policy, while nothing else ran."""
        name = f"held-out evaluation at {e.start_ns} ns"
        task = self.realisation.semantics.tasks.get(e.vertex)
        if not isinstance(task, Train) or not task.policy:
            self.violated("plan", f"{name}: `{e.vertex}` trains no policy")
            return
        if self.running or not self.clock <= e.start_ns <= e.time_ns:
            self.violated("exclusivity", f"{name} ended at {e.time_ns} ns and was not alone")
        self.clock = max(self.clock, e.time_ns)
        place = self.realisation.serving[e.vertex]
        newest = self.versions[place][-1]
        ranks = self.realisation.ranks(place.allocation)
        if any(r not in ranks or v != newest for r, v in e.versions.items()):
            self.violated(
                "version",
                f"{name} used versions {e.versions} of `{place.model}`, planned: {newest} on {ranks}",
            )

    # Dispatches --------------------------------------------------------------------------------------------

    def dispatch(self, d: Dispatch) -> None:
        x = Instance(d.node, d.step)
        if d.node not in self.realisation.nodes or not self.dispatcher.exists(*x):
            self.violated(
                "plan", f"node {d.node} at step {d.step}, dispatched at {d.time_ns} ns, is not in the plan"
            )
            return
        if x in self.running or x in self.finished:
            self.violated("plan", f"{self.name(x)} was dispatched again at {d.time_ns} ns")
            return
        self._tick(d.time_ns, x)
        node, bound = self.realisation.nodes[x.node], self.realisation.bound[x.node]
        planned = (node.kind, node.vertex, node.phase, bound.ranks)
        if planned != (d.kind, d.vertex, d.phase, d.workers):
            self.violated(
                "binding",
                f"{self.name(x)} ran as {d.kind} {d.vertex} on workers {d.workers}, planned: {planned}",
            )
        for p in self.dispatcher.predecessors(x):
            if p not in self.finished:
                self.violated(
                    "dependence",
                    f"{self.name(x)} started at {d.time_ns} ns, before {self.name(p)} was complete",
                )
        for device in sorted(self.reservations[x.node]):
            if device in self.reserved:
                other = self.name(self.reserved[device])
                self.violated(
                    "exclusivity",
                    f"GPU {device} was given to {self.name(x)} at {d.time_ns} ns, still held by {other}",
                )
            chain = self.chains.get(device)
            if node.kind == "Op" and chain is not None and chain != (node.vertex, x.step):
                self.violated(
                    "generation hold",
                    f"{self.name(x)} started at {d.time_ns} ns on GPU {device} between phases of `{chain[0]}` at step {chain[1]}",
                )
            self.reserved[device] = x
            if node.kind == "Op" and node.phases > 1 and node.vertex in self.realisation.generation:
                self.chains[device] = (node.vertex, x.step)
        self.running[x] = d
        if self.in_order:
            due = self.dispatcher.next()
            if due != x:
                self.in_order = False
                expected = "nothing" if due is None else self.name(due)
                self.violated(
                    "order", f"{self.name(x)} was dispatched at {d.time_ns} ns where {expected} was due"
                )

    def _tick(self, now: int, x: Instance) -> None:
        if now < self.clock:
            self.violated("time", f"{self.name(x)}: {now} ns stands after {self.clock} ns")
        self.clock = max(self.clock, now)

    # Completions -------------------------------------------------------------------------------------------

    def complete(self, c: Complete) -> None:
        x = Instance(c.node, c.step)
        if x not in self.running:
            self.violated(
                "plan",
                f"node {c.node} at step {c.step} completed at {c.time_ns} ns without having been dispatched",
            )
            return
        self._tick(c.time_ns, x)
        if self.in_order and (idle := self.dispatcher.startable()) is not None:
            self.in_order = False
            self.violated(
                "order", f"{self.name(idle)} could start but had not been dispatched by {c.time_ns} ns"
            )
        d = self.running.pop(x)
        bound = self.realisation.bound[x.node]
        parts = dict(c.parts) if c.host is None else {-1: c.host}
        if tuple(sorted(c.parts)) != bound.ranks or (c.host is not None) != bound.on_host:
            self.violated(
                "binding",
                f"{self.name(x)} was reported by workers {sorted(c.parts)}, planned: {list(bound.ranks)}",
            )
        else:
            self._times(x, d, c, parts)
            self._versions(x, bound, c.parts)
            self._rows_and_bytes(x, bound, parts)
        self._release(x, bound)
        self.finished[x] = c.time_ns
        self.verdict.nodes += 1
        if self.in_order:
            self.dispatcher.complete(x)

    def _release(self, x: Instance, bound: BoundNode) -> None:
        node = bound.node
        for device in self.reservations[x.node]:
            if self.reserved.get(device) == x:
                del self.reserved[device]
            if self.chains.get(device) == (node.vertex, x.step) and node.phase == node.phases:
                del self.chains[device]

    def _times(self, x: Instance, d: Dispatch, c: Complete, parts: dict[int, Part]) -> None:
        for rank, part in parts.items():
            if not d.time_ns <= part.start_ns <= part.finish_ns <= c.time_ns:
                self.violated(
                    "time",
                    f"{self.name(x)} on worker {rank}: {part.start_ns} to {part.finish_ns} ns is not within "
                    f"{d.time_ns} to {c.time_ns} ns",
                )
            until, other = self.last_work.get(rank, (0, x))
            if rank >= 0 and part.start_ns < until:
                self.violated(
                    "exclusivity",
                    f"worker {rank} started {self.name(x)} at {part.start_ns} ns, before it had finished "
                    f"{self.name(other)} at {until} ns",
                )
            self.last_work[rank] = (part.finish_ns, x)

    def _versions(self, x: Instance, bound: BoundNode, parts: dict[int, Part]) -> None:
        """Layouts, the versions that every worker read and wrote, and that they were where they were read."""
        node = bound.node
        reads: dict[str, int] = {}
        writes: dict[str, int] = {}
        layout, source, target = "", bound.ranks, bound.ranks
        if bound.transfer is not None:
            source, target = self._weight_ends(bound.transfer)
            version = max(0, x.step + bound.transfer.version)
            reads = writes = {bound.transfer.source.model: version}
            self._held(x, bound.transfer.source, version)
            self._install(bound.transfer.target, version)
        elif node.kind == "Op" and not bound.on_host:
            place = self.realisation.serving[node.vertex]
            reads = self.realisation.version(node, x.step)
            p = self.realisation.plan[node.vertex]
            layout = layout_name(p.data_parallel, p.pipeline_parallel, p.tensor_parallel)
            self._held(x, place, reads[place.model])
            if isinstance(self.realisation.semantics.tasks[node.vertex], Train):
                writes = {place.model: x.step + 1}
                self._install(place, x.step + 1)
            else:
                self._staleness(x, place, parts)
        for rank, part in parts.items():
            planned = (layout, reads if rank in source else {}, writes if rank in target else {})
            if (part.layout, part.reads, part.writes) != planned:
                self.violated(
                    "version" if part.layout == layout else "layout",
                    f"{self.name(x)} on worker {rank} used layout {part.layout or 'none'}, read {part.reads}, wrote "
                    f"{part.writes}; planned: {planned}",
                )

    def _staleness(self, x: Instance, place: Weights, parts: dict[int, Part]) -> None:
        graph = self.realisation.problem.graph
        bound = graph.staleness.get(place.model, 0)
        for rank, part in parts.items():
            version = part.reads.get(place.model, 0)
            if place.model in graph.trainable and x.step - version > bound:
                self.violated(
                    "staleness",
                    f"{self.name(x)} on worker {rank} read version {version} of `{place.model}`, more than {bound} behind",
                )

    def _held(self, x: Instance, place: Weights, version: int) -> None:
        if version not in self.versions[place]:
            self.violated(
                "version",
                f"{self.name(x)} needs version {version} of `{place.model}`, held were {list(self.versions[place])}",
            )

    def _install(self, place: Weights, version: int) -> None:
        if version not in self.versions[place]:
            self.versions[place].append(version)

    def _weight_ends(self, t: WeightTransfer) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return self.realisation.ranks(t.source.allocation), self.realisation.ranks(t.target.allocation)

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
                    f"{self.name(x)} on worker {rank} sent {part.sent} and received {part.received} bytes by worker, "
                    f"planned: {sent} and {received}",
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
        size = ITEM_BYTES[weight_type(spec, self.header.precision)]
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
            needs = {} if bound.transfer else {a: self.logistics.needs(x, a) for a in bound.outputs}
            ends = self.realisation.destination(node)
            return {r: {a: n[r] for a, n in needs.items() if r in ends} for r in parts}
        task = self.realisation.semantics.tasks[node.vertex]
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
        """A generation phase leaves any sequences of the replica's block that have not left before, as many as
        the plan's fractions say, the same on all workers of the replica."""
        node, w = bound.node, self.workload
        layout = self.realisation.plan[node.vertex].layout
        assert node.phase is not None
        planned = {}
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
            planned.update(dict.fromkeys(ranks, {task.tokens: left, task.logprobs: left}))
        return planned


def verify_trace(plan: Plan, events: Iterable[Line]) -> Verdict:
    """Check the events of a trace against `plan`."""
    verdict = Verdict(plan=plan.id)
    try:
        _check(plan, events, verdict)
    except BrokenTraceError as exc:
        verdict.violations.append(f"integrity: {exc}")
    except (UnrealisableError, NotUnderstood) as exc:
        verdict.violations.append(f"plan: this runtime cannot have executed it: {exc}")
    return verdict


def _check(plan: Plan, events: Iterable[Line], verdict: Verdict) -> None:
    lines = iter(events)
    header = next(lines, None)
    if not isinstance(header, Header) or header.version != VERSION:
        verdict.violations.append("integrity: the trace does not begin with a header that this release reads")
        return
    if header.plan != plan.id:
        verdict.violations.append(f"plan: the trace is of plan {header.plan}, not of {plan.id}")
        return
    realisation = Realisation(plan.executable)
    if header.workers != dict(enumerate(realisation.devices)):
        verdict.violations.append(
            f"binding: workers were on GPUs {header.workers}, planned: {realisation.devices}"
        )
        return
    verifier = _Verifier(plan, realisation, header, verdict)
    footer: Footer | None = None
    for line in lines:
        if footer is not None or isinstance(line, Header):
            verdict.violations.append("integrity: a line stands after the footer, or a second header")
            return
        if isinstance(line, Dispatch):
            verifier.dispatch(line)
        elif isinstance(line, Complete):
            verifier.complete(line)
        elif isinstance(line, Evaluation):
            verifier.evaluation(line)
        else:
            footer = line
        if len(verdict.violations) >= MOST_VIOLATIONS:
            verdict.violations.append("… and perhaps more; stopped here")
            return
    verifier.end(footer)


def verify_file(trace: Path, plan: Path) -> Verdict:
    """Check the trace in a file against the plan in a file.

    Raises FileError if one cannot be read, VerificationError if the plan is not intact.
    """
    if not plan.is_file():
        raise FileError(f"cannot read the plan {plan}: no such file")
    try:
        loaded = load_plan(plan)
    except FileError as exc:
        raise VerificationError([f"plan: {exc}"]) from exc
    return verify_trace(loaded, read_trace(trace))
