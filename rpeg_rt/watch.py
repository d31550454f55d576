"""What arrives from workers and tasks, with everything that ends a run raised."""

import signal
import time
from collections.abc import Callable, Iterator

from rpeg_rt.blame import Blame
from rpeg_rt.dispatch import Instance
from rpeg_rt.failure import InterruptedRunError, RunError, WorkerLostError
from rpeg_rt.fleet import Asked, Fleet, Lost, Received
from rpeg_rt.protocol import Failed

GRACE_SECONDS = 1.0


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

    def interrupt(self, number: int) -> None:
        """Signal `number` asks the run to stop: have the next look at events see it; callable at any time."""
        self._asked = number
        self._fleet.wake()

    def events(self, deadline: float) -> Iterator[Received]:
        """Frames that arrive before `deadline` (monotonic seconds). Raises RunError for what ends the run."""
        for event in self._fleet.events(max(0.0, deadline - time.monotonic())):
            if isinstance(event, Lost):
                raise self._lost(event)
            if isinstance(event, Received):
                if isinstance(event.frame, Failed):
                    raise self._failed(event.rank, event.frame)
                yield event
            if isinstance(event, Asked):
                self._asked = event.number
        if self._asked is not None:
            number, self._asked = self._asked, None
            if not self._postpone(number):
                raise self._stopped(number)

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
