"""The workers of a measurement as the controller sees them: one job after another, for all of them."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import groupby

from rpeg_rt.allocation import Crew, everybody, gather, local_crew
from rpeg_rt.bench.jobs import Job, Result
from rpeg_rt.failure import InterruptedRunError, RunError, StalledError, WorkerFailedError, WorkerLostError
from rpeg_rt.fleet import Asked, Lost, Received
from rpeg_rt.joining import NO_PLAN, launched_fleet, local_fleet
from rpeg_rt.launch import Launch
from rpeg_rt.protocol import Bench, Failed, Hello, Measure, Measured, Message, Ready
from rpeg_rt.signals import on_interrupt

START_SECONDS = 300.0
JOB_SECONDS = 900.0
_GRACE_SECONDS = 1.0
_DETAIL_LINES = 8


class Workers:
    """Started workers, and what they are asked. `nodes` are the ranks by node."""

    def __init__(self, crew: Crew) -> None:
        self._crew, self._fleet = crew, crew.fleet
        self.machines = tuple(machine for machine, _ in groupby(crew.machines))
        ranks = iter(range(len(crew.machines)))
        self.nodes = tuple(tuple(next(ranks) for _ in there) for _, there in groupby(crew.machines))
        self._asked: int | None = None

    @property
    def count(self) -> int:
        """Of all nodes together."""
        return len(self._crew.machines)

    @property
    def software(self) -> dict[str, str]:
        """Versions of packages, on all nodes alike."""
        return self._fleet.own.software

    @property
    def pids(self) -> dict[int, int]:
        """Process ids by rank."""
        return self._fleet.pids

    def interrupt(self, number: int) -> None:
        """Signal `number` asks to stop: what waits now ends; callable at any time."""
        self._asked = number
        self._fleet.wake()

    def start(self) -> None:
        """Have the workers meet. Raises RunError."""
        self._fleet.start(self._crew.ranks)
        place = {rank: i for node in self.nodes for i, rank in enumerate(node)}

        def greet(rank: int, message: Message) -> bool:
            if isinstance(message, Hello):
                self._fleet.send(rank, Bench(self._fleet.store, self.count, place[rank]))
            return isinstance(message, Ready)

        self._all("the start", greet, START_SECONDS)

    def measure(self, job: Job, what: str) -> tuple[list[Result], float]:
        """The results of the workers that take part in a job, in the job's order, and the seconds until they
        were there. `what` names the job in the RunError that is raised if it fails."""
        results: dict[int, Result] = {}

        def note(rank: int, message: Message) -> bool:
            if isinstance(message, Measured):
                results[rank] = message.result
            return isinstance(message, Measured)

        begun = time.perf_counter()
        for rank in range(self.count):
            self._fleet.send(rank, Measure(job))
        self._all(what, note, JOB_SECONDS)
        return [results[rank] for rank in job.ranks], time.perf_counter() - begun

    def _all(self, what: str, done: Callable[[int, Message], bool], seconds: float) -> None:
        """Wait until `done` holds of a message of every worker."""
        waiting, deadline = set(range(self.count)), time.monotonic() + seconds
        while waiting:
            for event in self._fleet.events(max(0.0, deadline - time.monotonic())):
                if isinstance(event, Asked):
                    self._asked = event.number
                elif isinstance(event, Lost):
                    raise self._lost(event, what)
                elif isinstance(event, Received):
                    if isinstance(event.frame, Failed):
                        raise self._failed(event.rank, event.frame, what)
                    if done(event.rank, event.frame):
                        waiting.discard(event.rank)
            if self._asked is not None:
                raise InterruptedRunError(self._asked)
            if waiting and time.monotonic() >= deadline:
                raise StalledError(f"{self._named(*waiting)} did not finish {what} in {seconds:.0f} s")

    def _failed(self, rank: int, failed: Failed, what: str) -> RunError:
        """A worker's failure. That a peer went away is told by all who wait for it: find the one that did."""
        deadline = time.monotonic() + _GRACE_SECONDS
        while failed.kind == "peer" and (left := deadline - time.monotonic()) > 0:
            for event in self._fleet.events(left):
                if isinstance(event, Lost):
                    return self._lost(event, what)
                if isinstance(event, Received) and isinstance(event.frame, Failed):
                    rank, failed = event.rank, event.frame
        lines = [line for line in failed.detail.splitlines() if line.strip("^~ ")]
        detail = "".join(f"\n    | {line}" for line in lines[-_DETAIL_LINES:])
        return WorkerFailedError(f"{self._named(rank)} failed at {what}: {failed.message}{detail}")

    def _lost(self, event: Lost, what: str) -> RunError:
        if event.rank is None:
            return WorkerLostError(event.reason)
        how = self._fleet.explain(event.rank)
        return WorkerLostError(f"{self._named(event.rank)} was lost at {what}: {how}")

    def _named(self, *ranks: int) -> str:
        names = [f"worker {rank} on {self._crew.machines[rank]}" for rank in sorted(ranks)]
        return " and ".join(names)


@contextmanager
def workers(launch: Launch | None, count: int, interface: str | None, port: int | None) -> Iterator[Workers]:
    """`count` workers of this machine, or (with a launcher) one on each of its tasks; they end with this."""
    if launch is None:
        fleet = local_fleet(count, NO_PLAN)
    else:
        fleet = launched_fleet(launch, NO_PLAN, interface, port)
    try:
        if launch is None:
            crew = local_crew(fleet, count)
        else:
            gather(fleet)
            crew = everybody(fleet)
        started = Workers(crew)
        with on_interrupt(started.interrupt):
            started.start()
            yield started
    finally:
        fleet.close()
