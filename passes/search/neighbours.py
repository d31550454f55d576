"""Neighbours of a plan: one vertex placed anew, a group moved together, two groups at once, some at random.

On a homogeneous machine most places are alike. Of all intervals for a group of vertices only one of each
kind is looked at: two are of a kind if the group's canonical keys agree. Shapes are those of the front
(`Candidates.front`), and those in the layout of another vertex of the same model, which saves moving weights.
"""

import itertools
import random
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ir_schema.problem import Layout
from passes.search.candidates import Candidates
from passes.search.evaluator import Row, Rows
from passes.search.space import Block, Space

VARIANTS = 3
MOST_PAIRS = 4000
MOST_PLACES = 20_000

Places = NDArray[np.int64]


class Neighbours:
    """Neighbourhoods of one structure's rows."""

    def __init__(self, space: Space) -> None:
        self.space = space
        vertices = {v.name: v for v in space.problem.graph.vertices}
        model = [vertices[v].model for v in space.vertices]
        self._kin = [
            [u for u in range(len(model)) if u != v and model[u] == model[v]] for v in range(len(model))
        ]
        self._known: dict[object, Places] = {}
        self._layout = {
            (v, number): shape.placement.layout
            for v, options in enumerate(space.options)
            for shape, number in zip(options.shapes, options.numbers.tolist(), strict=True)
        }
        self._alike = [_by_layout(options) for options in space.options]

    # Places ------------------------------------------------------------------------------------------

    def places(self, row: Row, block: Block) -> Places:
        """(number of GPUs, first GPU) of the intervals that all of `block` may take, one of each kind."""
        others = [v for v in range(len(row)) if v not in block]
        gpus = self.space.load.gpus(row[None])[0]
        key = (block, row[others, 1].tobytes(), gpus[others].tobytes())
        known = self._known.get(key)
        if known is None:
            if len(self._known) >= MOST_PLACES:
                self._known.clear()
            known = self._known[key] = self._places(row, block)
        return known

    def _places(self, row: Row, block: Block) -> Places:
        options = [self.space.options[v] for v in block]
        sizes = [n for n in options[0].sizes if all(n in o.front for o in options)]
        found, rows = [], []
        for n in sizes:
            starts = options[0].starts[n]
            for o in options[1:]:
                starts = np.intersect1d(starts, o.starts[n])
            found.append(np.stack([np.full(len(starts), n), starts], axis=1))
            made = np.repeat(row[None], len(starts), axis=0)
            for v, o in zip(block, options, strict=True):
                made[:, v, 0] = o.front[n][0]
                made[:, v, 1] = starts
            rows.append(made)
        if not rows:
            return np.empty((0, 2), dtype=np.int64)
        keys = self.space.evaluator.keys(np.concatenate(rows))
        _, first = np.unique(keys[:, 0], return_index=True)
        return np.concatenate(found)[np.sort(first)]

    # Neighbourhoods ----------------------------------------------------------------------------------

    def groups(self, row: Row) -> list[Block]:
        """What may be moved together: every block alone, and blocks that share an allocation, all or two."""
        blocks = self.space.blocks
        gpus = self.space.load.gpus(row[None])[0].tolist()
        shared: dict[tuple[int, int], list[Block]] = {}
        for block in blocks:
            shared.setdefault((int(row[block[0], 1]), gpus[block[0]]), []).append(block)
        found = list(blocks)
        for together in shared.values():
            if len(together) > 1:
                found.append(_union(together))
            if len(together) > 2:
                found += [_union(pair) for pair in itertools.combinations(together, 2)]
        return found

    def moves(self, row: Row, block: Block) -> Rows:
        """`block` on every place in every choice of shapes, and each of its vertices in another shape where
        it is. Rows that the decision space excludes are left out."""
        found = [self._reshaped(row, v) for v in block] if len(block) > 1 else []
        for n, start in self.places(row, block).tolist():
            found.append(self._placed(row, block, n, start))
        return self._allowed(np.concatenate(found)) if found else row[None][:0]

    def _placed(self, row: Row, block: Block, n: int, start: int) -> Rows:
        chosen = [self.shapes(row, v, n) for v in block]
        count = len(chosen[0]) if len(block) == 1 else min(VARIANTS, max(map(len, chosen)))
        rows = np.repeat(row[None], count, axis=0)
        for v, numbers in zip(block, chosen, strict=True):
            front = self.space.options[v].front[n]
            spread = front[np.arange(count) * (len(front) - 1) // max(1, count - 1)]
            rows[:, v, 0] = numbers if len(block) == 1 else spread
            rows[:, v, 1] = start
        return rows

    def shapes(self, row: Row, vertex: int, n: int) -> NDArray[np.int64]:
        """Numbers of the vertex's shapes on `n` GPUs that are worth trying."""
        front = self.space.options[vertex].front[n]
        alike = []
        for u in self._kin[vertex]:
            layout = self._layout.get((u, int(row[u, 0])))
            if layout is not None and layout.gpus == n and layout in self._alike[vertex]:
                alike.append(self._alike[vertex][layout])
        return np.unique(np.concatenate([front, *alike])) if alike else front

    def _reshaped(self, row: Row, vertex: int) -> Rows:
        n = int(self.space.load.gpus(row[None])[0, vertex])
        numbers = self.shapes(row, vertex, n)
        rows = np.repeat(row[None], len(numbers), axis=0)
        rows[:, vertex, 0] = numbers
        return rows

    def pairs(self, row: Row, a: Block, b: Block) -> Rows:
        """Both groups moved at once, each in its fastest and its leanest shapes."""
        moved = [self._fast_and_lean(row, block) for block in (a, b)]
        left, right = (m[:: max(1, len(m) * len(moved[1 - i]) // MOST_PAIRS)] for i, m in enumerate(moved))
        i, j = np.divmod(np.arange(len(left) * len(right)), max(1, len(right)))
        rows = left[i]
        rows[:, list(b)] = right[j][:, list(b)]
        return self._allowed(rows)

    def _fast_and_lean(self, row: Row, block: Block) -> Rows:
        found = []
        for n, start in self.places(row, block).tolist():
            rows = np.repeat(row[None], 2, axis=0)
            for v in block:
                front = self.space.options[v].front[n]
                rows[:, v, 0] = front[[0, -1]]
                rows[:, v, 1] = start
            found.append(rows)
        return np.concatenate(found) if found else row[None][:0]

    def kicks(self, row: Row, rng: random.Random, count: int) -> Rows:
        """`count` times two or three blocks on random places in random shapes of the front."""
        blocks = self.space.blocks
        rows = np.repeat(row[None], count, axis=0)
        for new in rows:
            for block in rng.sample(blocks, min(len(blocks), rng.choice((2, 2, 3)))):
                places = self.places(row, block)
                n, start = places[rng.randrange(len(places))].tolist()
                for v in block:
                    front = self.space.options[v].front[n]
                    new[v] = front[rng.randrange(len(front))], start
        return self._allowed(rows)

    def _allowed(self, rows: Rows) -> Rows:
        return rows[self.space.allows(rows)]


def _union(blocks: Sequence[Block]) -> Block:
    return tuple(sorted(itertools.chain.from_iterable(blocks)))


def _by_layout(options: Candidates) -> dict[Layout, NDArray[np.int64]]:
    """Shape numbers by layout."""
    found: dict[Layout, list[int]] = {}
    for shape, number in zip(options.shapes, options.numbers.tolist(), strict=True):
        found.setdefault(shape.placement.layout, []).append(number)
    return {layout: np.array(numbers, dtype=np.int64) for layout, numbers in found.items()}
