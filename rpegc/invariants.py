"""What must hold of every stage whatever made it: the checks of `--verify-each` and of stage files read.

    encoding      the stage decodes to itself and keeps its id
    all           the problem is well formed; every vertex with a model has a legal placement, a host has none
    unrolled      ids are step * |V| + index; edges join existing vertices; the graph is acyclic
    lowered …     ids are 0, 1, 2, …; predecessors and vertices exist; the graph is acyclic; payloads are not
                  negative
    costed …      durations are not negative; every GPU of the device space has a peak, the sum of its parts
    scheduled     start + time = finish; no start before a predecessor's finish; no GPU is reserved twice at
                  once; the makespan is the largest finish, or longer where workers share processors;
                  placement order names every node once
    executable    template ids, sources and distances are sound; edges within one step are acyclic

Every violation of a stage is found, not only the first.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise

from ir_schema.base import Record
from ir_schema.device import all_devices
from ir_schema.envelope import decode_stage, encode_stage
from ir_schema.problem import Placement, Problem
from ir_schema.stages import (
    Configuration,
    Costed,
    CostedNode,
    DeviceMemory,
    Executable,
    Lowered,
    Node,
    Scheduled,
    ScheduledNode,
    TemplateNode,
    Unrolled,
)
from passes.search.legality import legal
from passes.verify import verify
from rpegc.labels import node_labels


def violations(stage: Record) -> list[str]:
    """Every broken invariant of `stage`, one phrase each; an empty list means it is sound."""
    return [*_encoding(stage), *unsound(stage)]


def _encoding(stage: Record) -> Iterator[str]:
    try:
        _, again = decode_stage(encode_stage(stage))
    except Exception as exc:  # whatever goes wrong here is the finding
        yield f"the stage cannot be encoded and decoded: {exc}"
        return
    if again != stage:
        yield "the stage changes when it is encoded and decoded"


def unsound(stage: Record) -> Iterator[str]:
    """Every invariant that what `stage` says breaks, however it is encoded."""
    found = list(_configuration_of(stage))
    yield from found
    match stage:
        case _ if found:
            return
        case Unrolled():
            yield from _unrolled(stage)
        case Lowered():
            yield from _nodes(stage.configuration.problem, stage.nodes)
        case Costed():
            yield from _costed(stage.configuration.problem, stage.nodes, stage.devices)
        case Scheduled():
            found = list(_costed(stage.configuration.problem, stage.nodes, stage.devices))
            yield from found or _scheduled(stage)
        case Executable():
            yield from _template(stage.problem, stage.template)


def _configuration_of(stage: Record) -> Iterator[str]:
    match stage:
        case Configuration() | Executable():
            yield from _configuration(stage.problem, stage.plan)
        case Unrolled() | Lowered() | Costed() | Scheduled():
            yield from _configuration(stage.configuration.problem, stage.configuration.plan)


def _configuration(problem: Problem, plan: Mapping[str, Placement]) -> Iterator[str]:
    if problem.search is not None or problem.plan:
        yield "a configuration's problem still has a search space or a partial plan"
    found = verify(problem)
    if found:
        yield from (f"{d.code}: {d.message}" for d in found)
        return
    vertices = {v.name: v for v in problem.graph.vertices}
    for name in sorted({v.name for v in vertices.values() if v.model is not None} - plan.keys()):
        yield f"`{name}` has no placement"
    for name, placement in plan.items():
        if name not in vertices:
            yield f"there is a placement for `{name}`, which does not exist"
            continue
        yield from (f"`{name}`: {d.message}" for d in legal(problem, vertices[name], placement))


def _unrolled(stage: Unrolled) -> Iterator[str]:
    count = len(stage.configuration.problem.graph.vertices)
    for i, v in enumerate(stage.vertices):
        if v.id != i or v.id != v.step * count + v.vertex_index:
            yield f"vertex {i} has id {v.id}, step {v.step} and index {v.vertex_index}"
    known = range(len(stage.vertices))
    for e in stage.edges:
        if e.source not in known or e.target not in known:
            yield f"the {e.kind} edge {e.source} -> {e.target} joins unknown vertices"
    yield from _acyclic([(e.source, e.target) for e in stage.edges])


def _nodes(problem: Problem, nodes: Sequence[Node]) -> Iterator[str]:
    yield from _vertices(problem, nodes)
    for i, node in enumerate(nodes):
        if node.id != i:
            yield f"node {i} has id {node.id}"
        if node.payload_bytes < 0:
            yield f"node {i} has a negative payload"
        for p in node.predecessors:
            if p not in range(len(nodes)):
                yield f"node {i} has the unknown predecessor {p}"
    yield from _acyclic([(p, n.id) for n in nodes for p in n.predecessors])


def _vertices(problem: Problem, nodes: Sequence[Node]) -> Iterator[str]:
    known = {v.name for v in problem.graph.vertices}
    for n in nodes:
        named = [*(n.members or (n.vertex,)), *([] if n.source is None else [n.source])]
        yield from (f"node {n.id} names the unknown vertex `{name}`" for name in named if name not in known)
    run = {name for n in nodes if n.kind == "Op" for name in (n.members or (n.vertex,))}
    yield from (f"`{name}` is never run" for name in sorted(known - run))


def _acyclic(edges: Iterable[tuple[int, int]]) -> Iterator[str]:
    graph: dict[int, set[int]] = {}
    for source, target in edges:
        graph.setdefault(target, set()).add(source)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as exc:
        yield f"there is a cycle: {' -> '.join(map(str, exc.args[1]))}"


def _costed(
    problem: Problem, nodes: Sequence[CostedNode], devices: Mapping[str, DeviceMemory]
) -> Iterator[str]:
    yield from _nodes(problem, nodes)
    yield from (f"node {n.id} has a negative duration" for n in nodes if n.time_ns < 0)
    if devices.keys() != set(all_devices(problem.device_space)):
        yield "the peaks are not those of the device space's GPUs"
    for name, memory in devices.items():
        if memory.peak_bytes != memory.persistent_bytes + memory.transient_bytes:
            yield f"the peak of GPU {name} is not the sum of its parts"


def _scheduled(stage: Scheduled) -> Iterator[str]:
    nodes, ids = stage.nodes, range(len(stage.nodes))
    label = node_labels(nodes)
    for n in nodes:
        if n.start_ns < 0 or n.start_ns + n.time_ns != n.finish_ns:
            yield f"`{label[n.id]}` starts at {n.start_ns}, takes {n.time_ns} and ends at {n.finish_ns}"
        for p in n.predecessors:
            if p in ids and nodes[p].finish_ns > n.start_ns:
                yield f"`{label[n.id]}` starts before its predecessor `{label[p]}` ends"
    yield from _exclusive(nodes, label)
    last = max((n.finish_ns for n in nodes), default=0)
    crowded = stage.makespan_ns > last and stage.configuration.problem.hardware.node_processors
    if stage.makespan_ns != last and not crowded:
        yield "the makespan is not the largest finish"
    if sorted(stage.placement_order) != list(ids):
        yield "the placement order does not name every node once"
    if any(n not in ids for n in stage.critical_path):
        yield "the critical path names an unknown node"


def _exclusive(nodes: Sequence[ScheduledNode], label: Mapping[int, str]) -> Iterator[str]:
    """Half-open intervals of nodes that reserve one GPU must not overlap; empty ones take no place."""
    by_device: dict[str, list[ScheduledNode]] = {}
    for n in nodes:
        for device in n.reserved if n.time_ns else ():
            by_device.setdefault(device, []).append(n)
    for device, users in by_device.items():
        users.sort(key=lambda n: n.start_ns)
        for a, b in pairwise(users):
            if a.finish_ns > b.start_ns:
                yield f"`{label[a.id]}` and `{label[b.id]}` hold GPU {device} at the same time"


def _template(problem: Problem, nodes: Sequence[TemplateNode]) -> Iterator[str]:
    yield from _vertices(problem, nodes)
    for i, node in enumerate(nodes):
        if node.id != i:
            yield f"template node {i} has id {node.id}"
        for e in node.edges:
            if e.source not in range(len(nodes)):
                yield f"template node {i} depends on the unknown node {e.source}"
            if e.distance < 0 or e.first_step < 0:
                yield f"template node {i} has a negative step distance"
    yield from _acyclic([(e.source, n.id) for n in nodes for e in n.edges if e.distance == 0])
