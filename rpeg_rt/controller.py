"""The controller: dispatches node instances to workers and host as completions allow, and records it all.

One thread sleeps in the fleet's selector; verifiers run beside it and wake it. Every way in which a run can
end passes through `Controller.run`, which leaves no worker behind and a trace complete to that point.
"""

import signal
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from msgspec.structs import replace

from ir_schema.envelope import canonical
from ir_schema.trace import VERSION, Complete, Dispatch, Evaluation, Footer, Header, Part, Stopping
from rpeg_rt.allocation import Crew
from rpeg_rt.blame import Blame
from rpeg_rt.checkpoints.export import Origin
from rpeg_rt.clock import Clock
from rpeg_rt.commands import Commander
from rpeg_rt.dispatch import Dispatcher, Instance
from rpeg_rt.failure import ExitCode, FileError, InterruptedRunError, RunError, StalledError, WorkerLostError
from rpeg_rt.host import Host
from rpeg_rt.interludes import Interludes
from rpeg_rt.load import Plan
from rpeg_rt.network import BACKEND
from rpeg_rt.patience import Limit, Patience
from rpeg_rt.pauses import pause
from rpeg_rt.pool import Verified
from rpeg_rt.progress import Progress, StepReport
from rpeg_rt.protocol import Done, Hello, Ready, Start
from rpeg_rt.realise import BoundNode, Realisation
from rpeg_rt.signals import on_interrupt
from rpeg_rt.snapshots.saver import Saver, boundary
from rpeg_rt.trace import TraceWriter, software_versions
from rpeg_rt.watch import Watch


@dataclass
class _Running:
    """A node instance between dispatch and completion; `done` holds the reports that have come."""

    workers: frozenset[int]
    since: float
    limit: Limit
    started_ns: int
    done: dict[int, Done] = field(default_factory=dict)


