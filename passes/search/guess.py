"""Guesses at plans of one structure, by `passes.fast.guessing`: which are worth evaluating."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ir_schema.base import Objective
from passes.fast import guessing
from passes.fast.guessing import NEVER, Moves, Shapes, Terms
from passes.fast.regions import WEIGHTS
from passes.search.evaluator import Evaluator, Row, Rows

__all__ = ["NEVER", "Guess"]

KEPT = 1024
STRICTER = 4.0

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


class Guess:
    """Bounds and guesses of rows. What is known of shapes is kept by vertex and shape number."""

    def __init__(self, evaluator: Evaluator, objective: Objective) -> None:
        self.evaluator = evaluator
        names = {name: i for i, name in enumerate(evaluator.placed)}
        graph, staleness = evaluator.problem.graph, evaluator.analysis.staleness
        before = np.zeros((len(names), len(names)), dtype=bool)
        analysis = evaluator.analysis
        for u, v in [*((e.source, e.target) for e in graph.data_edges), *analysis.overwrite_edges]:
            if u in names and v in names:
                before[names[u], names[v]] = True
        model = {v.name: v.model or "" for v in graph.vertices}
        cycles = [
            (names[u], names[t], 1 + staleness[model[u]]) for u, t in analysis.overwrite_edges if u in names
        ]
        order = [graph.vertices[i].name for i in evaluator.analysis.order()]
        self._vertices = [v for v in graph.vertices if v.name in names]
        serves = [v.role != "training" and v.model in staleness for v in self._vertices]
        self._megatron = evaluator.engine.contents.megatron
        trainer = evaluator.engine.contents.trainer
        self._terms = Terms(
            order=np.array([names[v] for v in order if v in names], dtype=np.int64),
            before=before,
            steps=evaluator.problem.options.steps,
            window=2 + analysis.max_staleness,
            cycles=np.array(cycles, dtype=np.int64).reshape(-1, 3),
            limit=evaluator.limit_bytes,
            strictness=1.0,
            guests=np.array(
                [s and staleness[v.model or ""] == 0 for s, v in zip(serves, self._vertices, strict=True)]
            ),
            trainer=np.where(np.array(serves) & (not self._megatron), trainer, -1),
            efficiency=objective == "efficiency",
            gpus=evaluator.gpus,
        )
        none = np.empty((len(names), 0), dtype=np.int64)
        self._shapes = Shapes(none, none, none, *[none.astype(float)] * 3)

    def gpus(self, rows: Rows) -> Ints:
        """Numbers of GPUs of each vertex, (N, V)."""
        self._extend(rows)
        found: Ints = self._shapes.gpus[np.arange(rows.shape[1]), rows[:, :, 0]]
        return found

    def judge(self, rows: Rows) -> tuple[Ints, Floats]:
        """A makespan [ns] that no schedule of the plan is below, (N,), and a guess by which plans may be
        compared without being evaluated, (N,): the lower, the better."""
        bound, guess = np.empty(len(rows), dtype=np.int64), np.empty(len(rows))
        self._extend(rows)
        if not guessing.judge(self._shapes, self._terms, rows, bound, guess):
            self._ask(rows)
            guessing.judge(self._shapes, self._terms, rows, bound, guess)
        return bound, guess

    def judge_pairs(self, left: Rows, right: Rows, moved: tuple[int, ...], limit_ns: int) -> Floats:
        """Guesses for every row of `left` with the vertices `moved` as in every row of `right`, (L, R);
        `NEVER` where the bound is not below `limit_ns`."""
        guess = np.empty((len(left), len(right)))
        columns = np.array(moved, dtype=np.int64)
        for rows in (left, right):
            self._extend(rows)
        if not guessing.judge_pairs(self._shapes, self._terms, left, right, columns, limit_ns, guess):
            for rows in (left, right):
                self._ask(rows)
            guessing.judge_pairs(self._shapes, self._terms, left, right, columns, limit_ns, guess)
        return guess

    def anneal(self, moves: Moves, start: Row, seed: int, rounds: int, temperature: float) -> Rows:
        """Rows with low guesses that annealing from `start` comes by, the lowest first, each once."""
        self._extend(start[None])
        self._ask(start[None])
        kept, guess = np.empty((KEPT, *start.shape), dtype=np.int64), np.empty(KEPT)
        count = guessing.anneal(
            self._shapes, self._terms, moves, start, seed, rounds, temperature, kept, guess
        )
        order = np.argsort(guess[:count], kind="stable")
        found: Rows = kept[order]
        return found

    def be_stricter(self) -> None:
        """From now on let missing memory weigh more."""
        self._terms = self._terms._replace(strictness=STRICTER * self._terms.strictness)

    def know(self, fronts: list[dict[int, Ints]]) -> None:
        """Ask for everything about these shapes, by vertex and size."""
        for v, front in enumerate(fronts):
            for numbers in front.values():
                rows = np.zeros((len(numbers), len(fronts), 2), dtype=np.int64)
                rows[:, v, 0] = numbers
                self._extend(rows)
                self._ask_of(v, numbers)

    def _extend(self, rows: Rows) -> None:
        """Make room for the shapes of `rows`."""
        known = self._shapes.gpus.shape[1]
        if not len(rows) or rows[:, :, 0].max() < known:
            return
        sizes = [self.evaluator.sizes(v) for v in range(rows.shape[1])]
        most = max(map(len, sizes))
        gpus = np.zeros((len(sizes), most), dtype=np.int64)
        for v, found in enumerate(sizes):
            gpus[v, : len(found)] = found

        tables: dict[str, Any] = {}
        for name, old in self._shapes._asdict().items():
            tables[name] = np.full(gpus.shape, -1, dtype=old.dtype)
            tables[name][:, :known] = old
        self._shapes = Shapes(**tables | {"gpus": gpus})

    def _ask(self, rows: Rows) -> None:
        """Ask for everything about the shapes of `rows`."""
        for v in range(rows.shape[1]):
            self._ask_of(v, np.unique(rows[:, v, 0]))

    def _ask_of(self, v: int, numbers: Ints) -> None:
        evaluator, shapes = self.evaluator, self._shapes
        for number in numbers.tolist():
            if shapes.whole[v, number] >= 0:
                continue
            shapes.least[v, number] = evaluator.least_ns(v, number)
            shapes.whole[v, number] = evaluator.operator_ns(v, number)
            stays, comes = self.memory(v, number) or (0.0, 0.0)
            shapes.stays[v, number], shapes.comes[v, number] = stays, comes
            shapes.alone[v, number] = comes + self._weights(v, number)

    def memory(self, v: int, number: int) -> tuple[float, float] | None:
        """Bytes of a shape that stay on a GPU, and that come and go beside them; None if they are not known
        apart."""
        if not self.evaluator.engine.closed:
            return None
        vertex, placement = self._vertices[v], self.evaluator.engine.placements[v][number]
        parts = self.evaluator.model.shape_bytes(vertex, placement)
        comes = sum(parts.transient)
        if vertex.role == "training":
            return sum(parts.state), comes
        return parts.copies, comes if self._megatron else comes - parts.transient[WEIGHTS]

    def _weights(self, v: int, number: int) -> float:
        """Bytes of weights that come with an operator where none stay."""
        if not self.evaluator.engine.closed or self._vertices[v].role == "training":
            return 0.0
        placement = self.evaluator.engine.placements[v][number]
        parts = self.evaluator.model.shape_bytes(self._vertices[v], placement)
        return parts.weights if self._megatron else parts.transient[WEIGHTS]
