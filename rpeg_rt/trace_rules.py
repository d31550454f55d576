"""When and where nodes ran: bindings, dependences, exclusivity, generation hold and order of a trace."""

from ir_schema.trace import Complete, Dispatch, Evaluation, Footer, Header, Part, Snapshot, Stopping
from rpeg_rt.dispatch import Dispatcher, Instance
from rpeg_rt.failure import ExitCode
from rpeg_rt.findings import Rules, Verdict
from rpeg_rt.pauses import pause
from rpeg_rt.realise import BoundNode, Realisation
from rpeg_rt.report_rules import ReportRules
from rpeg_rt.snapshots.contents import places_of
from rpeg_rt.snapshots.saver import boundary


class TraceRules(Rules):
    """State of the check after some lines of a trace.

    Each rule is looked at by its own means; the order is replayed through the dispatcher until it first
    differs, so that one deviation is told once.
    """

    def __init__(self, realisation: Realisation, header: Header, verdict: Verdict) -> None:
        super().__init__(realisation, verdict)
        self.reports = ReportRules(realisation, verdict, header.precision)
        self.reservations = realisation.reservations()
        self.dispatcher = Dispatcher(
            realisation.executable.template,
            header.steps,
            self.reservations,
            realisation.generation,
            first=header.first,
            continues=header.continues,
        )
        self.first, self.save_every = header.first, header.save_every
        self.boundary = boundary(header.first, header.save_every, header.steps)
        self.begun = header.first
        self.stopping, self.saved = False, header.first
        self.dispatcher.boundary = self.boundary
        self.in_order = True
        self.eval_every, self.steps = header.eval_every, header.steps
        self.pause: int | None = None
        self.running: dict[Instance, Dispatch] = {}
        self.finished: dict[Instance, int] = {}
        self.reserved: dict[str, Instance] = {}
        self.chains: dict[str, tuple[str, int]] = {}
        self.last_work: dict[int, tuple[int, Instance]] = {}
        # When the latest line was written, and until when work was done: a request to stop may come in it.
        self.latest = self.worked = 0

    # Dispatches --------------------------------------------------------------------------------------------

    def dispatch(self, d: Dispatch) -> None:
        """A node was started."""
        x = Instance(d.node, d.step)
        if d.node not in self.realisation.nodes or not self.dispatcher.exists(*x):
            self.violated(
                "plan", f"node {d.node} at step {d.step}, dispatched at {d.time_ns} ns, is not in the plan"
            )
            return
        if x in self.running or x in self.finished:
            self.violated("plan", f"{self.name(x)} was dispatched again at {d.time_ns} ns")
            return
        self._work(self.name(x), d.time_ns, d.time_ns)
        self.begun = max(self.begun, x.step + 1)
        if x.step >= self.boundary:
            self.violated(
                "order",
                f"{self.name(x)} was dispatched at {d.time_ns} ns, before the pause after {self.boundary} "
                "steps",
            )
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
                    f"{self.name(x)} started at {d.time_ns} ns on GPU {device} between phases of "
                    f"`{chain[0]}` at step {chain[1]}",
                )
            self.reserved[device] = x
            if node.kind == "Op" and node.phases > 1 and node.vertex in self.realisation.generation:
                self.chains[device] = (node.vertex, x.step)
        self.running[x] = d
        if self.pause is not None:
            self.violated(
                "order",
                f"{self.name(x)} was dispatched at {d.time_ns} ns, before the held-out evaluation after "
                f"{self.pause} steps",
            )
        if self.in_order:
            due = self.dispatcher.next()
            if due != x:
                self.in_order = False
                expected = "nothing" if due is None else self.name(due)
                self.violated(
                    "order", f"{self.name(x)} was dispatched at {d.time_ns} ns where {expected} was due"
                )

    # Completions -------------------------------------------------------------------------------------------

    def complete(self, c: Complete) -> None:
        """A node was completed."""
        x = Instance(c.node, c.step)
        if x not in self.running:
            self.violated(
                "plan",
                f"node {c.node} at step {c.step} completed at {c.time_ns} ns without having been dispatched",
            )
            return
        self._work(self.name(x), c.time_ns, c.time_ns)
        if self.in_order and self.pause is None and (idle := self.dispatcher.startable()) is not None:
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
            self.reports.check(x, parts)
        self._release(x, bound)
        self.finished[x] = c.time_ns
        self.verdict.nodes += 1
        if self.in_order:
            self.dispatcher.complete(x)
        after = pause(self.realisation, x, self.eval_every, self.steps)
        self.pause = self.pause if after is None else after

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

    # The rest ----------------------------------------------------------------------------------------------

    def evaluation(self, e: Evaluation) -> None:
        """A held-out evaluation: while nothing else ran, before the run, after it, or in a pause."""
        due = self.pause if self.pause is not None else self.steps if self.finished else self.first
        if e.step != due or (self.pause is None and 0 < len(self.finished) < self.dispatcher.total):
            self.violated(
                "order", f"held-out evaluation at {e.start_ns} ns is that after {e.step} steps, due was {due}"
            )
        self.pause = None
        if self.running or not self.worked <= e.start_ns <= e.time_ns:
            self.violated(
                "exclusivity", f"held-out evaluation from {e.start_ns} to {e.time_ns} ns was not alone"
            )
        self._written("held-out evaluation", e.time_ns)
        self.worked = max(self.worked, e.time_ns)
        self.reports.evaluation(e)

    def stop(self, e: Stopping) -> None:
        """The run was asked to stop: at the end of the steps that had begun."""
        self._written("stopping", e.time_ns)
        if self.stopping or e.step != min(self.boundary, self.begun):
            self.violated("order", f"the run was to stop after {e.step} steps at {e.time_ns} ns")
        self.stopping = True
        self.boundary = self.dispatcher.boundary = e.step

    def snapshot(self, e: Snapshot) -> None:
        """A snapshot: of a state between two steps, with the versions that it must have."""
        name = f"snapshot at {e.start_ns} ns"
        before = sum(x.step < self.boundary for x in self.finished)
        if e.step != self.boundary or before < self.dispatcher.instances(self.boundary):
            self.violated(
                "order",
                f"{name} is that after {e.step} steps, due was {self.boundary}, before which {before} of "
                f"{self.dispatcher.instances(self.boundary)} nodes were complete",
            )
        if self.running or e.time_ns < e.start_ns:
            self.violated("exclusivity", f"{name} was not taken alone")
        planned = {
            m: tuple(places_of(self.realisation, m, e.step)) for m in self.realisation.problem.graph.trainable
        }
        if e.versions != planned:
            self.violated("version", f"{name} has versions {e.versions}, planned: {planned}")
        self.saved = e.step
        self._work(name, e.start_ns, e.time_ns)
        if not self.stopping:
            self.boundary = self.dispatcher.boundary = boundary(e.step, self.save_every, self.steps)

    def _work(self, name: str, start_ns: int, end_ns: int) -> None:
        """A line of work that was begun and ended, or that is a moment of it."""
        if start_ns < self.worked:
            self.violated("time", f"{name}: {start_ns} ns stands after {self.worked} ns")
        else:
            self._written(name, end_ns)
        self.worked = max(self.worked, end_ns)

    def _written(self, name: str, time_ns: int) -> None:
        """Lines stand in the order in which they were written."""
        if time_ns < self.latest:
            self.violated("time", f"{name}: {time_ns} ns stands after {self.latest} ns")
        self.latest = max(self.latest, time_ns)

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
        if footer.exit_code == ExitCode.DONE and self.pause is not None:
            self.violated("plan", f"no held-out evaluation was made after {self.pause} steps")
        if footer.exit_code == ExitCode.DONE and self.save_every is not None and self.saved < self.steps:
            self.violated("plan", f"no snapshot was taken after {self.steps} steps")
        if footer.exit_code == ExitCode.DONE and len(self.finished) < self.dispatcher.total:
            self.violated(
                "plan",
                f"the run says that it is done after {len(self.finished)} of {self.dispatcher.total} nodes",
            )
