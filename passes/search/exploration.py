"""From a problem to the best configuration of a decision space: structures, starting points, a method.

Whatever the method, the heuristics' plans and the plans that the caller gives are evaluated first, so that
no result is worse than any of them.
"""

import random
import time
from collections.abc import Sequence
from contextlib import suppress

import msgspec

from ir_schema.diagnostics import Diagnostic, DiagnosticError
from ir_schema.problem import Problem, SearchSpace
from ir_schema.stages import Configuration
from passes.cost.base import CostModel
from passes.search.annealing import Annealing, Switches
from passes.search.auto import Auto
from passes.search.candidates import ALL_WAVE_LEVELS, WAVE_LEVELS
from passes.search.concurrent import concurrent
from passes.search.constraints import excluded_mask
from passes.search.evaluator import Row
from passes.search.found import Found
from passes.search.greedy import greedy, leanest
from passes.search.infeasible import no_plan_fits, too_large_alone
from passes.search.ledger import Ledger, OutOfBudget
from passes.search.legality import host_plans
from passes.search.neighbours import Neighbours
from passes.search.placing import no_place, place
from passes.search.polish import polish
from passes.search.proof import prove
from passes.search.report import configuration
from passes.search.restriction import EVERYTHING, DecisionSpace, NotAllowed
from passes.search.settings import Settings
from passes.search.space import Enumerated, Space, build
from passes.search.structures import structures
from passes.search.warm_start import warm_start_errors
from passes.structure import Plan


def explore(
    problem: Problem,
    settings: Settings,
    *,
    within: DecisionSpace = EVERYTHING,
    starts: Sequence[Configuration] = (),
) -> Configuration:
    """The best configuration of `problem` in the decision space `within` that the method finds.

    `starts` are configurations of the same problem, found before. Raises DiagnosticError as `Search.run`
    does, and NotAllowed when the decision space has none of the structures or none of the allocations that
    the file allows. A space with restricted allocations (`relations`) needs method `auto`.
    """
    started = time.monotonic()
    for wave_levels in (WAVE_LEVELS, ALL_WAVE_LEVELS):
        spaces, notes = _spaces(problem, settings, within, wave_levels)
        ledger = _searched(problem, settings, spaces, starts, started)
        if ledger.best is not None:
            return configuration(ledger.best, ledger, settings, notes)
        if ledger.termination == "interrupted" or ledger.late or not _in_waves(spaces):
            break
    assert ledger.nearest is not None, "something was evaluated"
    tried = _excluding(ledger.nearest.space.problem, problem)
    raise DiagnosticError([no_plan_fits(tried, ledger.nearest, ledger.evaluations, settings.method)])


def _in_waves(spaces: list[Space]) -> bool:
    """Whether some generation may run in waves: then more of them may fit where few do not."""
    return any(s.placement.waves > 1 for space in spaces for c in space.options for s in c.shapes)


def _searched(
    problem: Problem,
    settings: Settings,
    spaces: list[Space],
    starts: Sequence[Configuration],
    started: float,
) -> Ledger:
    """The books of a finished search of `spaces`."""
    ledger = Ledger(
        spaces,
        method=settings.method,
        objective=(problem.search or SearchSpace()).objective,
        budget=settings.budget,
        time_limit=settings.time_limit,
        hard=settings.hard_memory,
        started=started,
    )
    warm = (problem.search or SearchSpace()).warm_start
    given = [_given(space, warm, starts) for space in spaces]
    ledger.termination = _search(spaces, given, ledger, settings)
    return ledger


def _spaces(
    problem: Problem, settings: Settings, within: DecisionSpace, wave_levels: int
) -> tuple[list[Space], list[str]]:
    """The spaces of all structures, and notes about those left out because some vertex has no candidate."""
    planned = host_plans(problem)
    if planned:
        raise DiagnosticError(planned)
    listed = structures(problem, splitting=not settings.no_splitting, asynchrony=not settings.no_asynchrony)
    wrong = warm_start_errors(problem, listed)
    if wrong:
        raise DiagnosticError(wrong)
    found = [(s, chosen) for s, chosen in listed if within.allows(problem, s)]
    if not found:
        raise NotAllowed(within.needs(problem, [s for s, _ in listed]))
    spaces: list[Space] = []
    notes: list[str] = []
    empty: list[Diagnostic] = []
    known: dict[object, Enumerated] = {}
    models: dict[bytes, CostModel] = {}
    excluded = excluded_mask(problem)
    fixed_microbatches = settings.fixed_microbatches or within.fixed_microbatches
    for structure, chosen in found:
        space, reasons = build(
            len(spaces),
            structure,
            chosen,
            excluded=excluded,
            fixed_microbatches=fixed_microbatches,
            wave_levels=wave_levels,
            within=within,
            objective=(problem.search or SearchSpace()).objective,
            threads=settings.cores,
            known=known,
            models=models,
        )
        if reasons:
            empty = empty or reasons
            notes.append(f"left out ({structure.describe()}): {reasons[0].message}")
        else:
            spaces.append(space)
    if not spaces:
        raise DiagnosticError(too_large_alone(_excluding(found[0][1], problem), empty, settings.method))
    placed = [space for space in spaces if place(space) is not None]
    if not placed:
        raise no_place(spaces[0], excluded, fixed_microbatches=fixed_microbatches)
    return placed, notes


