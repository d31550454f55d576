"""Simulated annealing over the plans of one structure (semantics: Search)."""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from passes.search.evaluator import Row, Rows
from passes.search.found import Figures, Pool
from passes.search.ledger import Ledger, OutOfBudget
from passes.search.space import Space

PROPOSALS = 6
PAIR_MOVES = 0.28
CRITICAL_MOVES = 0.6
REJECTIONS = 10
T_INIT = 0.01
T_WARM = 0.03
T_MIN = 1e-4
COOLING = 0.95
STALE_ROUNDS = 400

Change = tuple[int, int, int]
"""Vertex, its new shape number, its new first GPU."""


@dataclass(frozen=True)
class Switches:
    """What an ablation leaves out: pair moves (A4), warm restarts (A5), the critical path's say in which
    vertex moves (A6), constant temperature (A9)."""

    pair_moves: bool = True
    warm_restarts: bool = True
    critical_moves: bool = True
    constant_temperature: bool = True


class _Drawing:
    """One vertex's candidates as lists, to draw from."""

    def __init__(self, space: Space, vertex: int) -> None:
        options = space.options[vertex]
        self.shapes = [(n, s.gpus) for n, s in zip(options.numbers.tolist(), options.shapes, strict=True)]
        self.starts = {n: starts.tolist() for n, starts in options.starts.items()}
        self.sizes = options.sizes
        self._smaller: dict[int, list[tuple[int, int]]] = {}
        self.count = len(options)

    def any(self, rng: random.Random) -> tuple[int, int]:
        """A shape drawn uniformly, at a first GPU drawn uniformly."""
        number, n = self.shapes[int(rng.random() * len(self.shapes))]
        starts = self.starts[n]
        return number, starts[int(rng.random() * len(starts))]

    def inside(self, rng: random.Random, start: int, gpus: int) -> tuple[int, int]:
        """A shape of fewer than `gpus` GPUs, in the interval from `start` where it may lie there. There must
        be one."""
        if gpus not in self._smaller:
            self._smaller[gpus] = [s for s in self.shapes if s[1] < gpus]
        smaller = self._smaller[gpus]
        number, n = smaller[int(rng.random() * len(smaller))]
        starts = self.starts[n]
        inside = [s for s in starts if start <= s and s + n <= start + gpus] or starts
        return number, inside[int(rng.random() * len(inside))]


class Annealing:
    """Chains of rounds over one structure, until the ledger says stop or nothing new is proposed.

    Warm restarts are from the best plans of all structures with the same vertices, or, where it is given, of
    the pool `own`, which keeps what is found here.
    """

    def __init__(
        self,
        space: Space,
        ledger: Ledger,
        rng: random.Random,
        switches: Switches,
        own: Pool | None = None,
    ) -> None:
        self.space = space
        self.own = own
        self.ledger = ledger
        self.rng = rng
        self.switches = switches
        self.drawing = [_Drawing(space, v) for v in range(len(space.vertices))]
        self.movable = [v for v, d in enumerate(self.drawing) if d.count > 1]
        self._stale = 0
        self._weights: list[int] | None = None

    def run(self, start: Row) -> str:
        """Search from `start`. Returns why it ended: budget, time_limit, interrupted or exhausted."""
        if not self.movable:
            return "exhausted"
        try:
            row, temperature = start, T_INIT
            while self._stale < STALE_ROUNDS:
                self._chain(row, temperature)
                elite = self.ledger.elite(self.space) if self.own is None else self.own.found()
                if self.switches.warm_restarts and elite:
                    chosen = elite[self.rng.randrange(len(elite))]
                    row, temperature = self.space.evaluator.row(chosen.plan), T_WARM
                else:
                    row, temperature = start, T_INIT
        except OutOfBudget as stop:
            self.ledger.end_round()
            return stop.reason
        return "exhausted"

    def _chain(self, row: Row, temperature: float) -> None:
        current = self.ledger.evaluate(self.space, row[None])[0]
        own = self.space.evaluator.keys(row[None])
        self._weights = None
        rejected = 0
        while rejected < REJECTIONS and self._stale < STALE_ROUNDS:
            self.ledger.check()
            before = self.ledger.evaluations
            rows = np.repeat(row[None], PROPOSALS, axis=0)
            for new, changes in zip(rows, self._proposals(row), strict=True):
                for vertex, number, start in changes:
                    new[vertex] = number, start
            keys = self.space.evaluator.keys(rows)
            other = (keys != own).any(axis=1) & self.space.allows(rows)
            rejected += 1
            if other.any():
                rows, keys = rows[other], keys[other]
                figures = self.ledger.evaluate(self.space, rows, keys)
                self._keep(rows, figures)
                values = self.ledger.values(figures)
                i = int(values.argmax())
                if self._accept(float(self.ledger.values(current)), float(values[i]), temperature):
                    row, current, own = rows[i], figures[i], keys[i : i + 1]
                    self._weights = None
                    rejected = 0
            self.ledger.end_round()
            self._stale = 0 if self.ledger.evaluations > before else self._stale + 1
            if not self.switches.constant_temperature:
                temperature = max(T_MIN, COOLING * temperature)

    def _keep(self, rows: Rows, figures: Figures) -> None:
        if self.own is None:
            return
        kept = {tuple(f) for f in self.own.figures.tolist()}
        new = self.ledger.fits(figures) & [tuple(f) not in kept for f in figures.tolist()]
        if new.any():
            self.own.add(rows[new], figures[new], self.ledger.values)

    def _accept(self, s: float, new: float, temperature: float) -> bool:
        if new >= s:
            return True
        return self.rng.random() < math.exp((new - s) / (abs(s) * temperature))

    # Moves -------------------------------------------------------------------------------------------

    def _proposals(self, row: Row) -> list[Sequence[Change]]:
        if self.switches.pair_moves and self.rng.random() < PAIR_MOVES:
            proposals = self._pair_moves(row)
            if proposals is not None:
                return proposals
        vertex = self._vertex(row)
        drawing = self.drawing[vertex]
        return [((vertex, *drawing.any(self.rng)),) for _ in range(PROPOSALS)]

    def _vertex(self, row: Row) -> int:
        if self.switches.critical_moves and self.rng.random() < CRITICAL_MOVES:
            if self._weights is None:
                times = self.space.evaluator.critical_time(row)
                self._weights = [int(times[v]) for v in self.movable]
            if any(self._weights):
                return self.rng.choices(self.movable, self._weights)[0]
        return self.movable[self.rng.randrange(len(self.movable))]

    def _pair_moves(self, row: Row) -> list[Sequence[Change]] | None:
        """A donor shrinks inside its allocation, a receiver that overlaps it is drawn anew; None if there
        is no such pair."""
        sizes = self.space.guess.gpus(row[None])[0].tolist()
        starts = row[:, 1].tolist()
        donor = self.rng.choices(self.movable, [sizes[v] for v in self.movable])[0]
        start, gpus = starts[donor], sizes[donor]
        receivers = [
            v
            for v in self.movable
            if v != donor and starts[v] < start + gpus and start < starts[v] + sizes[v]
        ]
        drawing = self.drawing[donor]
        if not receivers or drawing.sizes[0] >= gpus:
            return None
        receiver = receivers[self.rng.randrange(len(receivers))]
        anew = self.drawing[receiver]
        return [
            (
                (donor, *drawing.inside(self.rng, start, gpus)),
                (receiver, *anew.any(self.rng)),
            )
            for _ in range(PROPOSALS)
        ]
