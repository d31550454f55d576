"""Plans that give every vertex all GPUs, one after another: the greedy one, in the fastest layouts
(semantics: Search), and the leanest one, from which a search starts where neither heuristic's plan fits."""

from collections.abc import Iterable

import numpy as np

from passes.search.candidates import Candidates
from passes.search.evaluator import Row
from passes.search.space import Space


def widest(candidates: Candidates) -> Candidates:
    """The candidates on all GPUs; where none is legal there, on as many as possible."""
    return candidates.on(candidates.sizes[-1])


def greedy(space: Space) -> Row:
    """The plan. Its layouts fit in memory one by one, but perhaps not together."""
    return _row(widest(c) for c in space.options)


def leanest(space: Space) -> Row:
    """The plan on the same GPUs whose layouts need least memory one by one, fast or slow."""
    chosen = (widest(c) for c in space.options)
    return _row(c.only(min(range(len(c.shapes)), key=lambda i: c.shapes[i].nbytes)) for c in chosen)


def _row(chosen: Iterable[Candidates]) -> Row:
    """The first candidate of each."""
    return np.array([(c.numbers[0], c.starts[c.shapes[0].gpus][0]) for c in chosen], dtype=np.int64)
