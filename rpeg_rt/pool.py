"""Responses dealt to several processes of one verifier, and their rewards collected.

A thread per process waits for it, so that a slow verifier holds up nobody who does not wait for its rewards.
"""

import math
import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ir_schema.problem import Verifier
from rpeg_rt.dispatch import Instance
from rpeg_rt.failure import NumericError, RunError, UserCodeError
from rpeg_rt.judge import Judge, Question, Verdict

HELD_OUT = Instance(-1, -1)
"""Stands for the host vertex instance where the responses are those of a held-out evaluation."""
_DEAL = 32
"""At most so many responses are given to a process at once."""


@dataclass(frozen=True)
class Verified:
    """Host vertex instance `x` has given every response of `indices` its reward, or has failed."""

    x: Instance
    indices: npt.NDArray[np.int64]
    rewards: npt.NDArray[np.float64]
    error: RunError | None = None


class _Batch:
    """The responses of one host vertex instance that are still being verified."""

    def __init__(self, x: Instance, indices: npt.NDArray[np.int64]) -> None:
        self.x, self.indices = x, indices
        self.rewards = np.zeros(len(indices))
        self.missing = len(indices)
        self.failed = False
        self.lock = threading.Lock()

    def describe(self, i: int) -> str:
        """The i-th of these responses."""
        if self.x == HELD_OUT:
            return f"the response to held-out prompt {self.indices[i]}"
        return f"response {self.indices[i]} of step {self.x.step}"


class VerifierPool:
    """The processes of the verifier of host vertex `vertex`; `finished` is called from threads, once per
    instance, and `warn` of the first response that earns nothing because the verifier failed on it.

    Raises FileError if there is no such verifier, UserCodeError if it cannot be loaded.
    """

    def __init__(
        self,
        vertex: str,
        spec: Verifier,
        directory: Path,
        finished: Callable[[Verified], None],
        warn: Callable[[str], None],
    ) -> None:
        self.vertex, self._spec = vertex, spec
        self._finished, self._warn, self._warned = finished, warn, False
        self._queue: queue.SimpleQueue[tuple[_Batch, int, Sequence[Question]]] = queue.SimpleQueue()
        name = spec.callable or vertex
        self._judges = [Judge(name, directory, spec.timeout_seconds) for _ in range(spec.workers)]
        self._closed = False
        self._judges[0].start()
        for i, judge in enumerate(self._judges):
            threading.Thread(target=self._serve, args=(judge,), name=f"{vertex}-{i}", daemon=True).start()

    def submit(self, x: Instance, indices: npt.NDArray[np.int64], questions: Sequence[Question]) -> None:
        """Verify one instance's responses."""
        batch = _Batch(x, indices)
        if not questions:
            self._finished(Verified(x, indices, batch.rewards))
        deal = max(1, min(_DEAL, -(-len(questions) // self._spec.workers)))
        for first in range(0, len(questions), deal):
            self._queue.put((batch, first, questions[first : first + deal]))

    def close(self) -> None:
        """End all processes; what has not been verified will not be."""
        self._closed = True
        for judge in self._judges:
            judge.close()

    def _serve(self, judge: Judge) -> None:
        while not self._closed:
            batch, first, questions = self._queue.get()
            for i, verdict in enumerate(judge.verdicts(questions), start=first):
                if self._closed:
                    return
                self._settle(batch, i, verdict)

    def _settle(self, batch: _Batch, i: int, verdict: Verdict) -> None:
        """Enter the verdict on the i-th response, and finish with the last one or the first error."""
        error = self._error(batch, i, verdict)
        if error is not None and self._spec.on_error == "zero":
            if not self._warned:
                self._warned = True
                self._warn(f"{error}; such responses earn 0")
            error, verdict = None, Verdict(0.0)
        with batch.lock:
            if batch.failed:
                return
            batch.rewards[i] = verdict.reward
            batch.missing -= 1
            batch.failed = error is not None
            done = batch.failed or batch.missing == 0
        if done:
            self._finished(Verified(batch.x, batch.indices, batch.rewards, error))

    def _error(self, batch: _Batch, i: int, verdict: Verdict) -> RunError | None:
        """What is wrong with a verdict."""
        if verdict.error is not None:
            return UserCodeError(
                f"verifier of `{self.vertex}` failed on {batch.describe(i)}: {verdict.error}"
            )
        if not math.isfinite(verdict.reward):
            return NumericError(f"verifier of `{self.vertex}` gave {verdict.reward} to {batch.describe(i)}")
        return None
