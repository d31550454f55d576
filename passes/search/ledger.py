"""The books of one search: what was evaluated, what it was worth, what is best, and when to stop.

Scores, utilisations and peaks are what is cached; the objective is applied when plans are compared. The
best Score so far enters the efficiency objective; it is taken over only between rounds, so that results do
not depend on the order of evaluation inside a round.
"""

import math
import time
from dataclasses import dataclass

from ir_schema.base import Objective
from passes.search.evaluator import Evaluation
from passes.search.progress import WATCH, Progress
from passes.search.space import Space
from passes.structure import Plan

MAX_LOSS = 0.10
FLOOR = 1e-12
ELITE = 3
EVERY = 64


class OutOfBudget(Exception):
    """No further evaluation is allowed. `reason` is `budget`, `time_limit` or `interrupted`."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Found:
    """An evaluated plan of a structure."""

    space: Space
    plan: Plan
    evaluation: Evaluation


class Ledger:
    """See the module. `hard` rejects infeasible plans instead of penalising them (ablation A8)."""

    def __init__(
        self, *, method: str, objective: Objective, budget: int, time_limit: float | None, hard: bool = False
    ) -> None:
        self.method = method
        self.objective = objective
        self.budget = budget
        self.hard = hard
        self.evaluations = 0
        self.cache_hits = 0
        self.structures = 1
        self.best: Found | None = None
        self.nearest: Found | None = None
        self.termination = "none"
        self.tried: dict[str, list[Found]] = {}
        self.best_score = 0.0
        self._next_best_score = 0.0
        self._allowed: int | None = None
        self._started = time.monotonic()
        self._time_limit = math.inf if time_limit is None else time_limit
        self._deadline = self._started + self._time_limit
        self._cache: dict[tuple[int, object], Evaluation] = {}
        self._elite: dict[int, list[Found]] = {}
        self._told = self._started
        self._current = 0

    # Limits ------------------------------------------------------------------------------------------

    def allow(self, evaluations: int | None, *, share_of_time: float = 1.0) -> None:
        """Allow so many further uncached evaluations (None: any) and this share of the remaining time."""
        self._allowed = None if evaluations is None else self.evaluations + evaluations
        now = time.monotonic()
        self._deadline = now + max(0.0, self._started + self._time_limit - now) * share_of_time

    def check(self) -> None:
        """Raises OutOfBudget if the search is to stop."""
        watch = WATCH.get()
        if watch is not None and watch.stop:
            raise OutOfBudget("interrupted")
        if time.monotonic() >= self._deadline:
            raise OutOfBudget("time_limit")

    # Evaluating --------------------------------------------------------------------------------------

    def evaluate(self, space: Space, plan: Plan, *, free: bool = False) -> Evaluation:
        """The plan's evaluation, from the cache if it is there.

        Raises OutOfBudget when a new evaluation is not allowed; `free` ones always are.
        """
        key = (space.index, space.key(plan))
        known = self._cache.get(key)
        if known is not None:
            self.cache_hits += 1
            return known
        if not free:
            if self._allowed is not None and self.evaluations >= self._allowed:
                raise OutOfBudget("budget")
            self.check()
        known = self._cache[key] = space.evaluator.evaluate(plan)
        self.evaluations += 1
        self._current = space.index
        self._note(Found(space, plan, known))
        return known

    def baseline(self, name: str, space: Space, plan: Plan) -> Found:
        """Evaluate the plan of heuristic `name`, whatever the budget."""
        found = Found(space, plan, self.evaluate(space, plan, free=True))
        self.tried.setdefault(name, []).append(found)
        return found

    @property
    def baselines(self) -> dict[str, float]:
        """Score [tokens/s] of each heuristic's best plan that fits, over all structures."""
        scores = {}
        for name, tried in self.tried.items():
            fitting = [f.evaluation for f in tried if f.evaluation.feasible]
            if fitting:
                scores[name] = max(fitting, key=self.value).score
        return scores

    def value(self, e: Evaluation) -> float:
        """The objective, reduced by the memory penalty."""
        if e.feasible:
            return self._raw(e)
        return 0.0 if self.hard else self._raw(e) * e.penalty

    def _raw(self, e: Evaluation) -> float:
        if self.objective == "throughput":
            return e.score
        return e.score * e.utilisation if e.score >= (1 - MAX_LOSS) * self.best_score else FLOOR

    def end_round(self) -> None:
        """Take over the best Score of the plans that fit, as the efficiency objective's yardstick."""
        if self._next_best_score > self.best_score:
            self.best_score = self._next_best_score
            if self.objective == "efficiency":
                self._choose_again()

    def _note(self, found: Found) -> None:
        e = found.evaluation
        if not e.feasible:
            if self.nearest is None or e.peak_bytes < self.nearest.evaluation.peak_bytes:
                self.nearest = found
            self._tell()
            return
        self._next_best_score = max(self._next_best_score, e.score)
        if self.best is None or self.value(e) > self.value(self.best.evaluation):
            self.best = found
            self._tell(improved=True)
        else:
            self._tell()
        elite = self._elite.setdefault(found.space.index, [])
        elite.append(found)
        if len(elite) > EVERY:
            self._trim(elite)

    def _trim(self, elite: list[Found]) -> None:
        elite.sort(key=lambda f: -self.value(f.evaluation))
        if self.objective == "throughput":
            del elite[ELITE:]

    def _choose_again(self) -> None:
        everything = [f for elite in self._elite.values() for f in elite]
        self.best = max(everything, key=lambda f: self.value(f.evaluation), default=None)

    def elite(self, space: Space) -> list[Found]:
        """The best plans that fit, of all structures with the same vertices."""
        for elite in self._elite.values():
            self._trim(elite)
        alike = [f for elite in self._elite.values() for f in elite if f.space.vertices == space.vertices]
        return sorted(alike, key=lambda f: -self.value(f.evaluation))[:ELITE]

    def runner_up(self, best: Found) -> Found | None:
        """The best plan that fits, of another structure than `best`'s if any has one, else of the same."""
        everything = [f for elite in self._elite.values() for f in elite if f is not best]
        others = [f for f in everything if f.space is not best.space]
        return max(others or everything, key=lambda f: self.value(f.evaluation), default=None)

    # Telling -----------------------------------------------------------------------------------------

    def _tell(self, *, improved: bool = False) -> None:
        watch = WATCH.get()
        if watch is None or watch.on_progress is None:
            return
        now = time.monotonic()
        if improved or now - self._told >= watch.interval:
            self._told = now
            watch.on_progress(self.progress())

    def progress(self) -> Progress:
        """A snapshot."""
        baselines = self.baselines
        return Progress(
            method=self.method,
            evaluations=self.evaluations,
            cache_hits=self.cache_hits,
            budget=self.budget,
            seconds=time.monotonic() - self._started,
            structure=self._current,
            structures=self.structures,
            best=0.0 if self.best is None else self.best.evaluation.score,
            greedy=baselines.get("greedy", 0.0),
            concurrent=baselines.get("concurrent", 0.0),
        )