class Controller:
    """One run of a plan over `steps` RL steps.

    `patience` tells how long a node or an interlude may take before the run counts as stalled.
    `on_step` is called with each finished step, in order, and `on_evaluation` with each evaluation: before
    the first step, every `eval_every` steps, and after the last. Models start from their `checkpoints`
    (directories by model), or of a run that goes on from the `snapshot`; trained ones are written to
    `exports` (by model), and snapshots by `saver`: with it, a request to stop is met after the steps that
    have begun.
    `crew` are its workers, not yet started; `warn` is told what does not end the run.
    `finished_ns` is when the last node was complete.
    """

    def __init__(
        self,
        plan: Plan,
        realisation: Realisation,
        *,
        steps: int,
        seed: int,
        trace: TraceWriter,
        checkpoints: Mapping[str, Path],
        snapshot: Path | None,
        exports: Mapping[str, Path],
        saver: Saver | None,
        patience: Patience,
        eval_every: int | None,
        crew: Crew,
        on_step: Callable[[StepReport], None],
        on_evaluation: Callable[[Evaluation], None],
        warn: Callable[[str], None],
    ) -> None:
        self.plan, self.realisation, self.steps, self.seed = plan, realisation, steps, seed
        self.trace, self._exports, self.patience = trace, exports, patience
        self._checkpoints, self._snapshot, self._saver, self._warn = checkpoints, snapshot, saver, warn
        run = plan.executable.problem.run
        assert run is not None, "preflight refuses a plan without a run"
        self._run_config = run
        template = plan.executable.template
        self._first = realisation.beginning.step
        self._save_every = None if saver is None else saver.every
        self.dispatcher = Dispatcher(
            template,
            steps,
            realisation.reservations(),
            realisation.generation,
            first=self._first,
            continues=saver is not None,
        )
        self.dispatcher.boundary = boundary(self._first, self._save_every, steps)
        self.fleet, self._ranks, self._machines = crew.fleet, crew.ranks, crew.machines
        self.blame = Blame(realisation, crew.machines)
        self.watch = Watch(crew.fleet, self.blame, self._doing, self._postpone)
        self._clocks = [Clock() for _ in crew.machines]
        self._running: dict[Instance, _Running] = {}
        self._verified: deque[Verified] = deque()
        self.evaluations: list[Evaluation] = []
        self._eval_every, self._on_evaluation = eval_every, on_evaluation
        self._pause: int | None = None
        self.progress = Progress(sum(n.kind == "Op" for n in template), on_step, self._first)
        self._stopping: int | None = None
        self._dispatched = 0
        self._origin = time.monotonic_ns()
        self.finished_ns = 0

    def run(self, host: Callable[[Callable[[Verified], None]], Host]) -> None:
        """Run to the end. Raises RunError for every way of not getting there.

        `host` makes the host part of the run, given what to call with each verified instance.
        """
        with on_interrupt(self.watch.interrupt):
            self._run(host)

    def _run(self, host: Callable[[Callable[[Verified], None]], Host]) -> None:
        self.trace.write(
            Header(
                version=VERSION,
                plan=self.plan.id,
                steps=self.steps,
                seed=self.seed,
                precision=self._run_config.precision,
                workers=dict(enumerate(self.realisation.devices)),
                machines=dict(enumerate(self._machines)),
                backend=BACKEND,
                software=software_versions(),
                eval_every=self._eval_every,
                first=self._first,
                oldest=dict(self.realisation.beginning.oldest),
                continues=self.dispatcher.continues,
                save_every=self._save_every,
            )
        )
        code, message = ExitCode.WORKER_LOST, "the controller failed"
        try:
            with ExitStack() as ending:
                with on_interrupt(_stop):  # it waits for verifiers to load, and not in `watch`
                    self.host = host(self._on_verified)
                ending.callback(self.host.close)
                self.commander = Commander(self.realisation, self.host)
                self.interludes = Interludes(
                    self.realisation,
                    self.host,
                    self.fleet,
                    self.watch,
                    self.patience,
                    self.trace,
                    self._verified,
                    self._now,
                )
                self._start_workers()
                if self._first == 0:
                    self._evaluate(0)
                self._loop()
                self.finished_ns = self._now()
                # The snapshot first: from it the rest can be done again.
                failure: str | None = None
                if self._saver is not None and self._save_every is not None and self._first < self.steps:
                    failure = self.interludes.snapshot(self._saver, self.steps)
                origin = Origin(plan=self.plan.id, seed=self.seed, steps=self.steps)
                self.interludes.save_weights(self._exports, origin)
                self._evaluate(self.steps)
                if failure is not None:
                    raise FileError(failure)
            code, message = ExitCode.DONE, ""
        except RunError as exc:
            code, message = exc.code, str(exc)
            raise
        finally:
            try:
                self.trace.write(
                    Footer(
                        time_ns=self._now(),
                        exit_code=int(code),
                        message=message,
                        dispatched=self._dispatched,
                        completed=self.dispatcher.completed,
                    )
                )
            finally:
                self.fleet.close()

    # The run ---------------------------------------------------------------------------------------------

    def _start_workers(self) -> None:
        self.fleet.start(self._ranks)
        start = Start(
            executable=canonical(self.plan.executable),
            seed=self.seed,
            store=self.fleet.store,
            origin_ns=self._origin,
            eos=self.host.tokenizer.eos,
            checkpoints={model: str(path) for model, path in self._checkpoints.items()},
            snapshot=None if self._snapshot is None else str(self._snapshot),
        )
        waiting = set(range(self.realisation.world))
        since, limit = self.watch.now, self.patience.start()
        while waiting:
            for received in self.watch.events():
                if isinstance(received.frame, Hello):
                    self.fleet.send(received.rank, start)
                elif isinstance(received.frame, Ready):
                    waiting.discard(received.rank)
            if waiting:
                self.watch.hurry("the start", waiting, since, limit)

    def _loop(self) -> None:
        self._dispatch()
        while not self.dispatcher.finished:
            if not self._running and self._pause is not None:
                self._evaluate(self._pause)
                self._pause = None
                self._dispatch()
            if not self._running and self.dispatcher.drained:
                self._pass_boundary()
                self._dispatch()
            if not self._running:
                left = ", ".join(self.blame.describe(x) for x in self.dispatcher.waiting())
                raise StalledError(f"the plan cannot go on: {left or 'nothing is ready'}")
            for received in self.watch.events():
                if isinstance(received.frame, Done):
                    self._on_done(received.rank, received.frame)
            while self._verified:
                self._on_host_done(self._verified.popleft())
            for x, running in self._running.items():
                waiting = running.workers - running.done.keys()
                self.watch.hurry(self.blame.describe(x), waiting, running.since, running.limit)

    def _dispatch(self) -> None:
        """Start everything that may start: nothing before a pause is over."""
        while self._pause is None and (x := self.dispatcher.next()) is not None:
            bound = self.realisation.bound[x.node]
            node = bound.node
            running = _Running(frozenset(bound.ranks), self.watch.now, self._limit(bound), self._now())
            self._running[x] = running
            self.trace.write(
                Dispatch(
                    time_ns=running.started_ns,
                    node=x.node,
                    step=x.step,
                    kind=node.kind,
                    vertex=node.vertex,
                    phase=node.phase,
                    workers=bound.ranks,
                )
            )
            self._dispatched += 1
            if bound.on_host:
                self.commander.verify(x)
            else:
                for rank, command in self.commander.commands(x).items():
                    self.fleet.send(rank, command)

    def _limit(self, bound: BoundNode) -> Limit:
        node, predicted = bound.node, bound.node.time_ns / 1e9
        if bound.on_host:
            problem = self.realisation.problem
            return self.patience.verification(
                problem.host[node.vertex], problem.workload.sequences, predicted
            )
        return self.patience.node(node.id, predicted)

    def _on_done(self, rank: int, done: Done) -> None:
        x = Instance(done.node, done.step)
        running = self._running.get(x)
        if running is None or rank not in running.workers:
            raise WorkerLostError(f"{self.blame.workers([rank])} reported {x}, which it was not asked for")
        start, finish = self._clocks[rank].translate(
            running.started_ns, done.start_ns, done.finish_ns, self._now()
        )
        running.done[rank] = replace(done, start_ns=start, finish_ns=finish)
        if len(running.done) < len(running.workers):
            return
        self.patience.took(x.node, self.watch.now - running.since)
        parts = {
            r: Part(**{name: getattr(d, name) for name in Part.__struct_fields__})
            for r, d in sorted(running.done.items())
        }
        self.commander.record(x, running.done)
        metrics: dict[str, dict[str, float]] = {}
        for d in running.done.values():
            for vertex, figures in d.metrics.items():
                metrics.setdefault(vertex, {}).update(figures)
        self._complete(x, Complete(time_ns=self._now(), node=x.node, step=x.step, parts=parts), metrics)

    def _on_host_done(self, verified: Verified) -> None:
        if verified.error is not None:
            raise verified.error
        x, started = verified.x, self._running[verified.x].started_ns
        rows = self.commander.record_rewards(verified)
        part = Part(
            start_ns=started,
            finish_ns=self._now(),
            layout="",
            reads={},
            writes={},
            sent={},
            received={},
            rows=rows,
        )
        event = Complete(time_ns=self._now(), node=x.node, step=x.step, parts={}, host=part)
        self._complete(x, event, {})

    def _complete(self, x: Instance, event: Complete, metrics: dict[str, dict[str, float]]) -> None:
        del self._running[x]
        self.trace.write(event)
        self.dispatcher.complete(x)
        self._pause = self._pause or pause(self.realisation, x, self._eval_every, self.steps)
        if self.realisation.nodes[x.node].kind == "Op":
            self.progress.completed(x.step, metrics, event.time_ns)
        self._dispatch()

    # Between nodes -----------------------------------------------------------------------------------------

    def _evaluate(self, step: int) -> None:
        event = self.interludes.evaluate(step)
        if event is not None:
            self.evaluations.append(event)
            self._on_evaluation(event)

    def _pass_boundary(self) -> None:
        """All steps before the boundary are complete: leave a snapshot, and go on unless asked to stop."""
        assert self._saver is not None, "without one there is no boundary before the end"
        step = self.dispatcher.boundary
        failure = self.interludes.snapshot(self._saver, step)
        if self._stopping is not None:
            then = failure or f"go on with --resume {self._saver.directory}"
            raise InterruptedRunError(self._stopping, f" after step {step} of {self.steps}; {then}")
        if failure is not None:
            self._warn(f"{failure}; the run goes on, and the snapshots before are still there")
        self.dispatcher.boundary = boundary(step, self._save_every, self.steps)

    def _postpone(self, number: int) -> bool:
        """Whether a request to stop is met after the steps that have begun: where snapshots are left. After
        the last step nothing but the end is left. A launcher's request comes from every task; Ctrl-C is not
        patient twice."""
        if self._saver is None or (self._stopping is not None and number == signal.SIGINT):
            return False
        if self.finished_ns:
            return number != signal.SIGINT
        if self.dispatcher.begun == self._first:
            return False
        if self._stopping is None:
            self._stopping = number
            self.dispatcher.boundary = min(self.dispatcher.boundary, self.dispatcher.begun)
            self.trace.write(Stopping(time_ns=self._now(), step=self.dispatcher.boundary))
        return True

    # Small things ------------------------------------------------------------------------------------------

    def _doing(self, rank: int) -> Instance | None:
        """What a worker is carrying out."""
        return next((x for x, r in self._running.items() if rank in r.workers), None)

    def _now(self) -> int:
        return time.monotonic_ns() - self._origin

    def _on_verified(self, verified: Verified) -> None:
        self._verified.append(verified)
        self.fleet.wake()


def _stop(number: int) -> NoReturn:
    raise InterruptedRunError(number)
