"""Plans made from scratch: the vertices in groups, each group on an interval of its own, side by side.

All partitions of the vertices into few groups are looked at, with all sizes of the groups that have room
beside each other. They are ranked by the guess of `Load` with the vertices of a group one after another, in
their fastest layouts; leaner layouts are tried where those do not fit in memory.
"""

import itertools
from collections.abc import Iterator, Sequence
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from passes.search.concurrent import levels
from passes.search.evaluator import Row, Rows
from passes.search.space import Block, Space

MOST_GROUPS = 4
MOST_UNITS = 7
MOST_SIZE_VECTORS = 20_000
NEVER = 1 << 50
LEANNESS = (0.0, 0.34, 0.67, 1.0)


class Construction:
    """Plans of one structure made from partitions."""

    def __init__(self, space: Space) -> None:
        self.space = space
        self.gpus = space.evaluator.gpus
        self.units = _units(space)
        options = space.options
        self.sizes = sorted(set().union(*(o.sizes for o in options)))
        depth = {v: i for i, level in enumerate(levels(space.problem)) for v in level}
        self.depths = sorted({depth[v] for v in space.vertices})
        self._depth = [self.depths.index(depth[v]) for v in space.vertices]
        self._fastest = np.full((len(options), len(self.sizes)), NEVER, dtype=np.int64)
        for v, o in enumerate(options):
            for n, numbers in o.front.items():
                time_ns = space.evaluator.operator_ns(v, int(numbers[0]))
                self._fastest[v, self.sizes.index(n)] = time_ns

    def rows(self, count: int) -> list[tuple[int, Rows]]:
        """For the `count` most promising choices of partition and sizes: a number that stands for the
        partition, and the plan from the fastest to the leanest layouts."""
        ranked: list[tuple[int, int, tuple[Block, ...], tuple[int, ...]]] = []
        for i, partition in enumerate(self._partitions()):
            vectors = self._size_vectors(len(partition))
            guesses = self._guess(partition, vectors)
            best = np.argsort(guesses, kind="stable")[: max(1, count // 8)]
            ranked += [
                (int(guesses[j]), i, partition, tuple(vectors[j].tolist()))
                for j in best
                if guesses[j] < NEVER
            ]
        ranked.sort(key=lambda x: x[:2])
        made = []
        for _, i, partition, vector in ranked:
            rows = self._placed(partition, [self.sizes[k] for k in vector])
            if rows is not None:
                made.append((i, rows))
            if len(made) == count:
                break
        return made

    def _partitions(self) -> Iterator[tuple[Block, ...]]:
        apart = {(u, v) for u, v, relation in self.space.relations if relation == "disjoint"}
        for groups in _set_partitions(len(self.units), MOST_GROUPS):
            partition = tuple(
                tuple(sorted(v for unit in group for v in self.units[unit])) for group in groups
            )
            if not any(pair in apart for g in partition for pair in itertools.combinations(g, 2)):
                yield partition

    def _size_vectors(self, groups: int) -> NDArray[np.int64]:
        """Indices of sizes of so many groups that have room beside each other, largest machines' small sizes
        left out, (M, groups)."""
        usable = list(range(len(self.sizes)))
        while len(usable) ** groups > MOST_SIZE_VECTORS:
            usable.pop(0)
        vectors = np.array(list(itertools.product(usable, repeat=groups)), dtype=np.int64)
        total = np.array(self.sizes)[vectors].sum(axis=1)
        fitting: NDArray[np.int64] = vectors[(total <= self.gpus) & (2 * total > self.gpus)]
        return fitting

    def _guess(self, partition: Sequence[Block], vectors: NDArray[np.int64]) -> NDArray[np.int64]:
        load = np.zeros(len(vectors), dtype=np.int64)
        by_depth = np.zeros((len(self.depths), len(vectors)), dtype=np.int64)
        for i, group in enumerate(partition):
            load = np.maximum(load, self._fastest[list(group)].sum(axis=0)[vectors[:, i]])
            for d in {self._depth[v] for v in group}:
                members = [v for v in group if self._depth[v] == d]
                by_depth[d] = np.maximum(by_depth[d], self._fastest[members].sum(axis=0)[vectors[:, i]])
        return self.space.load.combined(load, by_depth.sum(axis=0))

    def _placed(self, partition: Sequence[Block], sizes: Sequence[int]) -> Rows | None:
        """The plan in layouts from the fastest to the leanest, the groups side by side, the largest first;
        None if they find no room so."""
        row = np.zeros((len(self.space.vertices), 2), dtype=np.int64)
        taken: list[tuple[int, int]] = []
        for group, n in sorted(zip(partition, sizes, strict=True), key=lambda x: -x[1]):
            starts = reduce(np.intersect1d, [self.space.options[v].starts[n] for v in group])
            free = [s for s in starts.tolist() if all(s + n <= a or b <= s for a, b in taken)]
            if not free:
                return None
            taken.append((free[0], free[0] + n))
            row[list(group), 1] = free[0]
        size = {v: n for group, n in zip(partition, sizes, strict=True) for v in group}
        return np.array([self._leaner(row, size, x) for x in LEANNESS])

    def _leaner(self, row: Row, size: dict[int, int], share: float) -> Row:
        new = row.copy()
        for v, n in size.items():
            front = self.space.options[v].front[n]
            new[v, 0] = front[round(share * (len(front) - 1))]
        return new


def _units(space: Space) -> list[Block]:
    """The blocks of the space; where they are many, those of equal role and model, or of equal role, count as
    one."""
    vertices = {v.name: v for v in space.problem.graph.vertices}
    units = list(space.blocks)
    for alike in (lambda v: (v.role, v.model), lambda v: v.role):
        if len(units) <= MOST_UNITS:
            break
        merged: dict[object, list[int]] = {}
        for unit in units:
            key = alike(vertices[space.vertices[unit[0]]])
            merged.setdefault(key, []).extend(unit)
        units = [tuple(sorted(unit)) for unit in merged.values()]
    return units


def _set_partitions(count: int, most: int) -> Iterator[list[list[int]]]:
    """All partitions of 0..count-1 into at most `most` groups."""
    if count == 0:
        yield []
        return
    for groups in _set_partitions(count - 1, most):
        for i in range(len(groups)):
            yield [[*g, count - 1] if i == j else g for j, g in enumerate(groups)]
        if len(groups) < most:
            yield [*groups, [count - 1]]
