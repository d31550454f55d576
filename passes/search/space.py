"""What is searched for one structure: its problem, its evaluator, and every vertex's candidates."""

from collections.abc import Mapping
from dataclasses import dataclass

from ir_schema.diagnostics import Diagnostic
from ir_schema.problem import PartialPlacement, Problem
from passes.search.candidates import Candidates, Enumeration
from passes.search.constraints import Rules
from passes.search.evaluator import Evaluator
from passes.search.legality import explain
from passes.search.structures import Structure
from passes.structure import Plan

Enumerated = tuple[Candidates, list[Diagnostic]]


@dataclass(frozen=True)
class Space:
    """The plans of one structure. `index` is the structure's position in Y_cand."""

    index: int
    structure: Structure
    problem: Problem
    evaluator: Evaluator
    candidates: Mapping[str, Candidates]

    @property
    def vertices(self) -> tuple[str, ...]:
        """The vertices to be placed, by index."""
        return self.evaluator.placed

    def key(self, plan: Plan) -> object:
        """What identifies the plan within the structure, up to moves that change nothing.

        On a homogeneous machine time and memory depend on every vertex's shape, on how many GPUs each set
        of vertices shares, and on the tier that each two allocations span; where exactly they stand does
        not matter.
        """
        return self.evaluator.canonical(plan)


def build(
    index: int,
    structure: Structure,
    problem: Problem,
    *,
    excluded: int = 0,
    fixed_microbatches: bool = False,
    known: dict[object, Enumerated] | None = None,
) -> tuple[Space, list[Diagnostic]]:
    """The space of `structure`, and why candidate sets are empty if any is.

    `known` carries candidates over between structures that differ in how they split and fuse, and in the
    staleness of other models, only.
    """
    evaluator = Evaluator(problem)
    known = {} if known is None else known
    alike = (
        tuple((v.name, v.role, v.model) for v in problem.graph.vertices),
        tuple(problem.models.items()),
    )
    candidates: dict[str, Candidates] = {}
    found: list[Diagnostic] = []
    for v in problem.graph.vertices:
        if v.model is None:
            continue
        identity = (alike, v.name, problem.graph.staleness.get(v.model, 0))
        if identity not in known:
            fixed = problem.plan.get(v.name, PartialPlacement())
            enumeration = Enumeration(
                evaluator, Rules(problem, v, excluded), fixed, fixed_microbatches=fixed_microbatches
            )
            enumerated = enumeration.candidates()
            known[identity] = enumerated, [] if len(enumerated) else explain(enumeration)
        unbound, reasons = known[identity]
        candidates[v.name] = unbound.bound(evaluator)
        found += reasons
    return Space(index, structure, problem, evaluator, candidates), found