def _given(space: Space, warm_start: Plan, starts: Sequence[Configuration]) -> list[tuple[str | None, Row]]:
    """The plans of `space` that the file's warm start, by that name, and `starts` give."""
    own = msgspec.structs.replace(space.problem, plan={}, search=None)
    plans: list[tuple[str | None, Plan]] = [("warm start", warm_start)]
    plans += [(None, start.plan) for start in starts if start.problem == own]
    return [(name, space.evaluator.row(p)) for name, p in plans if p.keys() == set(space.vertices)]


def _search(
    spaces: list[Space], given: list[list[tuple[str | None, Row]]], ledger: Ledger, settings: Settings
) -> str:
    """Evaluate the starting points of every structure, then search. Returns why it ended."""
    starts = [_start(space, rows, ledger, settings) for space, rows in zip(spaces, given, strict=True)]
    ledger.end_round()
    if settings.method == "auto":
        return Auto(spaces, starts, ledger, settings).run()
    reason = _anneal(spaces, starts, ledger, settings) if settings.method == "sa" else "complete"
    known = {space.index: found for space, found in zip(spaces, starts, strict=True)}
    if ledger.best is not None:
        known[ledger.best.space.index].append(ledger.best)
    with suppress(OutOfBudget):
        prove(spaces, known, ledger)
    return reason


def _start(
    space: Space, given: list[tuple[str | None, Row]], ledger: Ledger, settings: Settings
) -> list[Found]:
    """Evaluate the plans that are `given` and those of the heuristics that the method asks for, the leanest
    if no heuristic's fits, and if the decision space has none of these any of its own; best first."""
    found = [
        ledger.evaluate_one(space, row, free=True) if name is None else ledger.baseline(name, space, row)
        for name, row in given
        if space.allows(row[None])[0]
    ]
    heuristics = []
    fits = True
    if settings.method != "greedy":
        row, fits = concurrent(space)
        heuristics.append(("concurrent", row))
    if settings.method != "concurrent" or not fits:
        heuristics.append(("greedy", greedy(space)))
    found += [ledger.baseline(name, space, row) for name, row in heuristics if space.allows(row[None])[0]]
    if settings.method in ("sa", "auto") and not any(f.evaluation.feasible for f in found):
        lean = leanest(space)
        if space.allows(lean[None])[0]:
            found.append(ledger.evaluate_one(space, lean, free=True))
    first = place(space) if not found else None
    if first is not None:
        found.append(ledger.evaluate_one(space, first, free=True))
    return sorted(found, key=lambda f: -ledger.value(f))


def _anneal(spaces: list[Space], starts: list[list[Found]], ledger: Ledger, settings: Settings) -> str:
    """Anneal every structure with an even share of half of the budget, polish the best plan with the rest."""
    switches = Switches(
        pair_moves=not settings.no_pair_moves,
        warm_restarts=not settings.no_warm_restarts,
        critical_moves=not settings.uniform_choice,
        constant_temperature=not settings.geometric_cooling,
    )
    reasons = []
    rest = max(0, settings.evaluations - ledger.evaluations)
    if not settings.no_polish:
        rest -= rest // 2
    for i, (space, found) in enumerate(zip(spaces, starts, strict=True)):
        share = rest // len(spaces) + (i < rest % len(spaces))
        ledger.allow(share, share_of_time=1 / (len(spaces) - i))
        rng = random.Random(f"{settings.seed}/{space.index}")
        reasons.append(Annealing(space, ledger, rng, switches).run(found[0].row))
        if reasons[-1] == "interrupted":
            return "interrupted"
    termination = next((r for r in ("time_limit", "budget") if r in reasons), "exhausted")
    start = ledger.best or ledger.nearest
    if settings.no_polish or start is None:
        return termination
    ledger.allow(max(0, settings.evaluations - ledger.evaluations))
    try:
        polish(ledger, Neighbours(start.space), start)
    except OutOfBudget as stop:
        ledger.end_round()
        return stop.reason
    return termination


def _excluding(structure: Problem, original: Problem) -> Problem:
    """The problem of a structure, with the GPUs that the original one's search may not use."""
    exclude = () if original.search is None else original.search.exclude
    return msgspec.structs.replace(structure, search=SearchSpace(exclude=exclude))
