"""The template of a lowered graph: one step's nodes, edges labelled with their step distance.

The unrolled graph is periodic, so a template and a number of steps say the same as the lowered graph
over that many steps. What is not periodic at the borders is kept as `first_step` (version 0 needs no
transfer, the first ring waits do not exist) and `lookahead` (an installation without a consumer in the
run does not exist).
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from ir_schema.problem import Problem
from ir_schema.stages import CostedNode, TemplateEdge, TemplateNode
from passes.analysis import Analysis

_PERIODIC = tuple(
    f
    for f in CostedNode.__struct_fields__
    if f not in ("id", "step", "reads", "writes", "source_step", "predecessors")
)


def horizon(problem: Problem) -> int:
    """Steps after which every kind of node and edge has been seen in the steady state."""
    return 3 * (Analysis(problem).max_staleness + 2) + 2


@dataclass
class _Seen:
    """All instances of one template node, and the consumer steps of each of its edges."""

    instances: list[CostedNode] = field(default_factory=list)
    edges: dict[tuple[int, int], list[int]] = field(default_factory=lambda: defaultdict(list))


def _key(node: CostedNode) -> tuple[object, ...]:
    """What makes two nodes instances of one template node."""
    fixed = (node.kind, node.vertex, node.phase, node.container, node.model, node.source, node.src_phase)
    lag = None if node.source_step is None else node.step - node.source_step
    places = (node.allocation, node.layout, node.source_allocation, node.source_layout, node.publication)
    return (*fixed, lag, *places)


def fold(nodes: Sequence[CostedNode], steps: int) -> tuple[TemplateNode, ...]:
    """The template of the lowered and costed `nodes` over `steps` >= `horizon` steps.

    Template ids follow the insertion order of the last complete step's nodes: Ops, then transfers.
    Raises ValueError if the graph is not periodic.
    """
    seen: dict[tuple[object, ...], _Seen] = {}
    for node in nodes:
        seen.setdefault(_key(node), _Seen()).instances.append(node)
    keys = {_key(node): i for i, node in enumerate(s.instances[0] for s in seen.values())}
    template_of = {node.id: keys[_key(node)] for node in nodes}
    step_of = {node.id: node.step for node in nodes}
    for node in nodes:
        edges = seen[_key(node)].edges
        for p in node.predecessors:
            edges[template_of[p], node.step - step_of[p]].append(node.step)

    present = [{n.step for n in s.instances} for s in seen.values()]
    return tuple(_template_node(i, s, steps, present) for i, s in enumerate(seen.values()))


def _template_node(index: int, seen: _Seen, steps: int, present: list[set[int]]) -> TemplateNode:
    here = present[index]
    first, last = min(here), max(here)
    if len(here) != len(seen.instances) or here != set(range(first, last + 1)):
        raise ValueError(f"node {seen.instances[0]} is not periodic")
    edges = []
    for (source, distance), consumers in sorted(seen.edges.items()):
        begin = min(consumers)
        expected = {k for k in here if k >= begin and k - distance in present[source]}
        if expected != set(consumers):
            raise ValueError(f"edge {source} -> {index} at distance {distance} is not periodic")
        edges.append(TemplateEdge(source=source, distance=distance, first_step=begin))
    node = seen.instances[-1]
    return TemplateNode(
        **{f: getattr(node, f) for f in _PERIODIC},
        id=index,
        step=0,
        reads={m: v - node.step for m, v in node.reads.items() if v != seen.instances[0].reads[m]},
        writes={m: v - node.step for m, v in node.writes.items()},
        source_step=None if node.source_step is None else node.source_step - node.step,
        first_step=first,
        lookahead=steps - 1 - last,
        edges=tuple(edges),
    )
