"""How long a run waits for work before it counts as stalled, and the signs of life by which it tells slow
workers from hanging ones.

A prediction may be wrong by any factor, so a limit that follows from it only counts while nobody works: every
worker says now and then how much processor time it has used. A worker that says nothing is stopped, or its
machine is.
"""

import time
from collections.abc import Collection
from dataclasses import dataclass
from math import ceil, inf

from ir_schema.problem import Verifier
from rpeg_rt.protocol import Frame, Pulse

FACTOR = 20.0
"""A limit is at least so many times the predicted time, or the longest of those that were measured."""
FIRST_SECONDS, LATER_SECONDS = 600.0, 60.0
"""A limit is at least so many seconds: for what was never done before, and for what was."""
AT_WORK = 10.0
"""Where workers are at work, a limit is so many times as long."""
SILENT_SECONDS = 60.0
"""After so long without a sign of life a worker counts as hanging."""
IDLE_SECONDS, IDLE_SHARE = 30.0, 0.01
"""A worker is at work if, so many seconds ago or less, it used more than this share of a processor."""
_LONGEST_LOOK = 5.0


@dataclass(frozen=True)
class Limit:
    """Seconds that something may take: `idle` while no worker is at work, `working` at most, and `silent`
    without a sign of life from a worker that has a part in it."""

    idle: float
    working: float
    silent: float


class Patience:
    """The limits of a run; `node_seconds` is the longest time of anything (or 20 times what is predicted)
    that the user allows, None where the run is to find out."""

    def __init__(self, node_seconds: float | None) -> None:
        self._chosen = node_seconds
        self._longest: dict[int, float] = {}

    def node(self, node: int, predicted: float) -> Limit:
        """Of template node `node`, predicted to take so many seconds."""
        if self._chosen is not None:
            return _exactly(max(self._chosen, FACTOR * predicted))
        longest = self._longest.get(node)
        if longest is None:
            return _patient(max(FIRST_SECONDS, FACTOR * predicted))
        return _patient(max(LATER_SECONDS, FACTOR * longest))

    def took(self, node: int, seconds: float) -> None:
        """Template node `node` has taken so many seconds."""
        self._longest[node] = max(seconds, self._longest.get(node, 0.0))

    def verification(self, verifier: Verifier, responses: int, predicted: float = 0.0) -> Limit:
        """Of so many responses to be verified: a verifier that hangs is noticed by its own time-out."""
        if self._chosen is not None:
            return _exactly(max(self._chosen, FACTOR * predicted))
        each = ceil(responses / verifier.workers)
        return _exactly(FIRST_SECONDS + FACTOR * predicted + 2 * verifier.timeout_seconds * each)

    def start(self) -> Limit:
        """Of the workers' start, with the building and loading of models."""
        return _patient(FIRST_SECONDS)

    def interlude(self) -> Limit:
        """Of an evaluation, a snapshot, or writing weights."""
        return _patient(FIRST_SECONDS) if self._chosen is None else _exactly(self._chosen)


def _patient(seconds: float) -> Limit:
    return Limit(seconds, AT_WORK * seconds, SILENT_SECONDS)


def _exactly(seconds: float) -> Limit:
    return Limit(seconds, seconds, inf)


class Vitals:
    """When each worker was last heard, and last at work, in seconds of attention: time in which the
    controller itself did not run (Ctrl-Z, a machine that sleeps) does not count."""

    def __init__(self) -> None:
        self.now = 0.0
        self._looked = time.monotonic()
        self._heard: dict[int, float] = {}
        self._worked: dict[int, float] = {}
        self._pulses: dict[int, Pulse] = {}

    def look(self) -> None:
        """Time goes on; to be called every second or so."""
        at = time.monotonic()
        self.now += min(at - self._looked, _LONGEST_LOOK)
        self._looked = at

    def hear(self, rank: int, frame: Frame) -> None:
        """A worker has sent something: its pulse, or what it has worked for."""
        self._heard[rank] = self.now
        if isinstance(frame, Pulse):
            before = self._pulses.get(rank, frame)
            self._pulses[rank] = frame
            if frame.used_ns - before.used_ns <= IDLE_SHARE * (frame.time_ns - before.time_ns):
                return
        self._worked[rank] = self.now

    def silence(self, rank: int) -> float:
        """Seconds since a worker was heard; 0 where it never was."""
        return self.now - self._heard.get(rank, self.now)

    def at_work(self, rank: int) -> bool:
        """Whether a worker lately used a processor, or sent what it had worked for."""
        return self.now - self._worked.get(rank, -inf) < IDLE_SECONDS

    def overdue(self, ranks: Collection[int], since: float, limit: Limit) -> bool:
        """Whether something that began at `since` and that these workers have not finished is stalled."""
        if any(self.silence(rank) >= limit.silent for rank in ranks):
            return True
        working = any(self.at_work(rank) for rank in ranks)
        return self.now - since >= (limit.working if working else limit.idle)
