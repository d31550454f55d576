"""What arrives from workers and tasks, with everything that ends a run raised."""

import signal
import time
from collections.abc import Callable, Collection, Iterator

from rpeg_rt.blame import Blame
from rpeg_rt.dispatch import Instance
from rpeg_rt.failure import InterruptedRunError, RunError, StalledError, WorkerLostError
from rpeg_rt.fleet import Asked, Fleet, Lost, Received
from rpeg_rt.patience import Limit, Vitals
from rpeg_rt.protocol import Failed, Pulse

GRACE_SECONDS = 1.0
_LOOK_SECONDS = 1.0


class Watch:
    """The events of a fleet. `doing` tells what a worker is carrying out; `postpone` is told of a request to
    stop, by signal, and whether it will be met later tells if the run goes on."""

    def __init__(
        self,
        fleet: Fleet,
        blame: Blame,
        doing: Callable[[int], Instance | None],
        postpone: Callable[[int], bool],
    ) -> None:
        self._fleet, self._blame, self._doing, self._postpone = fleet, blame, doing, postpone
        self._asked: int | None = None
        self._vitals = Vitals()

    @property
    def now(self) -> float:
        """Seconds of attention so far."""
        return self._vitals.now

    def interrupt(self, number: int) -> None:
        """Signal `number` asks the run to stop: have the next look at events see it; callable at any time."""
        self._asked = number
        self._fleet.wake()

    def events(self) -> Iterator[Received]:
        """Frames that arrive within a second. Raises RunError for what ends the run."""
        found = self._fleet.events(_LOOK_SECONDS)
        self._vitals.look()
        for event in found:
            if isinstance(event, Lost):
                raise self._lost(event)
            if isinstance(event, Received):
                if isinstance(event.frame, Failed):
                    raise self._failed(event.rank, event.frame)
                self._vitals.hear(event.rank, event.frame)
                if not isinstance(event.frame, Pulse):
                    yield event
            if isinstance(event, Asked):
                self._asked = event.number
        if self._asked is not None:
            number, self._asked = self._asked, None
            if not self._postpone(number):
                raise self._stopped(number)

    def hurry(self, what: str, waiting: Collection[int], since: float, limit: Limit) -> None:
        """Raises StalledError if `what` began at `since`, by `now`, and has passed its limit. `waiting` are
        the workers that have not finished it; none: it is a verifier that has not."""
        if not self._vitals.overdue(waiting, since, limit):
            return
        states: dict[str, list[int]] = {}
        for rank in waiting:
            silence = self._vitals.silence(rank)
            state = "lately at work" if self._vitals.at_work(rank) else "idle"
            state = f"without a sign of life for {silence:.0f} s" if silence >= limit.silent else state
            states.setdefault(state, []).append(rank)
        who = ", ".join(f"{self._blame.workers(ranks)} ({state})" for state, ranks in states.items())
        raise StalledError(
            f"{what} did not complete before its deadline, after {self.now - since:.0f} s; still waiting for "
            f"{who or 'its verifier'}. If the work is merely slow, raise --node-seconds"
        )

    def _stopped(self, number: int) -> RunError:
        """What a request to stop means: the end of the run, if it is not postponed. A launcher also
        ends all tasks when one of them dies, so that one is looked for a moment longer."""
        deadline = time.monotonic() + GRACE_SECONDS
        while (
            number == signal.SIGTERM and self._fleet.tasks > 1 and (left := deadline - time.monotonic()) > 0
        ):
            for event in self._fleet.events(left):
                if isinstance(event, Lost):
                    return self._lost(event)
        return InterruptedRunError(number)

    def _failed(self, rank: int, failed: Failed) -> RunError:
        """What a worker's failure means. That a peer went away is told by all who wait for it, so the one
        that really went is looked for a moment longer."""
        deadline = time.monotonic() + GRACE_SECONDS
        while failed.kind == "peer" and (left := deadline - time.monotonic()) > 0:
            for event in self._fleet.events(left):
                if isinstance(event, Lost):
                    return self._lost(event)
                if isinstance(event, Received) and isinstance(event.frame, Failed):
                    rank, failed = event.rank, event.frame
                    if failed.kind != "peer":
                        break
        return self._blame.failed(rank, failed)

    def _lost(self, event: Lost) -> RunError:
        if event.rank is None:
            return WorkerLostError(event.reason)
        return self._blame.lost(event.rank, self._doing(event.rank), self._fleet.explain(event.rank))
