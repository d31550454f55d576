"""What a search proves of its result: a bound for every structure (`docs/bound.md`), the smallest for all."""

from collections.abc import Mapping, Sequence

from passes.search.bound import Bound, lower_bound
from passes.search.found import Found
from passes.search.ledger import Ledger
from passes.search.space import Space

HASTY = 1_000
"""Partial plans of a bound where a time limit waits."""


def prove(spaces: Sequence[Space], starts: Mapping[int, Sequence[Found]], ledger: Ledger) -> dict[int, Bound]:
    """Bounds of the structures in which a plan can fit, by index, and the smallest into the ledger.

    They hold for plans made of candidates and of the placements in `starts`, which are evaluated plans by
    index of their structure. Raises OutOfBudget, and then leaves the ledger as it was, when time is over.
    """
    bounds = {}
    for space in spaces:
        ledger.check()
        plans = [found.plan for found in starts.get(space.index, ())]
        if ledger.time_limit is None:
            bound = lower_bound(space, plans)
        else:
            bound = lower_bound(space, plans, partial_plans=HASTY, stop=lambda: ledger.late)
        if bound is not None:
            bounds[space.index] = bound
    if bounds:
        ledger.lower_bound_ns = min(b.makespan_ns for b in bounds.values())
    return bounds
