"""Method `auto`: the optimum where all plans can be looked at, else a search guided by guesses.

A guess at what a plan is worth costs a hundredth of an evaluation and is rarely far off. In every structure
plans are sketched by annealing the guess; the most promising are evaluated, and the best of them descend:
every vertex, every group that shares its GPUs and every pair is tried elsewhere, the promising changes are
evaluated and the best is made, until none improves the plan. Structures compete: after every round the better
half goes on with a larger share. As a guess may mislead, a part of the budget anneals without it, among plans
of its own. The rest polishes the best plans over all candidates.
"""

import itertools
import random
from collections.abc import Sequence

import numpy as np

from passes.search.annealing import Annealing, Switches
from passes.search.evaluator import Row, Rows
from passes.search.exact import enumerable, enumerate_all, with_waves
from passes.search.found import Found, Pool
from passes.search.ledger import Ledger, OutOfBudget
from passes.search.neighbours import Neighbours
from passes.search.polish import best_of, polish
from passes.search.proof import prove
from passes.search.settings import Settings
from passes.search.sketch import Sketch
from passes.search.space import Block, Space

SKETCHES = 8
SKETCHED = 128
DESCENTS = 2
PROMISING = 64
PATIENCE = 10_000
INSISTENCE = 4
ROUNDS = 3
ANNEALING = 0.4
POLISHING = 0.2
WORTH_POLISHING = 0.97


