"""What to tell when no plan fits in memory: the tightest GPU, what fills it, and what would be enough.

Remedies are found with the leanest plan: every vertex on all GPUs in the layout that alone needs least.
They are enough, but a search may get by with less.
"""

from collections.abc import Callable

import msgspec

from ir_schema.diagnostics import Diagnostic
from ir_schema.problem import Problem
from passes.cost.memory import by_device
from passes.feasibility import GIB, out_of_memory
from passes.search.candidates import Shape
from passes.search.evaluator import Evaluator
from passes.search.greedy import widest
from passes.search.ledger import Found
from passes.search.space import build
from passes.search.structures import Structure

MOST_DOUBLINGS = 6


def no_plan_fits(found: Found, evaluations: int) -> Diagnostic:
    """E420 about the plan that comes closest, with remedies."""
    space, evaluator = found.space, found.space.evaluator
    devices = by_device(evaluator.memory(found.plan))
    diagnostic = out_of_memory(devices, evaluator.limit_bytes)
    remedies = _remedies(space.problem, space.structure, found.evaluation.peak_bytes)
    return msgspec.structs.replace(
        diagnostic,
        message=f"no plan fits in memory; in the closest of {evaluations}, {diagnostic.message}",
        help="; or ".join([*remedies, diagnostic.help]),
    )


def _remedies(problem: Problem, structure: Structure, peak_bytes: int) -> list[str]:
    found = []
    racks, nodes, gpus = problem.device_space
    for doubling in range(1, MOST_DOUBLINGS + 1):
        space = (racks, nodes << doubling, gpus)
        if _fits(msgspec.structs.replace(problem, device_space=space), structure):
            found.append(f"{racks * space[1] * gpus} GPUs ({space[1]} nodes in each rack) would be enough")
            break
    longest = _largest(
        problem.workload.response_length - 1, lambda n: _fits(_with_responses(problem, n), structure)
    )
    if longest:
        found.append(f"responses of {longest} tokens would fit")
    needed = peak_bytes / (1 - problem.hardware.runtime_reserve)
    found.append(f"GPUs with {needed / GIB:.0f} GiB would hold the closest plan")
    return found


def _largest(most: int, fits: Callable[[int], bool]) -> int:
    """The largest n in 1..most with fits(n), which is taken to be monotone; 0 if there is none."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        if fits(middle):
            low = middle
        else:
            high = middle - 1
    return low


def _with_responses(problem: Problem, length: int) -> Problem:
    workload = msgspec.structs.replace(problem.workload, response_length=length, length_quantiles=())
    return msgspec.structs.replace(problem, workload=workload)


def _fits(problem: Problem, structure: Structure) -> bool:
    """Whether the leanest plan of `problem` fits."""
    space, empty = build(0, structure, problem)
    if empty:
        return False
    plan = {}
    for v in space.vertices:
        candidates = widest(space.candidates[v])
        least: Shape = min(candidates.shapes, key=lambda s: s.nbytes)
        plan[v] = candidates.placements(least)[0]
    evaluator: Evaluator = space.evaluator
    return evaluator.peak(plan) <= evaluator.limit_bytes
