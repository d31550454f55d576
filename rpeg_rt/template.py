"""A template as such: which vertices a node carries out, and what must be so before it is bound."""

from ir_schema.problem import Vertex
from ir_schema.stages import Executable, TemplateNode
from rpeg_rt.engine.microtasks import ScheduleError, check_schedule


class UnrealisableError(Exception):
    """The template contradicts its own graph or plan, or relies on something this runtime does not do."""


def vertices_of(node: TemplateNode) -> tuple[str, ...]:
    """The vertices that an Op carries out: two if it is a composite."""
    return node.members or (node.vertex,)


def describe(node: TemplateNode) -> str:
    """A template node in words: its operator, or what it moves and for whom."""
    if node.kind == "Op":
        return f"`{node.vertex}`" + (f" phase {node.phase}" if node.phases > 1 else "")
    return f"{node.kind} of {node.container or node.model} for `{node.vertex}`"


def check_template(executable: Executable, vertices: dict[str, Vertex]) -> None:
    """What the rest of the runtime takes for granted about ids, names, placements and edges. Raises
    UnrealisableError."""
    ids = [n.id for n in executable.template]
    if len(set(ids)) != len(ids):
        raise UnrealisableError("two template nodes have one id")
    missing = [v.name for v in vertices.values() if v.model is not None and v.name not in executable.plan]
    if missing:
        raise UnrealisableError(f"vertex `{missing[0]}` has no placement in the plan")
    for name, p in executable.plan.items():
        degrees = [getattr(p.layout, f) for f in p.layout.__struct_fields__]
        counts = (*degrees, p.microbatches, p.waves)
        if p.layout.gpus != len(p.allocation.device_names()) or min(counts) < 1:
            raise UnrealisableError(f"the placement of `{name}` contradicts itself")
    known = set(ids)
    for n in executable.template:
        unknown = [v for v in vertices_of(n) if v not in vertices]
        if unknown:
            raise UnrealisableError(
                f"template node {n.id} names vertex `{unknown[0]}`, which the graph does not have"
            )
        if n.members:
            _check_composite(executable, n, vertices)
        for e in n.edges:
            if e.source not in known or e.distance < 0:
                raise UnrealisableError(
                    f"template node {n.id} has an edge from node {e.source}, which does not exist"
                )
    for vertex in vertices:
        operators = [n for n in executable.template if n.kind == "Op" and vertex in vertices_of(n)]
        if not operators:
            raise UnrealisableError(f"the template has no Op for vertex `{vertex}`")
        if sorted((n.phase or 0, n.phases) for n in operators) != [
            (q, len(operators)) for q in range(1, len(operators) + 1)
        ]:
            raise UnrealisableError(f"the template does not have each phase of vertex `{vertex}` once")
        if any(n.first_step or n.lookahead for n in operators):
            raise UnrealisableError(f"the template has no Op for vertex `{vertex}` in some steps")


def _check_composite(executable: Executable, n: TemplateNode, vertices: dict[str, Vertex]) -> None:
    """A composite trains two models in one place, by a schedule that fits them and has its hash."""
    what = f"fused training `{n.vertex}`"
    placements = [executable.plan[v] for v in n.members]
    if (
        len(n.members) != 2
        or any(vertices[v].role != "training" for v in n.members)
        or len({vertices[v].model for v in n.members}) != 2
        or len({(p.allocation, p.layout) for p in placements}) != 1
    ):
        raise UnrealisableError(f"{what} must be of two models that are trained in one layout")
    schedule = executable.microtasks.get(n.vertex)
    if schedule is None:
        raise UnrealisableError(f"{what} has no microtask schedule")
    first, second = placements
    try:
        check_schedule(schedule, first.pipeline_parallel, (first.microbatches, second.microbatches))
    except ScheduleError as exc:
        raise UnrealisableError(f"{what}: {exc}") from exc
