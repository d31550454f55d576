"""Plans that give every vertex all GPUs, one after another: the greedy one, in the fastest layouts
(semantics: Search), and the leanest one, from which a search starts where neither heuristic's plan fits."""

from passes.search.candidates import Candidates
from passes.search.space import Space
from passes.structure import Plan


def widest(candidates: Candidates) -> Candidates:
    """The candidates on all GPUs; where none is legal there, on as many as possible."""
    return candidates.on(candidates.sizes[-1])


def greedy(space: Space) -> Plan:
    """The plan. Its layouts fit in memory one by one, but perhaps not together."""
    return {v: next(iter(widest(space.candidates[v]))) for v in space.vertices}


def leanest(space: Space) -> Plan:
    """The plan on the same GPUs whose layouts need least memory one by one, fast or slow."""
    plan = {}
    for v in space.vertices:
        candidates = widest(space.candidates[v])
        plan[v] = candidates.placements(min(candidates.shapes, key=lambda s: s.nbytes))[0]
    return plan
