"""How long the vertices of many plans keep their GPUs busy: a bound on the makespan, and a guess at it.

In every plan a GPU is busy for at least K_eval times the operators placed on it. The busiest GPU of a row is
found at the beginning of some interval, because only there the number of operators on a GPU rises.
"""

import numpy as np
from numpy.typing import NDArray

from passes.search.evaluator import Evaluator, Rows


class Load:
    """Loads of one structure's rows. Times are kept by vertex and shape number, each asked for once."""

    def __init__(self, evaluator: Evaluator) -> None:
        self.evaluator = evaluator
        self.steps = evaluator.problem.options.steps
        names = {name: i for i, name in enumerate(evaluator.placed)}
        edges = evaluator.problem.graph.data_edges
        self._before = [
            [names[e.source] for e in edges if e.target == name and e.source in names]
            for name in evaluator.placed
        ]
        order = evaluator.analysis.order()
        placed = [names[v.name] for i in order if (v := evaluator.problem.graph.vertices[i]).name in names]
        self._order = placed
        self._overlap = 1 + min(evaluator.analysis.staleness.values(), default=0)
        empty = np.empty(0, dtype=np.int64)
        self._gpus = [empty for _ in names]
        self._least = [empty for _ in names]
        self._whole = [empty for _ in names]

    def gpus(self, rows: Rows) -> NDArray[np.int64]:
        """Numbers of GPUs of each vertex, (N, V)."""
        found = np.empty(rows.shape[:2], dtype=np.int64)
        for v in range(rows.shape[1]):
            numbers = rows[:, v, 0]
            if len(numbers) and numbers.max() >= len(self._gpus[v]):
                self._gpus[v] = self.evaluator.sizes(v)
            found[:, v] = self._gpus[v][numbers]
        return found

    def bound(self, rows: Rows) -> NDArray[np.int64]:
        """No schedule of the plan has a smaller makespan [ns], (N,)."""
        return self.steps * self._busiest(rows, self._times(rows, self._least, whole=False))

    def guess(self, rows: Rows) -> NDArray[np.int64]:
        """A makespan [ns] by which plans may be compared without being evaluated, (N,): the first step takes
        as long as its longest path, the others follow at the pace of the busiest GPU."""
        times = self._times(rows, self._whole, whole=True)
        finish = times.copy()
        for v in self._order:
            for u in self._before[v]:
                finish[:, v] = np.maximum(finish[:, v], finish[:, u] + times[:, v])
        return self.combined(self._busiest(rows, times), finish.max(axis=1))

    def combined(self, busiest: NDArray[np.int64], path: NDArray[np.int64]) -> NDArray[np.int64]:
        """The guess from the busiest GPU's time per step and the length of a step's longest path."""
        pace = np.maximum(busiest, path // self._overlap)
        found: NDArray[np.int64] = (self.steps - 1) * pace + path
        return found

    def _busiest(self, rows: Rows, times: NDArray[np.int64]) -> NDArray[np.int64]:
        first = rows[:, :, 1]
        end = first + self.gpus(rows)
        load = np.zeros(first.shape, dtype=np.int64)
        for u in range(rows.shape[1]):
            covers = (first[:, u, None] <= first) & (first < end[:, u, None])
            load += covers * times[:, u, None]
        found: NDArray[np.int64] = load.max(axis=1, initial=0)
        return found

    def _times(self, rows: Rows, known: list[NDArray[np.int64]], *, whole: bool) -> NDArray[np.int64]:
        ask = self.evaluator.operator_ns if whole else self.evaluator.least_ns
        found = np.empty(rows.shape[:2], dtype=np.int64)
        for v in range(rows.shape[1]):
            numbers = rows[:, v, 0]
            if len(numbers) and numbers.max() >= len(known[v]):
                more = np.full(len(self.evaluator.sizes(v)), -1, dtype=np.int64)
                more[: len(known[v])] = known[v]
                known[v] = more
            found[:, v] = known[v][numbers]
            missing = found[:, v] < 0
            if missing.any():
                for number in np.unique(numbers[missing]).tolist():
                    known[v][number] = ask(v, number)
                found[:, v] = known[v][numbers]
        return found
