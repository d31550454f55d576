"""A first plan in a decision space that restricts allocations, or why there is none."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ir_schema.diagnostics import DiagnosticError, error
from passes.search.candidates import Candidates
from passes.search.evaluator import Row
from passes.search.infeasible import with_memory
from passes.search.restriction import NotAllowed, Relation, lie
from passes.search.space import Block, Space, build

Interval = tuple[int, int]
"""The first GPU and the number of GPUs of an allocation (P7)."""

ROOM = 2.0**60
"""Bytes of memory that hold everything."""


def place(space: Space) -> Row | None:
    """A plan whose allocations lie to each other as the decision space wants it, every vertex on many GPUs in
    its leanest layout there; None if there is none."""
    at = {v: i for i, block in enumerate(space.blocks) for v in block}
    between: dict[tuple[int, int], Relation] = {}
    for u, v, relation in space.relations:
        between[at[u], at[v]] = between[at[v], at[u]] = relation
    open_places = [np.array(_places(space, b), dtype=np.int64).reshape(-1, 2) for b in space.blocks]
    chosen = _chosen(open_places, between)
    if chosen is None:
        return None
    intervals = [chosen[at[v]] for v in range(len(space.vertices))]
    placed = zip(space.options, intervals, strict=True)
    return np.array([(_leanest(options, n), first) for options, (first, n) in placed])


def _chosen(
    places: Sequence[NDArray[np.int64]], between: dict[tuple[int, int], Relation], done: int = 0
) -> list[Interval] | None:
    """The first choice of an interval of `places` (N, 2) for each block from number `done` on, related as
    `between` says by block numbers; None if there is none."""
    if done == len(places):
        return []
    for one in places[done]:
        left = [
            p[lie(relation, *one, *p.T)] if i > done and (relation := between.get((done, i))) else p
            for i, p in enumerate(places)
        ]
        if all(map(len, left)):
            rest = _chosen(left, between, done + 1)
            if rest is not None:
                return [(int(one[0]), int(one[1])), *rest]
    return None


def no_place(space: Space, excluded: int, *, fixed_microbatches: bool) -> DiagnosticError | NotAllowed:
    """What to raise because there is no plan to `place`: E420 if it would be with more memory."""
    roomy, empty = build(
        space.index,
        space.structure,
        with_memory(space.problem, ROOM),
        excluded=excluded,
        fixed_microbatches=fixed_microbatches,
        within=space.within,
    )
    if empty or place(roomy) is None:
        return NotAllowed("groups of GPUs, formed as it does, that all their operators may use")
    groups = " and ".join(_smallest(space, block) for block in space.blocks)
    message = f"no plan fits in memory: there is no room for {groups} on {space.evaluator.gpus} GPUs"
    return DiagnosticError([error("E420", message, help="more GPUs, or GPUs with more memory")])


def _places(space: Space, block: Block) -> list[Interval]:
    """The allocations that all vertices of `block` may have, those of most GPUs first."""
    allowed = []
    for v in block:
        options = space.options[v]
        sizes = {s.gpus for s in options.shapes}
        allowed.append({(first, n) for n in sizes for first in options.starts[n].tolist()})
    return sorted(set.intersection(*allowed), key=lambda place: (-place[1], place[0]))


def _leanest(options: Candidates, gpus: int) -> int:
    """The number of the shape on so many GPUs that needs least memory alone."""
    shapes = zip(options.shapes, options.numbers.tolist(), strict=True)
    return min((shape.nbytes, int(number)) for shape, number in shapes if shape.gpus == gpus)[1]


def _smallest(space: Space, block: Block) -> str:
    """The vertices of `block` and how many GPUs they need at least, for their memory as for their layouts."""
    names = ", ".join(f"`{space.vertices[v]}`" for v in block)
    least = min((n for _, n in _places(space, block)), default=None)
    if least is not None:
        return f"{names} (on {least} GPUs or more)"
    sizes = (min(s.gpus for s in space.options[v].shapes) for v in block)
    return f"{names} (on no common GPUs; alone on {', '.join(map(str, sizes))} or more)"
