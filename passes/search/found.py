"""Evaluated plans, and those of a structure that are worth keeping."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from passes.schedule import raw_score
from passes.search.evaluator import Evaluation, Row, Rows
from passes.search.space import Space
from passes.structure import Plan

ELITE = 3

Figures = NDArray[np.int64]
"""Makespan [ns], reserved GPU-time [GPU ns] and peak [bytes] of plans, (N, 3)."""

Values = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Found:
    """An evaluated plan of a structure: its row, and its makespan [ns], reserved GPU-time [GPU ns] and
    peak [bytes]."""

    space: Space
    row: Row
    figures: tuple[int, int, int]

    @property
    def plan(self) -> Plan:
        """The plan."""
        return self.space.evaluator.plan(self.row)

    @cached_property
    def evaluation(self) -> Evaluation:
        """What the figures mean."""
        makespan, busy, peak = self.figures
        evaluator = self.space.evaluator
        return Evaluation(
            makespan_ns=makespan,
            score=raw_score(self.space.problem, makespan),
            utilisation=busy / (evaluator.gpus * makespan) if makespan else 0.0,
            peak_bytes=peak,
            limit_bytes=evaluator.limit_bytes,
        )


class Pool:
    """The `ELITE` best plans of `space` that fit, and with `keep_front` all that may be best when another
    Score is the best."""

    def __init__(self, space: Space, *, keep_front: bool) -> None:
        self.space = space
        self.keep_front = keep_front
        self.rows: Rows = np.empty((0, len(space.vertices), 2), dtype=np.int64)
        self.figures: Figures = np.empty((0, 3), dtype=np.int64)

    def add(self, rows: Rows, figures: Figures, values: Callable[[Figures], Values]) -> None:
        """Add plans; `values` says what figures are worth."""
        rows, figures = np.concatenate([self.rows, rows]), np.concatenate([self.figures, figures])
        order = np.argsort(-values(figures), kind="stable")
        kept = order[:ELITE]
        if self.keep_front:
            kept = order[np.isin(order, kept) | np.isin(order, _front(figures))]
        self.rows, self.figures = rows[kept], figures[kept]

    def found(self) -> list[Found]:
        """The plans."""
        figures = [(m, b, p) for m, b, p in self.figures.tolist()]
        return [Found(self.space, row, f) for row, f in zip(self.rows, figures, strict=True)]


def _front(figures: Figures) -> NDArray[np.int64]:
    """Plans than which none is at least as fast and has more of the product of Score and utilisation, which
    rises with busy / makespan^2; fastest first."""
    weighted = figures[:, 1] / np.maximum(figures[:, 0], 1).astype(float) ** 2
    order = np.lexsort((-weighted, figures[:, 0]))
    best = np.maximum.accumulate(weighted[order])
    rising = np.concatenate([[True], best[1:] > best[:-1]])
    front: NDArray[np.int64] = order[rising]
    return front
