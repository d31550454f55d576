"""Lower bounds on the makespan of partial plans, many at once (`docs/bound.md` has the arguments).

N partial plans of V vertices are arrays: `choice` (N, V, COLUMNS), an open vertex having the least of its
choices in every column; `kinds` (N, P, V), which vertices meet on each of P kinds of GPUs; `count` (N, P).
All times are in ns.
"""

from collections import defaultdict

import numpy as np
from numpy.typing import NDArray

from ir_schema.stages import Configuration
from passes.analysis import Analysis, kahn
from passes.search.bound_choices import (
    FIRST,
    GPUS,
    GRID,
    HELD,
    LARGEST,
    LAST,
    LOAD,
    PLACE,
    TIME,
    TRANSIENT,
    Ints,
)
from passes.unroll import unroll

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]
BISECTIONS = 14


class Times:
    """The graph of one structure over its K_eval steps, and its bounds.

    `choices` are those of every vertex; `covered` the GPUs of footprints by number; `splits` says whether
    operators may run in phases.
    """

    def __init__(
        self, analysis: Analysis, choices: list[Ints], covered: list[int], gpus: int, *, splits: bool
    ) -> None:
        problem = analysis.problem
        self.choices = choices
        self.covered = np.array(covered, dtype=np.int64)
        self.gpus = gpus
        self.steps = problem.options.steps
        self.roles = [v.role for v in problem.graph.vertices]
        self.models = [v.model for v in problem.graph.vertices]
        self.placed = [i for i, m in enumerate(self.models) if m is not None]
        self.work = [_work_by_time(c) for c in choices]
        self._edges(analysis, splits)

    # The graph ---------------------------------------------------------------------------------------

    def _edges(self, analysis: Analysis, splits: bool) -> None:
        """Edges inside a step, (u, v, phase by phase), and between steps, by step: (u, distance, v)."""
        inner: set[tuple[int, int, bool]] = set()
        self.between: dict[int, set[tuple[int, int, int]]] = defaultdict(set)
        unrolled = unroll(Configuration(problem=analysis.problem, plan={}))
        for e in unrolled.edges:
            source, target = unrolled.vertices[e.source], unrolled.vertices[e.target]
            u, v = source.vertex_index, target.vertex_index
            if source.step == target.step:
                phased = splits and e.kind == "data" and self.roles[u] == "generation" and self._splits(v)
                inner.add((u, v, phased))
            else:
                self.between[target.step].add((u, target.step - source.step, v))
        if not analysis.problem.options.as_printed:
            for read in analysis.implied_reads:
                u, v = analysis.index[read.source], analysis.index[read.target]
                inner.add((u, v, splits and self._splits(u) and self._splits(v)))
        count = len(self.roles)
        order = kahn(count, [(u, v) for u, v, _ in inner])
        assert order is not None, "a step of an accepted graph is acyclic"
        self.order = order
        self.before = [[(u, phased) for u, x, phased in sorted(inner) if x == v] for v in range(count)]
        self.after = [[(x, phased) for u, x, phased in sorted(inner) if u == v] for v in range(count)]
        self.ancestors = np.zeros((count, count), dtype=bool)
        for v in order:
            for u, _ in self.before[v]:
                self.ancestors[v] |= self.ancestors[u]
                self.ancestors[v, u] = True

    def _splits(self, vertex: int) -> bool:
        return self.roles[vertex] != "training"

    # Memory ------------------------------------------------------------------------------------------

    def fits(self, choice: Ints, kinds: Bools) -> Bools:
        """Whether what the vertices that meet need at least fits on every kind of GPU, (N,)."""
        held = np.where(kinds, choice[:, None, :, HELD], 0)
        need = np.where(kinds, choice[:, None, :, TRANSIENT], 0).max(axis=2)
        for model in {m for m in self.models if m is not None}:
            for training in (True, False):
                mine = [
                    i
                    for i, (m, r) in enumerate(zip(self.models, self.roles, strict=True))
                    if m == model and (r == "training") == training
                ]
                if mine:
                    need = need + held[:, :, mine].max(axis=2)
        fitting: Bools = (need <= GRID).all(axis=1)
        return fitting

    # Time --------------------------------------------------------------------------------------------

    def bounds(self, choice: Ints, kinds: Bools, count: Ints, open_: list[int]) -> Ints:
        """What the makespan of no completion of each partial plan stays below, (N,).
        `open_` are the vertices that are not placed yet."""
        met = kinds.astype(np.int64)
        apart = np.einsum("npu,npv->nuv", met, met) == 0
        tail = self._tails(choice, apart)
        head, path = self._heads(choice, apart, met, open_, tail)
        best = path
        load = self.steps * choice[:, :, LOAD]
        for v in self.placed:
            best = np.maximum(best, head[:, v] + load[:, v] + tail[:, v])
        best = np.maximum(best, self._busiest(head, tail, load, kinds, met))
        return self._area(choice, kinds, count, open_, head, tail, best)

    def _tails(self, choice: Ints, apart: Bools) -> Ints:
        """Least time from a vertex's end to that of its step, (N, V)."""
        tail: Ints = np.zeros(choice.shape[:2], dtype=np.int64)
        rest = tail.copy()
        for v in reversed(self.order):
            length = choice[:, v, TIME]
            for x, phased in self.after[v]:
                if phased:
                    loose = apart[:, v, x]
                    last = np.where(loose, choice[:, x, LAST] + tail[:, x], rest[:, x])
                    tail[:, v] = np.maximum(tail[:, v], last)
                    rest[:, v] = np.maximum(rest[:, v], np.where(loose, choice[:, v, FIRST] + rest[:, x], 0))
                else:
                    tail[:, v] = np.maximum(tail[:, v], rest[:, x])
            rest[:, v] = np.maximum(rest[:, v], length + tail[:, v])
        return tail

    def _heads(
        self, choice: Ints, apart: Bools, met: Ints, open_: list[int], tail: Ints
    ) -> tuple[Ints, Ints]:
        """Earliest starts of step 0, (N, V), and the longest path through all steps, (N,)."""
        work = choice[:, :, LOAD].astype(np.float64) * choice[:, :, GPUS]
        for v in open_:
            work[:, v] = self.work[v][1][-1]
        starts: list[Ints] = []
        ends: list[Ints] = []
        for k in range(self.steps):
            start, end = np.zeros((2, *choice.shape[:2]), dtype=np.int64)
            starts.append(start)
            ends.append(end)
            for u, distance, v in self.between[k]:
                start[:, v] = np.maximum(start[:, v], ends[k - distance][:, u])
            for v in self.order:
                for u, phased in self.before[v]:
                    if phased:
                        loose = apart[:, u, v]
                        begin = np.where(loose, start[:, u] + choice[:, u, FIRST], end[:, u])
                        start[:, v] = np.maximum(start[:, v], begin)
                        end[:, v] = np.maximum(end[:, v], end[:, u] + choice[:, v, LAST])
                    else:
                        start[:, v] = np.maximum(start[:, v], end[:, u])
                if self.roles[v] == "training" and self.before[v]:
                    self._wait_for_ancestors(v, start, choice, met, work)
                end[:, v] = np.maximum(end[:, v], start[:, v] + choice[:, v, TIME])
        path: Ints = (ends[-1] + tail).max(axis=1)
        return starts[0], path

    def _wait_for_ancestors(self, v: int, start: Ints, choice: Ints, met: Ints, work: Floats) -> None:
        """A training vertex starts after all work of its ancestors that start as late as one of them."""
        early = np.flatnonzero(self.ancestors[v])
        since = start[:, early]
        late = self.ancestors[v] & (start[:, None, :] >= since[:, :, None])
        loads = np.where(late, choice[:, None, :, LOAD], 0)
        here = (met @ loads.transpose(0, 2, 1)).max(axis=1)
        spread = np.where(late, work[:, None, :], 0.0).sum(axis=2) / self.gpus
        waits = since + np.maximum(here, _down(spread))
        start[:, v] = np.maximum(start[:, v], waits.max(axis=1))

    def _busiest(self, head: Ints, tail: Ints, load: Ints, kinds: Bools, met: Ints) -> Ints:
        """The work of vertices that meet, after the earliest start and before the least tail of any: of those
        with no earlier start than one of them, and of those with no shorter tail."""
        best = np.zeros(len(head), dtype=np.int64)
        for before, after in ((head, tail), (tail, head)):
            chosen = before[:, None, :] >= before[:, :, None]
            total = met @ np.where(chosen, load[:, None, :], 0).transpose(0, 2, 1)
            here = kinds[:, :, None, :] & chosen[:, None, :, :]
            rest = np.where(here, after[:, None, None, :], LARGEST).min(axis=3)
            bound = np.where(here.any(axis=3), before[:, None, :] + total + rest, 0)
            best = np.maximum(best, bound.max(axis=(1, 2)))
        return best

    def _area(
        self, choice: Ints, kinds: Bools, count: Ints, open_: list[int], head: Ints, tail: Ints, best: Ints
    ) -> Ints:
        """All work, and the time at the ends in which a GPU has none, fit into GPUs times makespan."""
        loose = choice[:, :, GPUS] - self.covered[choice[:, :, PLACE]]
        loose[:, [v for v in range(len(self.roles)) if v not in self.placed]] = 0
        loose[:, open_] = 0
        anywhere = loose > 0
        anywhere[:, open_] = True
        may = kinds | anywhere[:, None, :]
        idle = np.where(may, head[:, None, :], LARGEST).min(axis=2)
        idle += np.where(may, tail[:, None, :], LARGEST).min(axis=2)
        idle[~may.any(axis=2)] = 0
        load = choice[:, :, LOAD].astype(np.float64)
        busy = self.steps * (np.where(kinds, load[:, None, :], 0.0).sum(axis=2) * count).sum(axis=1)
        known = busy + (idle.astype(np.float64) * count).sum(axis=1)
        known = (known + self.steps * (load * loose).sum(axis=1)) / self.gpus

        def needed(makespan: Floats) -> Floats:
            total: Floats = known.copy()
            for v in open_:
                longest, work = self.work[v]
                each = (makespan - head[:, v] - tail[:, v]) / self.steps
                total += self.steps * work[np.searchsorted(longest, each, side="right")] / self.gpus
            return total

        low = best.astype(np.float64)
        high = low
        for v in open_:
            high = np.maximum(high, head[:, v] + tail[:, v] + self.steps * (self.work[v][0][0] + 1.0))
        high = np.maximum(high, needed(high))
        short = needed(low) > low
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            more = needed(middle) > middle
            low, high = np.where(more, middle, low), np.where(more, high, middle)
        return np.where(short, np.maximum(best, _down(low)), best)


def _work_by_time(choices: Ints) -> tuple[Ints, Floats]:
    """Loads in ascending order, and the least work [GPU ns] of choices with less than each load, then of all:
    infinite, of the first, of the first two, and so on."""
    order = np.argsort(choices[:, LOAD], kind="stable")
    load = choices[order, LOAD]
    work = np.minimum.accumulate(load.astype(np.float64) * choices[order, GPUS])
    return load, np.concatenate([[np.inf], work])


def _down(ns: Floats) -> Ints:
    """Whole ns, less what float arithmetic may have added."""
    whole: Ints = np.floor(ns * (1 - 1e-9)).astype(np.int64)
    return whole
