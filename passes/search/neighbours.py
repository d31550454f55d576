"""Neighbours of a plan: one vertex placed anew, a group moved together, two groups at once, some at random.

On a homogeneous machine most places are alike. Of all intervals for a group of vertices only one of each
kind is looked at: two are of a kind if the group's canonical keys agree. Shapes are those of the front
(`Space.fronts`), and those in the layout of another vertex of the same model, which saves moving weights.
"""

import itertools
import random
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ir_schema.problem import Layout
from passes.search.candidates import Candidates
from passes.search.evaluator import Row, Rows
from passes.search.guess import NEVER
from passes.search.space import Block, Space

VARIANTS = 3
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
        gpus = self.space.guess.gpus(row[None])[0]
        key = (block, row[others, 1].tobytes(), gpus[others].tobytes())
        known = self._known.get(key)
        if known is None:
            if len(self._known) >= MOST_PLACES:
                self._known.clear()
            known = self._known[key] = self._places(row, block)
        return known

    def _places(self, row: Row, block: Block) -> Places:
        options = [self.space.options[v] for v in block]
        sizes = [n for n in options[0].sizes if all(n in o.starts and n in o.numbers_on for o in options)]
        found, rows = [], []
        for n in sizes:
            starts = options[0].starts[n]
            for o in options[1:]:
                starts = np.intersect1d(starts, o.starts[n])
            found.append(np.stack([np.full(len(starts), n), starts], axis=1))
            made = np.repeat(row[None], len(starts), axis=0)
            for v, o in zip(block, options, strict=True):
                made[:, v, 0] = o.numbers_on[n][0]
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
        gpus = self.space.guess.gpus(row[None])[0].tolist()
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
        places = self.places(row, block)
        for n in np.unique(places[:, 0]).tolist():
            shapes, starts = self._choices(row, block, n), places[places[:, 0] == n, 1]
            rows = np.repeat(row[None], len(shapes) * len(starts), axis=0)
            rows[:, block, 0] = np.repeat(shapes, len(starts), axis=0)
            rows[:, block, 1] = np.tile(starts, len(shapes))[:, None]
            found.append(rows)
        return self._allowed(np.concatenate(found)) if found else row[None][:0]

    def _choices(self, row: Row, block: Block, n: int) -> NDArray[np.int64]:
        """Shapes on `n` GPUs for the vertices of `block`, (M, vertices): all that are worth trying for one,
        some from the fastest to the leanest for several."""
        if len(block) == 1:
            return self.shapes(row, block[0], n)[:, None]
        fronts = [self.space.fronts[v][n] for v in block]
        count = min(VARIANTS, max(map(len, fronts)))
        return np.stack([f[np.arange(count) * (len(f) - 1) // max(1, count - 1)] for f in fronts], axis=1)

    def shapes(self, row: Row, vertex: int, n: int) -> NDArray[np.int64]:
        """Numbers of the vertex's shapes on `n` GPUs that are worth trying."""
        front = self.space.fronts[vertex][n]
        alike = []
        for u in self._kin[vertex]:
            layout = self._layout.get((u, int(row[u, 0])))
            if layout is not None and layout.gpus == n and layout in self._alike[vertex]:
                alike.append(self._alike[vertex][layout])
        return np.unique(np.concatenate([front, *alike])) if alike else front

    def _reshaped(self, row: Row, vertex: int) -> Rows:
        n = int(self.space.guess.gpus(row[None])[0, vertex])
        numbers = self.shapes(row, vertex, n)
        rows = np.repeat(row[None], len(numbers), axis=0)
        rows[:, vertex, 0] = numbers
        return rows

    def pairs(self, row: Row, a: Block, b: Block, limit_ns: int, count: int) -> Rows:
        """The `count` most promising of both blocks moved at once whose bound is below `limit_ns`."""
        left, right = self.moves(row, a), self.moves(row, b)
        guess = self.space.guess.judge_pairs(left, right, b, limit_ns).ravel()
        order = np.argpartition(guess, count)[:count] if len(guess) > count else np.arange(len(guess))
        order = order[guess[order] < NEVER]
        order = order[np.lexsort((order, guess[order]))]
        i, j = np.divmod(order, max(1, len(right)))
        rows = left[i]
        rows[:, b] = right[j][:, b]
        return self._allowed(rows)

    def kicks(self, row: Row, rng: random.Random, count: int) -> Rows:
        """`count` times two or three blocks on random places in random shapes of the front."""
        blocks = self.space.blocks
        rows = np.repeat(row[None], count, axis=0)
        for new in rows:
            for block in rng.sample(blocks, min(len(blocks), rng.choice((2, 2, 3)))):
                places = self.places(row, block)
                n, start = places[rng.randrange(len(places))].tolist()
                for v in block:
                    front = self.space.fronts[v][n]
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
