"""Plans that give every vertex all GPUs, one after another: the greedy one, in the fastest layouts
(semantics: Search), and the leanest one, from which a search starts where neither heuristic's plan fits."""

import numpy as np

from passes.search.candidates import Candidates
from passes.search.evaluator import Row
from passes.search.space import Space


def widest(candidates: Candidates) -> Candidates:
    """The candidates on all GPUs; where none is legal there, on as many as possible."""
    return candidates.on(candidates.sizes[-1])


def greedy(space: Space) -> Row:
    """The plan. Its layouts fit in memory one by one, but perhaps not together."""
    return _wide(space, 0)


def leanest(space: Space) -> Row:
    """The plan on the same GPUs whose layouts need least memory one by one, fast or slow."""
    return _wide(space, -1)


def _wide(space: Space, position: int) -> Row:
    """All vertices on all GPUs in shapes at this position of their front."""
    row = [(c.front[c.sizes[-1]][position], c.starts[c.sizes[-1]][0]) for c in space.options]
    return np.array(row, dtype=np.int64)


def widest_allowed(space: Space) -> Row | None:
    """A plan that the decision space contains, its vertices on as many GPUs as leave the next ones room; None
    if there is none."""
    row = greedy(space)

    def extend(done: int) -> bool:
        if done == len(space.blocks):
            return True
        block, rest = list(space.blocks[done]), [v for b in space.blocks[done + 1 :] for v in b]
        first = space.options[block[0]]
        for n in reversed(first.sizes):
            if not all(n in space.options[v].front for v in block):
                continue
            for start in first.starts[n].tolist():
                if not all(start in space.options[v].starts[n] for v in block):
                    continue
                row[block, 0] = [space.options[v].front[n][0] for v in block]
                row[block, 1] = start
                if space.allows(row[None], without=rest)[0] and extend(done + 1):
                    return True
        return False

    return row if extend(0) else None
