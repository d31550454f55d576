"""The books of one search: what was evaluated, what it was worth, what is best, and when to stop.

Makespans, GPU-times and peaks are what is cached; the objective is applied when plans are compared. The
best Score so far enters the efficiency objective; it is taken over only between rounds, so that results do
not depend on the order of evaluation inside a round.
"""

import math
import time

import numpy as np
from numpy.typing import NDArray

from ir_schema.base import Objective
from passes.schedule import BETA_OOM, raw_score
from passes.search.evaluator import Row, Rows
from passes.search.found import ELITE, Figures, Found, Pool, Values
from passes.search.guess import NEVER
from passes.search.progress import WATCH, Improvement, Progress
from passes.search.space import Space

MAX_LOSS = 0.10
FLOOR = 1e-12
CHUNK = 256


class OutOfBudget(Exception):
    """No further evaluation is allowed. `reason` is `budget`, `time_limit` or `interrupted`."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Ledger:
    """See the module. All `spaces` are structures of one problem. `hard` rejects infeasible plans instead of
    penalising them (ablation A8); the time limit counts from `started` (time.monotonic(); None: now)."""

    def __init__(
        self,
        spaces: list[Space],
        *,
        method: str,
        objective: Objective,
        budget: int | None,
        time_limit: float | None,
        hard: bool = False,
        started: float | None = None,
    ) -> None:
        self.spaces = spaces
        self.method = method
        self.objective = objective
        self.budget = budget
        self.hard = hard
        self.evaluations = 0
        self.cache_hits = 0
        self.best: Found | None = None
        self.nearest: Found | None = None
        self.lower_bound_ns: int | None = None
        self.proven = False
        self.fastest_ns: int | None = None
        self.termination = "none"
        self.tried: dict[str, list[Found]] = {}
        self.best_score = 0.0
        self._next_best_score = 0.0
        self._allowed: int | None = None
        self._started = time.monotonic() if started is None else started
        self.time_limit = time_limit
        self._deadline = math.inf if time_limit is None else self._started + time_limit
        self._known: dict[int, dict[bytes, int]] = {s.index: {} for s in spaces}
        self._figures: Figures = np.empty((CHUNK, 3), dtype=np.int64)
        self._pools = {s.index: Pool(s, keep_front=objective == "efficiency") for s in spaces}
        self._told = self._started
        self._current = spaces[0].index
        problem, evaluator = spaces[0].problem, spaces[0].evaluator
        workload = problem.workload
        self._tokens = problem.options.steps * workload.sequences * workload.total_length
        self._gpus = evaluator.gpus
        self._limit = evaluator.limit_bytes

    # Limits ------------------------------------------------------------------------------------------

    def allow(self, evaluations: int | None, *, share_of_time: float = 1.0) -> None:
        """Allow so many further uncached evaluations (None: any) and this share of the remaining time."""
        self._allowed = None if evaluations is None else self.evaluations + evaluations
        if self.time_limit is not None:
            now = time.monotonic()
            left = self._started + self.time_limit - now
            self._deadline = now + max(0.0, left) * share_of_time

    def check(self) -> None:
        """Raises OutOfBudget if the search is to stop."""
        watch = WATCH.get()
        if watch is not None and watch.stop:
            raise OutOfBudget("interrupted")
        if time.monotonic() >= self._deadline:
            raise OutOfBudget("time_limit")

    @property
    def late(self) -> bool:
        """Whether the time limit is over."""
        return self.time_limit is not None and time.monotonic() >= self._started + self.time_limit

    @property
    def left(self) -> float:
        """Further uncached evaluations that are allowed."""
        return math.inf if self._allowed is None else self._allowed - self.evaluations

    # Evaluating --------------------------------------------------------------------------------------

    def evaluate(
        self, space: Space, rows: Rows, keys: NDArray[np.uint64] | None = None, *, free: bool = False
    ) -> Figures:
        """Figures of the plans `rows` of `space`, (N, 3), from the cache where they are there; `keys` are
        theirs if they are known already.

        Raises OutOfBudget when not all new evaluations are allowed, after those that are; `free` ones always
        are.
        """
        keys = space.evaluator.keys(rows) if keys is None else keys
        known, number = self._known[space.index], self.evaluations
        allowed = math.inf if free else self.left
        fresh: list[int] = []
        names: list[bytes] = []
        at: list[int] = []
        stopped: OutOfBudget | None = None
        text = keys.tobytes()
        for i in range(len(rows)):
            name = text[16 * i : 16 * i + 16]
            found = known.get(name)
            if found is None:
                if len(fresh) >= allowed:
                    stopped = OutOfBudget("budget")
                    break
                found = known[name] = number + len(fresh)
                fresh.append(i)
                names.append(name)
            at.append(found)
        self.cache_hits += len(at) - len(fresh)
        for start in range(0, len(fresh), CHUNK):
            if not free:
                try:
                    self.check()
                except OutOfBudget as stop:
                    stopped = stop
                    for name in names[start:]:
                        del known[name]
                    break
            self._run(space, rows[fresh[start : start + CHUNK]])
        if stopped is not None:
            raise stopped
        return self._figures[at]

    def _run(self, space: Space, rows: Rows) -> None:
        end = self.evaluations + len(rows)
        if end > len(self._figures):
            self._figures = np.concatenate([self._figures, np.empty_like(self._figures)])
        batch = space.evaluator.evaluate_rows(rows)
        figures = self._figures[self.evaluations : end]
        figures[:, 0], figures[:, 1], figures[:, 2] = batch.makespan_ns, batch.busy, batch.peak_bytes
        self.evaluations = end
        self._current = space.index
        self._note(space, rows, figures)

    def evaluate_one(self, space: Space, row: Row, *, free: bool = False) -> Found:
        """The plan `row`, evaluated as `evaluate` does."""
        makespan, busy, peak = self.evaluate(space, row[None], free=free)[0].tolist()
        return Found(space, row, (makespan, busy, peak))

    def baseline(self, name: str, space: Space, row: Row) -> Found:
        """Evaluate the plan of heuristic `name`, whatever the budget."""
        found = self.evaluate_one(space, row, free=True)
        self.tried.setdefault(name, []).append(found)
        return found

    @property
    def baselines(self) -> dict[str, Found]:
        """Each heuristic's best plan that fits, over all structures."""
        fitting = {name: [f for f in tried if f.evaluation.feasible] for name, tried in self.tried.items()}
        return {name: max(found, key=self.value) for name, found in fitting.items() if found}

    def fits(self, figures: Figures) -> NDArray[np.bool_]:
        """Which plans keep within M_eff."""
        fitting: NDArray[np.bool_] = figures[..., 2] <= self._limit
        return fitting

    def values(self, figures: Figures) -> Values:
        """The objective, reduced by the memory penalty."""
        makespan, busy, peak = figures[..., 0], figures[..., 1], figures[..., 2]
        seconds = np.maximum(makespan, 1) * 1e-9
        scores: Values = np.where(makespan > 0, self._tokens / seconds, 0.0)
        raw = scores
        if self.objective == "efficiency":
            weighted = scores * (busy / (self._gpus * np.maximum(makespan, 1)))
            raw = np.where(scores >= (1 - MAX_LOSS) * self.best_score, weighted, FLOOR)
        over = np.maximum(0.0, peak / self._limit - 1)
        penalty = 0.0 if self.hard else np.exp(-BETA_OOM * over)
        values: Values = np.where(over > 0, raw * penalty, raw)
        return values

    def value(self, found: Found) -> float:
        """`values` of one plan."""
        return float(self.values(np.array(found.figures)))

    def merit(self, found: Found) -> tuple[bool, float]:
        """Of two plans the one with more is preferred: one that fits, then one of higher value."""
        return found.evaluation.feasible, self.value(found)

    def ceiling(self, makespan_ns: NDArray[np.int64]) -> Values:
        """What a plan is worth at most whose makespan is at least this."""
        seconds = np.maximum(makespan_ns, 1) * 1e-9
        values: Values = np.where(makespan_ns > 0, self._tokens / seconds, math.inf)
        return values

    def may_be_better(self, makespan_ns: int) -> bool:
        """Whether a plan of this makespan could become the best."""
        if self.objective == "efficiency":
            return bool(self.ceiling(np.array(makespan_ns)) >= (1 - MAX_LOSS) * self.best_score)
        return self.fastest_ns is None or makespan_ns < self.fastest_ns

    def slowest(self, found: Found) -> int:
        """Plans of this makespan [ns] or more are worth no more than `found`."""
        value = self.value(found)
        slowest = math.ceil(self._tokens / value * 1e9 * (1 + 1e-12)) if value > 0 else NEVER
        return min(slowest, NEVER)

    def end_round(self) -> None:
        """Take over the best Score of the plans that fit, as the efficiency objective's yardstick."""
        if self._next_best_score > self.best_score:
            self.best_score = self._next_best_score
            if self.objective == "efficiency":
                kept = [f for space in self.spaces for f in self._kept(space)]
                self.best = max(kept, key=self.value, default=None)

    def _note(self, space: Space, rows: Rows, figures: Figures) -> None:
        fitting = np.flatnonzero(figures[:, 2] <= self._limit)
        improved = False
        if len(fitting):
            fastest = int(figures[fitting, 0].min())
            if self.fastest_ns is None or fastest < self.fastest_ns:
                self.fastest_ns = fastest
                self._next_best_score = raw_score(space.problem, fastest)
            improved = self._keep(space, rows[fitting], figures[fitting])
        if len(fitting) < len(rows):
            i = int(figures[:, 2].argmin()) if not len(fitting) else -1
            if i >= 0 and (self.nearest is None or figures[i, 2] < self.nearest.figures[2]):
                makespan, busy, peak = figures[i].tolist()
                self.nearest = Found(space, rows[i].copy(), (makespan, busy, peak))
        self._tell(improved=improved)

    def _keep(self, space: Space, rows: Rows, figures: Figures) -> bool:
        """Keep what is worth it of plans that fit. Returns whether the best one is among them."""
        pool = self._pools[space.index]
        if self.objective == "throughput" and len(pool.rows) >= ELITE:
            better = figures[:, 0] < pool.figures[-1, 0]
            if not better.any():
                return False
            rows, figures = rows[better], figures[better]
        values = self.values(figures)
        i = int(values.argmax())
        improved = self.best is None or values[i] > self.value(self.best)
        if improved:
            makespan, busy, peak = figures[i].tolist()
            self.best = Found(space, rows[i].copy(), (makespan, busy, peak))
        pool.add(rows, figures, self.values)
        return improved

    def _kept(self, space: Space) -> list[Found]:
        return self._pools[space.index].found()

    def elite(self, space: Space) -> list[Found]:
        """The best plans that fit, of all structures with the same vertices."""
        alike = [f for s in self.spaces if s.vertices == space.vertices for f in self._kept(s)]
        return sorted(alike, key=lambda f: -self.value(f))[:ELITE]

    def best_of(self, space: Space) -> Found | None:
        """The best plan of `space` that fits."""
        return max(self._kept(space), key=self.value, default=None)

    def others(self, best: Found) -> list[Found]:
        """The plans that were kept of every structure, all of which fit, without `best`."""
        kept = [f for s in self.spaces for f in self._kept(s)]
        return [f for f in kept if f.space is not best.space or (f.row != best.row).any()]

    def runner_up(self, best: Found) -> Found | None:
        """The best plan that fits, of another structure than `best`'s if any has one, else of the same."""
        others = self.others(best)
        elsewhere = [f for f in others if f.space is not best.space]
        return max(elsewhere or others, key=self.value, default=None)

    # Telling -----------------------------------------------------------------------------------------

    def _tell(self, *, improved: bool = False) -> None:
        watch = WATCH.get()
        if watch is None:
            return
        if improved and watch.on_improvement is not None:
            watch.on_improvement(self._improvement())
        now = time.monotonic()
        if watch.on_progress is not None and (improved or now - self._told >= watch.interval):
            self._told = now
            watch.on_progress(self.progress())

    @property
    def lower_bound_s(self) -> float | None:
        """The proven bound on the step time; None where nothing was proven."""
        if self.lower_bound_ns is None:
            return None
        return self.lower_bound_ns * 1e-9 / self.spaces[0].problem.options.steps

    def _improvement(self) -> Improvement:
        assert self.best is not None, "something improved"
        return Improvement(
            seconds=time.monotonic() - self._started,
            evaluations=self.evaluations,
            score=self.best.evaluation.score,
            value=self.value(self.best),
            step_s=self._step_s(self.best),
            structure=self.best.space.structure.describe(),
            plan=self.best.plan,
            lower_bound_s=self.lower_bound_s,
        )

    @staticmethod
    def _step_s(found: Found) -> float:
        return found.evaluation.makespan_ns * 1e-9 / found.space.problem.options.steps

    def progress(self) -> Progress:
        """A snapshot."""
        scores = {name: found.evaluation.score for name, found in self.baselines.items()}
        return Progress(
            method=self.method,
            evaluations=self.evaluations,
            cache_hits=self.cache_hits,
            budget=self.budget,
            seconds=time.monotonic() - self._started,
            structure=self._current,
            structures=len(self.spaces),
            best=0.0 if self.best is None else self.best.evaluation.score,
            greedy=scores.get("greedy", 0.0),
            concurrent=scores.get("concurrent", 0.0),
            time_limit=self.time_limit,
            step_s=None if self.best is None else self._step_s(self.best),
            lower_bound_s=self.lower_bound_s,
        )
