"""Method `auto`: the optimum where all plans can be looked at, else a systematic local search.

Every structure begins with the best of the heuristics' plans and of plans constructed from partitions of its
vertices. From these it descends: every vertex and every group that shares its GPUs is tried on every kind of
place, then pairs of them, until nothing improves the plan; kicked at random it descends again. Structures
compete: after every round the better half goes on with a larger share, and none goes on whose bound is no
better than the best plan found. The rest of the budget polishes the best plan over all candidates.
"""

import itertools
import random
from collections.abc import Sequence

import numpy as np

from passes.search.construct import Construction
from passes.search.evaluator import Row
from passes.search.exact import enumerable, enumerate_all, with_every_wave
from passes.search.ledger import CHUNK, Found, Ledger, OutOfBudget
from passes.search.neighbours import Neighbours
from passes.search.polish import best_of, polish
from passes.search.settings import Settings
from passes.search.space import Block, Space

CONSTRUCTIONS = 192
DESCENTS = 6
KICKS = 32
THRESHOLD = 0.01
STALE_KICKS = 30
ROUNDS = 3
POLISHING = 0.2


class Walk:
    """The local search in one structure. It can be interrupted and taken up again."""

    def __init__(self, space: Space, starts: Sequence[Found], ledger: Ledger, rng: random.Random) -> None:
        self.space = space
        self.ledger = ledger
        self.rng = rng
        self.neighbours = Neighbours(space)
        self.starts = list(starts)
        self.current: Found | None = None
        self.optimum: Found | None = None
        self.stale = 0
        self._seen: set[bytes] = set()

    def construct(self, count: int) -> None:
        """Evaluate `count` constructed plans; the best of the most promising partitions become starts."""
        found: dict[object, Found] = {}
        made = Construction(self.space).rows(count)
        rest = list(range(len(made)))
        for level in range(made[0][1].shape[0] if made else 0):
            rows = np.array([made[i][1][level] for i in rest]).reshape(-1, *self.starts_shape)
            figures = self.ledger.evaluate(self.space, rows)
            for i, row, (makespan, busy, peak) in zip(rest, rows, figures.tolist(), strict=True):
                plan = Found(self.space, row, (makespan, busy, peak))
                key = made[i][0]
                if key not in found or self.ledger.value(plan) > self.ledger.value(found[key]):
                    found[key] = plan
            rest = [i for i, fits in zip(rest, self.ledger.fits(figures), strict=True) if not fits]
            if not rest:
                break
        self.ledger.end_round()
        best = sorted(found.values(), key=lambda f: -self.ledger.value(f))[:DESCENTS]
        self.starts = sorted([*self.starts, *best], key=lambda f: -self.ledger.value(f))

    @property
    def starts_shape(self) -> tuple[int, int]:
        """Shape of a row."""
        return len(self.space.vertices), 2

    def start_from(self, row: Row) -> None:
        """Descend from this plan next."""
        self.starts.insert(0, self.ledger.evaluate_one(self.space, row))

    def run(self) -> str:
        """Search until the ledger says stop (OutOfBudget), or until kicks lead nowhere new."""
        while self.starts:
            self._take(self.starts[0])
            self.starts.pop(0)
        while self.stale < STALE_KICKS:
            assert self.optimum is not None, "there was a start"
            kicked = self._kicked(self.optimum)
            if kicked is None:
                self.stale += 1
                continue
            self._take(kicked)
        return "exhausted"

    def _take(self, start: Found) -> None:
        """Descend from `start`, or go on with the descent that was interrupted."""
        reached = self._descend(self.current or start)
        self.current = None
        better = self.optimum is None or self.ledger.value(reached) > self.ledger.value(self.optimum)
        if better:
            self.optimum = reached

    def _kicked(self, found: Found) -> Found | None:
        """The best of some plans near `found` that no descent has started from; None if there is none."""
        rows = self.neighbours.kicks(found.row, self.rng, KICKS)
        keys = self.space.evaluator.keys(rows)
        new = [i for i, key in enumerate(keys) if key.tobytes() not in self._seen]
        if not new:
            return None
        rows, keys = rows[new], keys[new]
        figures = self.ledger.evaluate(self.space, rows, keys)
        i = int(self.ledger.values(figures).argmax())
        self._seen.add(keys[i].tobytes())
        makespan, busy, peak = figures[i].tolist()
        return Found(self.space, rows[i], (makespan, busy, peak))

    def _descend(self, found: Found) -> Found:
        """The local optimum below `found`."""
        self.current = found
        while True:
            better = self._moved(found) or self._moved_pair(found)
            if better is None:
                return found
            self.current = found = better

    def _moved(self, found: Found) -> Found | None:
        """The plan after one pass over all groups; None if no move improves it."""
        before = found
        for block in self._by_weight(found, self.neighbours.groups(found.row)):
            better = best_of(self.ledger, found, self.neighbours.moves(found.row, block), eager=True)
            self.ledger.end_round()
            if better is not None:
                self.current = found = better
        return None if found is before else found

    def _moved_pair(self, found: Found) -> Found | None:
        """The plan after moving a pair of blocks; None if none of the promising moves improves it."""
        limit = self.ledger.slowest(found)
        for a, b in itertools.combinations(self._by_weight(found, self.space.blocks), 2):
            rows = self.neighbours.pairs(found.row, a, b, limit, CHUNK)
            better = best_of(self.ledger, found, rows, eager=True)
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
        self.ledger = ledger
        self.settings = settings
        self.walks = [
            Walk(space, found, ledger, random.Random(f"{settings.seed}/{space.index}"))
            for space, found in zip(spaces, starts, strict=True)
        ]

    def run(self) -> str:
        """Search. Returns why it ended: exhausted, budget, time_limit or interrupted."""
        try:
            if enumerable(self.spaces):
                return self._enumerate()
            return self._compete()
        except OutOfBudget as stop:
            self.ledger.end_round()
            return stop.reason

    def _enumerate(self) -> str:
        """A short search for something to compare with, then every plan."""
        for walk in self.walks:
            walk.construct(CONSTRUCTIONS)
        waving = [with_every_wave(space) for space in self.spaces]
        enumerate_all(waving if enumerable(waving) else self.spaces, self.ledger)
        self.ledger.proven = True
        return "exhausted"

    def _compete(self) -> str:
        budget = self.settings.evaluations
        walks = self.walks
        for walk in walks:
            self.ledger.allow(max(0, (budget - self.ledger.evaluations) // 4))
            walk.construct(CONSTRUCTIONS)
        for i in range(ROUNDS):
            rest = max(0, budget - self.ledger.evaluations)
            if i == 0:
                rest_for_polish = int(rest * POLISHING)
            share = (rest - rest_for_polish) // (ROUNDS - i) // len(walks)
            for j, walk in enumerate(walks):
                self._run(walk, share, 1 / (len(walks) - j) / (ROUNDS - i + 1))
            walks = self._better_half(walks)
        self.ledger.allow(max(0, budget - self.ledger.evaluations))
        best = self.ledger.best or self.ledger.nearest
        assert best is not None, "something was evaluated"
        winner = next(w for w in self.walks if w.space is best.space)
        polished = polish(self.ledger, winner.neighbours, best)
        winner.starts.insert(0, polished)
        winner.run()
        return "exhausted"

    def _run(self, walk: Walk, evaluations: int, share_of_time: float) -> None:
        """Let `walk` go on for so many evaluations. Raises OutOfBudget if the whole search is to stop."""
        self.ledger.allow(evaluations, share_of_time=share_of_time)
        try:
            best = self.ledger.best
            if (
                best is not None
                and best.space is not walk.space
                and best.space.vertices == walk.space.vertices
            ):
                walk.start_from(walk.space.evaluator.row(best.plan))
            walk.run()
        except OutOfBudget as stop:
            self.ledger.end_round()
            if stop.reason == "interrupted" or self.ledger.late:
                raise

    def _better_half(self, walks: list[Walk]) -> list[Walk]:
        def value(walk: Walk) -> float:
            best = self.ledger.best_of(walk.space)
            return 0.0 if best is None else self.ledger.value(best)

        return sorted(walks, key=lambda w: -value(w))[: -(-len(walks) // 2)]
