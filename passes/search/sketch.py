"""Plans sketched: annealing on the guess, which costs next to nothing, to find plans worth evaluating."""

import random
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from passes.fast.guessing import DISJOINT, SAME, SAME_OR_DISJOINT, UNRELATED, Moves
from passes.search.evaluator import Row, Rows
from passes.search.restriction import Relation
from passes.search.space import Space

ROUNDS = 20_000
TEMPERATURES = (0.02, 0.06, 0.15)

RELATION: dict[Relation, int] = {
    "any": UNRELATED,
    "same": SAME,
    "disjoint": DISJOINT,
    "same_or_disjoint": SAME_OR_DISJOINT,
}


class Sketch:
    """Sketches of one structure's plans, of shapes on the front alone, made by `threads`."""

    def __init__(self, space: Space, threads: int) -> None:
        self.space = space
        self._pool = ThreadPoolExecutor(threads)
        space.guess.know(space.fronts)
        self._moves = _moves(space)

    def rows(self, start: Row, rng: random.Random, times: int, most: int) -> Rows:
        """At most `most` plans with low guesses of each of `times` annealings from `start`."""
        drawn = [(rng.randrange(1 << 31), rng.choice(TEMPERATURES)) for _ in range(times)]
        return np.concatenate(list(self._pool.map(lambda x: self._sketched(start, x[0], x[1], most), drawn)))

    def _sketched(self, start: Row, seed: int, temperature: float, most: int) -> Rows:
        found = self.space.guess.anneal(self._moves, start, seed, ROUNDS, temperature)
        _, first = np.unique(self.space.evaluator.keys(found)[:, 0], return_index=True)
        return found[np.sort(first)[:most]]


def _moves(space: Space) -> Moves:
    options = space.options
    sizes = sorted(set().union(*(o.sizes for o in options)))
    shapes: list[int] = []
    starts: list[int] = []
    shape_from = np.zeros((len(options), len(sizes) + 1), dtype=np.int64)
    start_from = np.zeros_like(shape_from)
    for v, (o, front) in enumerate(zip(options, space.fronts, strict=True)):
        shape_from[v, 0], start_from[v, 0] = len(shapes), len(starts)
        for k, n in enumerate(sizes):
            if n in front:
                shapes += front[n].tolist()
                starts += o.starts[n].tolist()
            shape_from[v, k + 1], start_from[v, k + 1] = len(shapes), len(starts)
    relation = np.zeros((len(options), len(options)), dtype=np.int64)
    for u, v, related in space.relations:
        relation[u, v] = relation[v, u] = RELATION[related]
    block = np.zeros(len(options), dtype=np.int64)
    for i, members in enumerate(space.blocks):
        block[list(members)] = i
    return Moves(
        sizes=np.array(sizes, dtype=np.int64),
        shapes=np.array(shapes, dtype=np.int64),
        shape_from=shape_from,
        starts=np.array(starts, dtype=np.int64),
        start_from=start_from,
        block=block,
        relation=relation,
    )
