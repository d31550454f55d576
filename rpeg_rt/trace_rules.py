"""When and where nodes ran: bindings, dependences, exclusivity, generation hold and order of a trace."""

from rpeg_rt.dispatch import Dispatcher, Instance
from rpeg_rt.failure import ExitCode
from rpeg_rt.findings import Rules, Verdict
from rpeg_rt.pauses import pause
from rpeg_rt.realise import BoundNode, Realisation
from rpeg_rt.report_rules import ReportRules
from rpeg_rt.trace import Complete, Dispatch, Evaluation, Footer, Header, Part


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
            realisation.executable.template, header.steps, self.reservations, realisation.generation
        )
        self.in_order = True
        self.eval_every, self.steps = header.eval_every, header.steps
        self.pause: int | None = None
        self.running: dict[Instance, Dispatch] = {}
        self.finished: dict[Instance, int] = {}
        self.reserved: dict[str, Instance] = {}
        self.chains: dict[str, tuple[str, int]] = {}
        self.last_work: dict[int, tuple[int, Instance]] = {}
        self.clock = 0

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

    def _tick(self, now: int, x: Instance) -> None:
        if now < self.clock:
            self.violated("time", f"{self.name(x)}: {now} ns stands after {self.clock} ns")
        self.clock = max(self.clock, now)

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
        self._tick(c.time_ns, x)
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
        due = self.pause if self.pause is not None else self.steps if self.finished else 0
        if e.step != due or (self.pause is None and 0 < len(self.finished) < self.dispatcher.total):
            self.violated(
                "order", f"held-out evaluation at {e.start_ns} ns is that after {e.step} steps, due was {due}"
            )
        self.pause = None
        if self.running or not self.clock <= e.start_ns <= e.time_ns:
            self.violated(
                "exclusivity", f"held-out evaluation from {e.start_ns} to {e.time_ns} ns was not alone"
            )
        self.clock = max(self.clock, e.time_ns)
        self.reports.evaluation(e)

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
        if footer.exit_code == ExitCode.DONE and len(self.finished) < self.dispatcher.total:
            self.violated(
                "plan",
                f"the run says that it is done after {len(self.finished)} of {self.dispatcher.total} nodes",
            )
