"""Which RL steps are complete, and what their workers reported."""

from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass
class StepReport:
    """One RL step all of whose Ops are complete: when, and the figures of its workers, by vertex."""

    step: int
    finished_ns: int = 0
    metrics: dict[str, dict[str, float]] = field(default_factory=dict)


class Progress:
    """Collects the `ops` Ops of each step and hands finished steps on, in order, from step `first` on."""

    def __init__(self, ops: int, on_step: Callable[[StepReport], None], first: int) -> None:
        self._ops, self._on_step = ops, on_step
        self._open: dict[int, tuple[int, StepReport]] = {}
        self._next = first

    def completed(self, step: int, metrics: dict[str, dict[str, float]], time_ns: int) -> None:
        """An Op of `step` is complete; `metrics` are what its vertices report."""
        left, report = self._open.get(step, (self._ops, StepReport(step)))
        report.finished_ns = time_ns
        report.metrics |= metrics
        self._open[step] = left - 1, report
        while self._open.get(self._next, (1,))[0] == 0:
            self._on_step(self._open.pop(self._next)[1])
            self._next += 1
