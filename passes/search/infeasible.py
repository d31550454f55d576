"""What to tell when nothing fits in memory: the tightest GPU, what fills it, and what would be enough.

Remedies are found with lean plans: every vertex on as many GPUs as it can use, in the layout that needs
least memory there. Methods `sa` and `auto` start from that plan where no other fits, so they find a plan
wherever the lean one fits, and may get by with less; the heuristics may miss it, and then the messages name
`auto`.
"""

import math
from collections.abc import Callable, Iterator

import msgspec

from ir_schema.device import DeviceSpace, size
from ir_schema.diagnostics import Diagnostic
from ir_schema.problem import PartialPlacement, Placement, Problem
from passes.cost.memory import by_device
from passes.feasibility import GIB, MIB, amount, fullest, memory_table, out_of_memory
from passes.search.candidates import Enumeration
from passes.search.constraints import Rules, excluded_mask
from passes.search.evaluator import Evaluator
from passes.search.found import Found
from passes.structure import Plan

MOST_DOUBLINGS = 6
MOST_SIZES = 12


def no_plan_fits(problem: Problem, found: Found, evaluations: int, method: str) -> Diagnostic:
    """E420 about the plan that comes closest of those that `method` made, with remedies. `problem` is the one
    of `found`'s structure, with the GPUs that its search excludes."""
    evaluator = found.space.evaluator
    devices = by_device(evaluator.memory(found.plan))
    diagnostic = out_of_memory(devices, evaluator.limit_bytes)
    return msgspec.structs.replace(
        diagnostic,
        message=f"no plan fits in memory; in the closest of {evaluations}, {diagnostic.message}",
        help="; or ".join([*_remedies(problem, method, found.evaluation.peak_bytes), diagnostic.help]),
    )


def too_large_alone(problem: Problem, diagnostics: list[Diagnostic], method: str) -> list[Diagnostic]:
    """`diagnostics`; the first that says that an operator does not fit even alone (E421) also says what fills
    a GPU in the leanest plan, and what would be enough."""
    first = next((i for i, d in enumerate(diagnostics) if d.code == "E421"), None)
    lean = None if first is None else _lean_plan(problem)
    if first is None or lean is None:
        return diagnostics
    evaluator, plan = lean
    name, memory = fullest(by_device(evaluator.memory(plan)))
    remedies = _remedies(problem, method, memory.peak_bytes)
    total = f"on GPU {name} of the leanest plan, {amount(memory.peak_bytes)} together:"
    found = diagnostics[first]
    explained = msgspec.structs.replace(
        found,
        notes=(*found.notes, total, *memory_table(memory)),
        help="; or ".join([*remedies, found.help]),
    )
    return [*diagnostics[:first], explained, *diagnostics[first + 1 :]]


def _remedies(problem: Problem, method: str, peak_bytes: int) -> list[str]:
    """What would be enough, in words: method `auto` if that is all, else a change of the problem;
    `peak_bytes` are what the closest plan needs."""
    searching = "" if method in ("sa", "auto") else "with method `auto` (-O2), "
    if searching and _fits(problem):
        return [f"{searching}a plan is found that fits"]
    found = []
    space = _smallest(problem)
    if space is not None:
        racks, nodes, gpus = space
        where = f"{nodes} nodes of {gpus}" if racks == 1 else f"{racks} racks of {nodes} nodes of {gpus}"
        found.append(f"{searching}{size(space)} GPUs ({where}) were found to be enough")
    longest = _largest(problem.workload.response_length - 1, lambda n: _fits(with_responses(problem, n)))
    if longest:
        cut = " (with `length_quantiles` that end there)" if problem.workload.length_quantiles else ""
        found.append(f"{searching}responses of {longest} tokens{cut} were found to fit")
    needed = _whole(peak_bytes / (1 - problem.hardware.runtime_reserve))
    if _fits(with_memory(problem, needed)):
        found.append(f"{searching}GPUs with {amount(needed)} were found to be enough")
    if searching:
        found.append("try method `auto` (-O2), which looks at more plans")
    return found


def _whole(nbytes: float) -> int:
    """Bytes rounded up to whole GiB or, where they are few, MiB."""
    unit = GIB if nbytes >= GIB else MIB
    return math.ceil(nbytes / unit) * unit


def _smallest(problem: Problem) -> DeviceSpace | None:
    """The smallest machine of the same nodes that was found to be enough: more nodes where there is one rack,
    more racks where there are several. Sizes are doubled until one is, then tried from below."""
    racks, nodes, gpus = problem.device_space
    unit = nodes if racks == 1 else racks

    def sized(n: int) -> DeviceSpace:
        return (1, n, gpus) if racks == 1 else (n, nodes, gpus)

    def enough(n: int) -> bool:
        return _fits(msgspec.structs.replace(problem, device_space=sized(n)))

    doubled = (unit << i for i in range(1, MOST_DOUBLINGS + 1))
    high = next((n for n in doubled if enough(n)), None)
    if high is None:
        return None
    return sized(next((n for n in _between(high // 2, high) if enough(n)), high))


def _between(low: int, high: int) -> Iterator[int]:
    """At most `MOST_SIZES` sizes between two, ascending; all if there are no more."""
    step = -(-(high - low - 1) // MOST_SIZES)
    return iter(range(low + max(1, step), high, max(1, step)))


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


def with_responses(problem: Problem, length: int) -> Problem:
    """`problem` with responses cut at `length` tokens: those that would be longer end there."""
    shorter = tuple((f, t) for f, t in problem.workload.length_quantiles if t < length and f < 1)
    quantiles = (*shorter, (1.0, length)) if problem.workload.length_quantiles else ()
    workload = msgspec.structs.replace(problem.workload, response_length=length, length_quantiles=quantiles)
    return msgspec.structs.replace(problem, workload=workload)


def with_memory(problem: Problem, nbytes: float) -> Problem:
    """`problem` on GPUs of `nbytes`."""
    return msgspec.structs.replace(
        problem, hardware=msgspec.structs.replace(problem.hardware, memory_bytes=nbytes)
    )


def _fits(problem: Problem) -> bool:
    """Whether the lean plan of `problem` fits."""
    lean = _lean_plan(problem)
    return lean is not None and lean[0].peak(lean[1]) <= lean[0].limit_bytes


def _lean_plan(problem: Problem) -> tuple[Evaluator, Plan] | None:
    """The plan that spreads every vertex furthest; None if one has no legal placement."""
    evaluator, excluded = Evaluator(problem), excluded_mask(problem)
    plan: dict[str, Placement] = {}
    for v in problem.graph.vertices:
        if v.model is None:
            continue
        fixed = problem.plan.get(v.name, PartialPlacement())
        placement = Enumeration(evaluator, Rules(problem, v, excluded), fixed).leanest()
        if placement is None:
            return None
        plan[v.name] = placement
    return evaluator, plan
