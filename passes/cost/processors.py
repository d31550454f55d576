"""Processors that a node's workers share, over whole plans: however its operators are scheduled, a node takes
no less than its processors need for the work of all of them.
"""

from collections import Counter
from collections.abc import Mapping

from ir_schema.problem import Placement
from passes.cost.base import CostModel


def processors_ns(model: CostModel, plan: Mapping[str, Placement]) -> int:
    """How long [ns] the processors of the busiest node need for all steps of `plan`; 0 where workers share
    none."""
    problem, occupied = model.problem, Counter[tuple[int, int]]()
    for vertex in problem.graph.vertices:
        if vertex.model is None:
            continue
        p = plan[vertex.name]
        (rack, node, _), (racks, nodes, workers) = p.origin, p.extent
        if each := model.node_ns(vertex, p):
            for r in range(rack, rack + racks):
                for n in range(node, node + nodes):
                    occupied[r, n] += workers * each
    return problem.options.steps * max(occupied.values(), default=0)
