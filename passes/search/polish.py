"""Polish: the best plan improved vertex by vertex until no change improves it (semantics: Search).

Candidates that cannot improve are skipped without being evaluated: in every plan a GPU is busy for at
least K_eval times the operators placed on it, which bounds the score from above.
"""

from collections.abc import Iterator

import msgspec

from ir_schema.device import size
from ir_schema.problem import Placement
from passes.schedule import raw_score
from passes.search.ledger import Found, Ledger
from passes.search.masks import gpu_mask
from passes.search.space import Space
from passes.structure import Plan


class _Load:
    """Time [ns] per step that the other vertices of a plan keep each GPU busy, by groups of GPUs."""

    def __init__(self, space: Space, plan: Plan, without: str) -> None:
        self.space = space
        groups = [((1 << size(space.problem.device_space)) - 1, 0)]
        for v in space.vertices:
            if v == without:
                continue
            mask = gpu_mask(space.problem.device_space, plan[v].allocation)
            time_ns = space.evaluator.least_ns(v, plan[v])
            groups = [
                (part, load + time_ns * inside)
                for group, load in groups
                for part, inside in ((group & mask, 1), (group & ~mask, 0))
                if part
            ]
        self.groups = groups
        self.most = max(load for _, load in groups)

    def score_bound(self, vertex: str, placement: Placement) -> float:
        """No plan that adds `vertex` so has a higher Score."""
        space = self.space
        mask = gpu_mask(space.problem.device_space, placement.allocation)
        own = space.evaluator.least_ns(vertex, placement)
        busiest = max(self.most, own + max(load for part, load in self.groups if part & mask))
        steps = space.problem.options.steps
        return raw_score(space.problem, steps * busiest) if busiest else float("inf")


def polish(ledger: Ledger, found: Found) -> Found:
    """The plan reached from `found`; every step is better, and fits in memory once one does.

    What was reached before the ledger ran out is in the ledger's `best`.
    """
    improved = True
    while improved:
        improved = False
        for vertex in found.space.vertices:
            better = _best_change(ledger, found, vertex)
            if better is not None:
                found, improved = better, True
    return found


def _best_change(ledger: Ledger, found: Found, vertex: str) -> Found | None:
    space, plan = found.space, found.plan
    load = _Load(space, plan, vertex)
    best = found
    for placement in _changes(space, vertex, plan[vertex]):
        value = ledger.value(best.evaluation)
        if load.score_bound(vertex, placement) <= value:
            continue
        changed = plan | {vertex: placement}
        evaluation = ledger.evaluate(space, changed)
        if ledger.value(evaluation) > value and (evaluation.feasible or not best.evaluation.feasible):
            best = Found(space, changed, evaluation)
    ledger.end_round()
    return None if best is found else best


def _changes(space: Space, vertex: str, current: Placement) -> Iterator[Placement]:
    """Every candidate, and the present placement with fewer waves."""
    yield from space.candidates[vertex]
    for waves in range(1, current.waves):
        yield msgspec.structs.replace(current, waves=waves)