class Walk:
    """The search in one structure. It can be interrupted and taken up again."""

    def __init__(self, space: Space, starts: Sequence[Found], ledger: Ledger, settings: Settings) -> None:
        self.space = space
        self.ledger = ledger
        self.starts = list(starts)
        self.first = starts[0]
        self.rng = random.Random(f"{settings.seed}/{space.index}")
        self.neighbours = Neighbours(space)
        self.sketch = Sketch(space, settings.cores)
        self.suggested: list[Row] = []
        self.optimum: Found | None = None
        self.patience = max(3, min(60, settings.evaluations // PATIENCE))
        self._seen: set[bytes] = set()

    @property
    def fits(self) -> bool:
        """Whether a plan that fits in memory was found."""
        return self.optimum is not None and self.optimum.evaluation.feasible

    def start_from(self, found: Found) -> None:
        """Descend next from this plan of another structure, if it is made of candidates."""
        if found.space.vertices != self.space.vertices:
            return
        row = self.space.evaluator.row(found.plan)
        known = (row[v, 0] in o.numbers for v, o in enumerate(self.space.options))
        if all(known) and self.space.allows(row[None])[0]:
            self.starts.insert(0, self.ledger.evaluate_one(self.space, row))

    def run(self) -> str:
        """Search until the ledger says stop (OutOfBudget), or until sketches lead nowhere new."""
        stale = 0
        if self.optimum is not None:
            self._descend(self.optimum)
        while stale < self.patience * (1 if self.fits else INSISTENCE):
            before = self.optimum
            for found in [*self.starts[:DESCENTS], *self._sketched()]:
                self._descend(found)
            self.starts.clear()
            if self.suggested:
                rows = np.array(self.suggested)
                self.suggested = []
                self.starts += self._best(rows[self.space.allows(rows)], DESCENTS)
            stale = stale + 1 if self.optimum is before else 0
            if not self.fits:
                self.space.guess.be_stricter()
        return "exhausted"

    def _sketched(self) -> list[Found]:
        """The best of some plans sketched from the best plan so far, that no descent has come by."""
        best = self.optimum or self.starts[0]
        return self._best(self.sketch.rows(best.row, self.rng, SKETCHES, SKETCHED), DESCENTS)

    def _best(self, rows: Rows, count: int) -> list[Found]:
        keys = self.space.evaluator.keys(rows)
        figures = self.ledger.evaluate(self.space, rows, keys)
        self.ledger.end_round()
        chosen: list[Found] = []
        names: set[bytes] = set()
        for i in np.lexsort((-self.ledger.values(figures), ~self.ledger.fits(figures))):
            name = keys[i].tobytes()
            if name not in self._seen and name not in names:
                names.add(name)
                makespan, busy, peak = figures[i].tolist()
                chosen.append(Found(self.space, rows[i], (makespan, busy, peak)))
            if len(chosen) == count:
                break
        return chosen

    def _descend(self, found: Found) -> None:
        """Go from `found` to a local optimum, or to where an earlier descent has been."""
        better: Found | None = found
        while better is not None:
            found = better
            if self.optimum is None or self.ledger.merit(found) > self.ledger.merit(self.optimum):
                self.optimum = found
            name = self.space.evaluator.keys(found.row[None])[0].tobytes()
            if name in self._seen:
                return
            self._seen.add(name)
            try:
                better = self._moved(found) or self._moved_pair(found)
            except OutOfBudget:
                self._seen.discard(name)
                raise

    def _moved(self, found: Found) -> Found | None:
        """The plan after one pass over all groups; None if no move improves it."""
        before = found
        for block in self._by_weight(found, self.neighbours.groups(found.row)):
            rows = self.neighbours.moves(found.row, block)
            found = best_of(self.ledger, found, rows, PROMISING) or found
            self.ledger.end_round()
        return None if found is before else found

    def _moved_pair(self, found: Found) -> Found | None:
        """The plan after moving a pair of blocks; None if none of the promising moves improves it."""
        limit = self.ledger.slowest(found)
        for a, b in itertools.combinations(self._by_weight(found, self.space.blocks), 2):
            rows = self.neighbours.pairs(found.row, a, b, limit, PROMISING)
            better = best_of(self.ledger, found, rows, PROMISING)
            self.ledger.end_round()
            if better is not None:
                return better
        return None

    def _by_weight(self, found: Found, groups: Sequence[Block]) -> list[Block]:
        """Groups by their time on the critical path, the longest first."""
        times = self.space.evaluator.critical_time(found.row)
        return sorted(groups, key=lambda block: (-sum(int(times[v]) for v in block), block))


class Auto:
    """See the module."""

    def __init__(
        self, spaces: list[Space], starts: list[list[Found]], ledger: Ledger, settings: Settings
    ) -> None:
        self.spaces = spaces
        self.starts = starts
        self.ledger = ledger
        self.settings = settings

    def run(self) -> str:
        """Search. Returns why it ended: exhausted, budget, time_limit or interrupted."""
        try:
            if enumerable(self.spaces):
                enumerate_all(with_waves(self.spaces), self.ledger)
                self.ledger.lower_bound_ns = self.ledger.fastest_ns
                self.ledger.proven = True
                return "exhausted"
            return self._compete()
        except OutOfBudget as stop:
            self.ledger.end_round()
            return stop.reason

    def _compete(self) -> str:
        ledger, budget = self.ledger, self.settings.evaluations
        reserve = int((ANNEALING + POLISHING) * max(0, budget - ledger.evaluations))
        walks = [
            Walk(space, found, ledger, self.settings)
            for space, found in zip(self.spaces, self.starts, strict=True)
        ]
        everything = kept = list(walks)
        for i in range(ROUNDS):
            for j, walk in enumerate(walks):
                rest = max(0, budget - ledger.evaluations - reserve)
                waiting = len(walks) - j
                time_share = 1 / waiting / (ROUNDS - i + 2)
                self._run(walk, rest // waiting // (ROUNDS - i), time_share)
            if i == 0:
                walks = kept = self._bounded(walks)
            walks = self._better_half(walks)
            if not walks:
                break
        annealed = self._annealed(kept, int(POLISHING * budget)) if walks else []
        ledger.allow(max(0, budget - ledger.evaluations))
        best = ledger.best or ledger.nearest
        assert best is not None, "something was evaluated"
        if not walks and best.evaluation.feasible:
            ledger.proven = True
            return "exhausted"
        walk_of = {w.space.index: w for w in everything}
        worth = WORTH_POLISHING * ledger.value(best)
        others = [f for f in annealed if ledger.value(f) >= worth and (f.row != best.row).any()]
        polished = [polish(ledger, walk_of[f.space.index].neighbours, f) for f in (best, *others)]
        first = max(polished, key=ledger.merit)
        winner = walk_of[first.space.index]
        winner.starts.insert(0, first)
        return winner.run()

    def _annealed(self, walks: list[Walk], reserve: int) -> list[Found]:
        """The best plan of each structure that annealing finds among its own, with all but `reserve` of the
        budget; best first."""
        found: list[Found] = []
        for j, walk in enumerate(walks):
            waiting = len(walks) - j
            rest = max(0, self.settings.evaluations - self.ledger.evaluations - reserve)
            self.ledger.allow(rest // waiting, share_of_time=1 / (waiting + 1))
            rng = random.Random(f"{self.settings.seed}/annealing/{walk.space.index}")
            own = Pool(walk.space, keep_front=False)
            reason = Annealing(walk.space, self.ledger, rng, Switches(), own).run(walk.first.row)
            if reason == "interrupted" or self.ledger.late:
                raise OutOfBudget(reason)
            found += own.found()[:1]
        return sorted(found, key=lambda f: -self.ledger.value(f))

    def _run(self, walk: Walk, evaluations: int, share_of_time: float) -> None:
        """Let `walk` go on for so many evaluations. Raises OutOfBudget if the whole search is to stop."""
        self.ledger.allow(evaluations, share_of_time=share_of_time)
        try:
            best = self.ledger.best
            if best is not None and best.space is not walk.space:
                walk.start_from(best)
            walk.run()
        except OutOfBudget as stop:
            self.ledger.end_round()
            if stop.reason == "interrupted" or self.ledger.late:
                raise

    def _bounded(self, walks: list[Walk]) -> list[Walk]:
        """Those of `walks` in whose structures there may be a plan better than the best one found; the plans
        that come closest to their bounds are their next starts."""
        self.ledger.allow(None)
        given = {space.index: found for space, found in zip(self.spaces, self.starts, strict=True)}
        bounds = prove(self.spaces, given, self.ledger)
        kept = [w for w in walks if w.space.index in bounds]
        kept = [w for w in kept if self.ledger.may_be_better(bounds[w.space.index].makespan_ns)]
        for walk in kept:
            walk.suggested = [walk.space.evaluator.row(p) for p in bounds[walk.space.index].plans]
        return kept

    def _better_half(self, walks: list[Walk]) -> list[Walk]:
        def value(walk: Walk) -> float:
            best = self.ledger.best_of(walk.space)
            return 0.0 if best is None else self.ledger.value(best)

        return sorted(walks, key=lambda w: -value(w))[: -(-len(walks) // 2)]
