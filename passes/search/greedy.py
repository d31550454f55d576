"""The greedy plan: every vertex on all GPUs in its fastest layout, one after another (`04-search`)."""

from passes.search.candidates import Candidates
from passes.search.space import Space
from passes.structure import Plan


def widest(candidates: Candidates) -> Candidates:
    """The candidates on all GPUs; where none is legal there, on as many as possible."""
    shapes = candidates.by_size[candidates.sizes[-1]]
    return Candidates(candidates.vertex, shapes, candidates.origins)


def greedy(space: Space) -> Plan:
    """The plan. Its layouts fit in memory one by one, but perhaps not together."""
    return {v: next(iter(widest(space.candidates[v]))) for v in space.vertices}
