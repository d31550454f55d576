"""Watching a search from outside and asking it to stop.

A search may be watched by whoever set `WATCH` in the current context: the command line shows progress, keeps
a log of improvements, and on Ctrl-C sets `stop`, upon which the search returns the best plan it has.
"""

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field

from ir_schema.problem import Placement


def optimality_gap(step_s: float, lower_bound_s: float) -> float:
    """(step time - bound) / step time: the share of a step that no plan can save more than."""
    return max(0.0, (step_s - lower_bound_s) / step_s) if step_s > 0 else 0.0


@dataclass(frozen=True)
class Progress:
    """How far a search is. Scores [tokens/s] are those of plans that fit in memory, 0 where none is known.

    `budget` (evaluations) and `time_limit` [s] are None where there is none. `step_s` is the step time of
    the best plan and `lower_bound_s` what no plan can beat, None where they are not known.
    """

    method: str
    evaluations: int
    cache_hits: int
    budget: int | None
    seconds: float
    structure: int
    structures: int
    best: float
    greedy: float
    concurrent: float
    time_limit: float | None = None
    step_s: float | None = None
    lower_bound_s: float | None = None

    @property
    def rate(self) -> float:
        """Evaluations per second."""
        return self.evaluations / self.seconds if self.seconds > 0 else 0.0

    @property
    def gap(self) -> float | None:
        """Optimality gap of the best plan; None while there is no plan or no bound."""
        if self.step_s is None or self.lower_bound_s is None:
            return None
        return optimality_gap(self.step_s, self.lower_bound_s)

    @property
    def seconds_left(self) -> float | None:
        """Until the budget (at the present rate) or the time limit ends the search; None if neither will."""
        ends = [] if self.time_limit is None else [self.time_limit - self.seconds]
        if self.budget is not None and self.rate > 0:
            ends.append((self.budget - self.evaluations) / self.rate)
        return max(0.0, min(ends)) if ends else None

    def gain(self, over: float) -> float | None:
        """Relative gain of the best plan over a score; None if either is missing."""
        return self.best / over - 1 if over > 0 and self.best > 0 else None


@dataclass(frozen=True)
class Improvement:
    """A plan that fits and is better than all before it.

    `seconds` and `evaluations` count from the start of the search; `score` [tokens/s] and `value` (what the
    objective makes of it) are the plan's; `structure` describes its structural choices in words.
    """

    seconds: float
    evaluations: int
    score: float
    value: float
    step_s: float
    structure: str
    plan: Mapping[str, Placement]
    lower_bound_s: float | None = None

    @property
    def gap(self) -> float | None:
        """Optimality gap; None without a bound."""
        return None if self.lower_bound_s is None else optimality_gap(self.step_s, self.lower_bound_s)


@dataclass
class Watch:
    """`on_progress` is called after every improvement and about every `interval` seconds; `on_improvement`
    after every improvement, in the order in which they are found."""

    on_progress: Callable[[Progress], None] | None = None
    on_improvement: Callable[[Improvement], None] | None = None
    interval: float = 0.2
    stop: bool = field(default=False)


WATCH: ContextVar[Watch | None] = ContextVar("rpeg_search_watch", default=None)
