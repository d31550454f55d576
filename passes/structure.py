"""Which operators of a plan are split into phases, and which two are fused (semantics: Lower 1)."""

from ir_schema.device import Allocation
from ir_schema.problem import Placement
from passes.analysis import Analysis

Plan = dict[str, Placement]


def allocation(plan: Plan, vertex: str) -> Allocation | None:
    """sigma of `vertex`; None for a host vertex, which occupies no GPU."""
    placement = plan.get(vertex)
    return None if placement is None else placement.allocation


def disjoint(plan: Plan, u: str, v: str) -> bool:
    """Whether two vertices share no GPU. A host vertex is disjoint from everything."""
    a, b = allocation(plan, u), allocation(plan, v)
    return a is None or b is None or a.overlap(b) == 0


def split_vertices(analysis: Analysis, plan: Plan) -> frozenset[str]:
    """Vertices that become one Op per length quantile.

    A generation vertex is split if it has a downstream inference vertex over a data edge on a disjoint
    allocation; each such inference vertex is split with it. A generation in waves is never split.
    """
    problem = analysis.problem
    if problem.options.split == "never" or len(problem.workload.length_quantiles) < 2:
        return frozenset()
    split: set[str] = set()
    for e in problem.graph.data_edges:
        u, v = analysis.vertex[e.source], analysis.vertex[e.target]
        if u.role != "generation" or v.role != "inference" or not disjoint(plan, u.name, v.name):
            continue
        if u.name in plan and plan[u.name].waves > 1:
            continue
        split |= {u.name, v.name}
    return frozenset(split)


def fused_pair(analysis: Analysis, plan: Plan) -> tuple[str, str] | None:
    """The two training vertices that become one composite, in index order; None if fusion has no effect."""
    pair = analysis.problem.options.fuse
    if pair is None or fusion_obstacle(analysis, plan) is not None:
        return None
    first, second = sorted(pair, key=lambda name: analysis.index[name])
    return first, second


def fusion_obstacle(analysis: Analysis, plan: Plan) -> str | None:
    """Why `options.fuse` has no effect under `plan`; None if it has one, or if nothing is to be fused.

    Two training vertices of different models are fused if they have the same allocation and the same
    layout, and E* stays acyclic when they are merged.
    """
    pair = analysis.problem.options.fuse
    if pair is None:
        return None
    a, b = (analysis.vertex[name] for name in pair)
    if a.role != "training" or b.role != "training" or a.model == b.model:
        return "they are not training vertices of two models"
    if plan[a.name].allocation != plan[b.name].allocation:
        return "they have different allocations"
    if plan[a.name].layout != plan[b.name].layout:
        return "they have different layouts"
    return None if analysis.is_acyclic(merge=pair) else "one of them has to wait for the other"


def phase_fractions(analysis: Analysis) -> list[float]:
    """f_q - f_{q-1} of each phase."""
    fractions, last = [], 0.0
    for f, _ in analysis.problem.workload.length_quantiles:
        fractions.append(f - last)
        last = f
    return fractions
