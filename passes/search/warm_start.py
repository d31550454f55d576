"""Checking the plan that a search is told to start from (`search.warm_start`).

It is a start in every structure that has exactly its vertices; the structure's other choices do not matter,
so a plan made under one staleness is a start under another. It must be legal and have what the file fixes;
whether it fits in memory is for the search to find.
"""

from collections.abc import Iterator, Sequence

import msgspec

from ir_schema.diagnostics import Diagnostic, error
from ir_schema.problem import Placement, Problem, SearchSpace
from passes.search.legality import legal
from passes.search.structures import Structure


def warm_start_errors(problem: Problem, found: Sequence[tuple[Structure, Problem]]) -> list[Diagnostic]:
    """What keeps the warm start of `problem`, if it has one, from being a start; `found` are its structures.

    E435 when no structure has its vertices, E436 when it contradicts what the file fixes, and E405 to E419
    when it breaks a constraint.
    """
    space = problem.search or SearchSpace()
    plan = space.warm_start
    if not plan:
        return []
    fitting = [chosen for _, chosen in found if plan.keys() == _placed(chosen)]
    if not fitting:
        return [_other_vertices(set(plan), _placed(problem))]
    chosen = msgspec.structs.replace(fitting[0], search=SearchSpace(exclude=space.exclude))
    wrong: list[Diagnostic] = []
    for vertex in chosen.graph.vertices:
        if vertex.name in plan:
            wrong += [_of_warm_start(d) for d in legal(chosen, vertex, plan[vertex.name])]
            wrong += _contradictions(chosen, vertex.name, plan[vertex.name])
    return wrong


def _placed(problem: Problem) -> set[str]:
    """Names of the vertices that have a plan: all but those on the host."""
    return {v.name for v in problem.graph.vertices if v.model is not None}


def _other_vertices(planned: set[str], own: set[str]) -> Diagnostic:
    sides = (("only in the warm start", planned - own), ("only in the graph", own - planned))
    return error(
        "E435",
        "the warm start is a plan of another graph",
        "search.warm_start",
        notes=[f"{what}: {', '.join(sorted(names))}" for what, names in sides if names],
        help="start from a plan of the same operators; models that it shares stand in `search { share = … }`",
    )


def _of_warm_start(found: Diagnostic) -> Diagnostic:
    """A finding about a plan, as one about the warm start."""
    labels = tuple(
        msgspec.structs.replace(x, path=f"search.warm_start.{x.path.removeprefix('plan.')}")
        if x.path.startswith("plan.")
        else x
        for x in found.labels
    )
    vertex = found.labels[0].path.split(".")[1]
    message = f"the warm start of `{vertex}` is not legal here: {found.message}"
    return msgspec.structs.replace(found, message=message, labels=labels)


def _contradictions(problem: Problem, vertex: str, placement: Placement) -> Iterator[Diagnostic]:
    """E436 for every field that the file's own plan of the vertex fixes to something else."""
    fixed = problem.plan.get(vertex)
    for field in () if fixed is None else fixed.__struct_fields__:
        wanted, found = getattr(fixed, field), getattr(placement, field)
        if wanted not in (None, found):
            yield error(
                "E436",
                f"the file fixes {field} = {_text(wanted)} for `{vertex}`, the warm start has {_text(found)}",
                f"plan.{vertex}.{field}",
                f"search.warm_start.{vertex}.{field}",
                help="free the field, or start from another plan",
            )


def _text(value: object) -> str:
    return str(list(value)) if isinstance(value, tuple) else str(value)
