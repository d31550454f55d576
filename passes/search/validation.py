"""What the search would refuse before it evaluates any plan: impossible choices and impossible plans."""

from ir_schema.diagnostics import Diagnostic, DiagnosticError
from ir_schema.problem import PartialPlacement, Problem
from passes.search.candidates import Enumeration
from passes.search.constraints import Rules, excluded_mask
from passes.search.evaluator import Evaluator
from passes.search.legality import explain, host_plans
from passes.search.structures import structures
from passes.search.warm_start import warm_start_errors


def check_choices(problem: Problem) -> list[Diagnostic]:
    """E402 to E436, without E420 and E421: what is wrong with the plan in the file and with the search space.

    `problem` is verified. Memory is not asked, so nothing is said of plans that are too large. As in a
    search, one structure that leaves every vertex a legal placement is enough.
    """
    planned = host_plans(problem)
    if planned:
        return planned
    try:
        chosen = structures(problem)
    except DiagnosticError as exc:
        return list(exc.diagnostics)
    found = warm_start_errors(problem, chosen)
    if found:
        return found
    excluded = excluded_mask(problem)
    first: list[Diagnostic] = []
    for _, structure in chosen:
        found = _impossible(structure, excluded)
        if not found:
            return []
        first = first or found
    return first


def _impossible(problem: Problem, excluded: int) -> list[Diagnostic]:
    """Why vertices of a structure have no legal placement."""
    evaluator = Evaluator(problem)
    found: list[Diagnostic] = []
    for v in problem.graph.vertices:
        if v.model is None:
            continue
        fixed = problem.plan.get(v.name, PartialPlacement())
        enumeration = Enumeration(evaluator, Rules(problem, v, excluded), fixed)
        if not enumeration.possible():
            found += explain(enumeration)
    return found
