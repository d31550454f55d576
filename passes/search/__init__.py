"""Search: from a problem to the configuration with the best predicted score (semantics: Search).

The plan in the file constrains the search field by field. For every structure that the file allows, the
greedy and the concurrent plan are scored; method `sa` starts from them, anneals with half of the budget,
and polishes the best plan of all structures with the rest. Its result is therefore never worse than either
of them. (The heuristics are scored whatever the budget.)
"""

import random
from dataclasses import dataclass
from typing import ClassVar, Literal

import msgspec

from ir_schema.base import Record
from ir_schema.diagnostics import Diagnostic, DiagnosticError
from ir_schema.problem import Problem, SearchSpace
from ir_schema.stages import Configuration, SearchReport
from passes.analysis import Analysis
from passes.base import Pass
from passes.search.annealing import Annealing, Switches
from passes.search.concurrent import concurrent
from passes.search.constraints import excluded_mask
from passes.search.greedy import greedy, leanest
from passes.search.infeasible import no_plan_fits, too_large_alone
from passes.search.ledger import Found, Ledger, OutOfBudget
from passes.search.legality import complete, host_plans, legal, plan_errors
from passes.search.polish import polish
from passes.search.progress import WATCH, Progress, Watch
from passes.search.space import Enumerated, Space, build
from passes.search.structures import structures
from passes.search.warm_start import warm_start_errors
from passes.structure import Plan, fusion_obstacle

__all__ = ["WATCH", "Progress", "Search", "Watch", "legal"]


def take(problem: Problem) -> Configuration:
    """The configuration that the file itself gives, its structural options as they are written.

    Raises DiagnosticError when its plan is incomplete or breaks a constraint. Memory is not asked: a plan
    that does not fit can still be scored.
    """
    found = plan_errors(problem, problem.plan)
    if found:
        raise DiagnosticError(found)
    chosen = msgspec.structs.replace(problem, plan={}, search=None)
    plan = {v: complete(p) for v, p in problem.plan.items()}
    notes = tuple(_fusion_note(chosen, plan))
    return Configuration(problem=chosen, plan=plan, search=SearchReport(method="none", notes=notes))


def _fusion_note(problem: Problem, plan: Plan) -> list[str]:
    """What the report says of a fusion that was asked for and has no effect."""
    obstacle = fusion_obstacle(Analysis(problem), plan)
    if obstacle is None:
        return []
    return [f"fusing {' and '.join(problem.options.fuse or ())} has no effect: {obstacle}"]


@dataclass(frozen=True)
class Search(Pass[Problem, Configuration]):
    """Problem to configuration.

    `method` is `none` (the plan in the file), `greedy`, `concurrent` or `sa`. `budget` counts evaluations
    that are not in the cache: half of it, split evenly over structures, anneals, and the rest is for the
    final polish, which gets all that annealing leaves. `time_limit` [s] is an additional cap. `seed` starts
    the random choices of annealing.

    The others take something away, to measure what it is worth (ablations A1 to A9):
    `no_splitting` leaves generation and inference as whole operators; `no_asynchrony` keeps every staleness
    at 0; `fixed_microbatches` does not search their number; `no_pair_moves` changes one operator at a time;
    `no_warm_restarts` restarts every chain from the heuristic plan, not from one of the best found;
    `uniform_choice` moves any operator as likely as one on the critical path; `no_polish` anneals with the
    whole budget; `hard_memory` rejects plans that do not fit instead of charging for the excess;
    `geometric_cooling` lowers the temperature over a chain instead of keeping it.
    """

    name: ClassVar[str] = "search"
    summary: ClassVar[str] = "choose structure, placement and layouts"
    source: ClassVar[type[Record]] = Problem
    target: ClassVar[type[Record]] = Configuration

    method: Literal["none", "greedy", "concurrent", "sa"] = "sa"
    budget: int = 6000
    seed: int = 0
    time_limit: float | None = None
    no_splitting: bool = False
    no_asynchrony: bool = False
    fixed_microbatches: bool = False
    no_pair_moves: bool = False
    no_warm_restarts: bool = False
    uniform_choice: bool = False
    no_polish: bool = False
    hard_memory: bool = False
    geometric_cooling: bool = False

    def __post_init__(self) -> None:
        if self.budget < 1:
            raise ValueError("`budget` must be at least 1")
        if self.time_limit is not None and self.time_limit <= 0:
            raise ValueError("`time_limit` must be positive")

    def run(self, stage: Problem) -> Configuration:
        """The best configuration found.

        Raises DiagnosticError E402 to E419 when the plan in the file breaks a constraint or leaves nothing
        to choose from, E420 and E421 when nothing fits in memory, E430 to E436 for impossible choices.
        """
        if self.method == "none":
            return take(stage)
        spaces, notes = self._spaces(stage)
        objective = (stage.search or SearchSpace()).objective
        ledger = Ledger(
            method=self.method,
            objective=objective,
            budget=self.budget,
            time_limit=self.time_limit,
            hard=self.hard_memory,
        )
        ledger.structures = len(spaces)
        ledger.termination = self._explore(spaces, ledger)
        if ledger.best is None:
            assert ledger.nearest is not None, "something was evaluated"
            problem = _excluding(ledger.nearest.space.problem, stage)
            raise DiagnosticError([no_plan_fits(problem, ledger.nearest, ledger.evaluations, self.method)])
        return _configuration(self, ledger.best, ledger, spaces, notes)

    def _spaces(self, problem: Problem) -> tuple[list[Space], list[str]]:
        """The spaces of all structures; those in which some vertex has no candidate are left out."""
        planned = host_plans(problem)
        if planned:
            raise DiagnosticError(planned)
        spaces: list[Space] = []
        notes: list[str] = []
        empty: list[Diagnostic] = []
        known: dict[object, Enumerated] = {}
        excluded = excluded_mask(problem)
        found = structures(problem, splitting=not self.no_splitting, asynchrony=not self.no_asynchrony)
        wrong = warm_start_errors(problem, found)
        if wrong:
            raise DiagnosticError(wrong)
        for structure, chosen in found:
            space, reasons = build(
                len(spaces),
                structure,
                chosen,
                excluded=excluded,
                fixed_microbatches=self.fixed_microbatches,
                known=known,
            )
            if reasons:
                empty = empty or reasons
                notes.append(f"left out ({structure.describe()}): {reasons[0].message}")
            else:
                spaces.append(space)
        if not spaces:
            raise DiagnosticError(too_large_alone(_excluding(found[0][1], problem), empty, self.method))
        return spaces, notes

    def _explore(self, spaces: list[Space], ledger: Ledger) -> str:
        """Score the baselines of every structure, then search. Returns why it ended."""
        starts = [self._start(space, ledger) for space in spaces]
        ledger.end_round()
        if self.method != "sa":
            return "complete"
        reasons = []
        rest = max(0, self.budget - ledger.evaluations)
        if not self.no_polish:
            rest -= rest // 2
        for i, (space, start) in enumerate(zip(spaces, starts, strict=True)):
            share = rest // len(spaces) + (i < rest % len(spaces))
            ledger.allow(share, share_of_time=1 / (len(spaces) - i))
            rng = random.Random(f"{self.seed}/{space.index}")
            reasons.append(Annealing(space, ledger, rng, self._switches).run(start))
            if reasons[-1] == "interrupted":
                return "interrupted"
        termination = next((r for r in ("time_limit", "budget") if r in reasons), "exhausted")
        return termination if self.no_polish else self._polish(ledger, termination)

    @property
    def _switches(self) -> Switches:
        return Switches(
            pair_moves=not self.no_pair_moves,
            warm_restarts=not self.no_warm_restarts,
            critical_moves=not self.uniform_choice,
            constant_temperature=not self.geometric_cooling,
        )

    def _start(self, space: Space, ledger: Ledger) -> Plan:
        """Evaluate the heuristic plans that `method` asks for, and the leanest if neither fits; the best."""
        plans = []
        if self.method != "greedy":
            plan, fits = concurrent(space)
            plans.append(ledger.baseline("concurrent", space, plan))
        if self.method != "concurrent" or not fits:
            plans.append(ledger.baseline("greedy", space, greedy(space)))
        if self.method == "sa" and not any(found.evaluation.feasible for found in plans):
            lean = leanest(space)
            plans.append(Found(space, lean, ledger.evaluate(space, lean, free=True)))
        return max(plans, key=lambda found: ledger.value(found.evaluation)).plan

    def _polish(self, ledger: Ledger, termination: str) -> str:
        """Polish the best plan, or the one closest to fitting. Returns why the search ended."""
        start = ledger.best or ledger.nearest
        assert start is not None, "something was evaluated"
        ledger.allow(max(0, self.budget - ledger.evaluations))
        try:
            polish(ledger, start)
        except OutOfBudget as stop:
            return stop.reason
        return termination


def _excluding(structure: Problem, original: Problem) -> Problem:
    """The problem of a structure, with the GPUs that the original one's search may not use."""
    exclude = () if original.search is None else original.search.exclude
    return msgspec.structs.replace(structure, search=SearchSpace(exclude=exclude))


def _difference(best: Found, second: Found) -> str:
    """What distinguishes the runner-up, in words."""
    if second.space is not best.space:
        return second.space.structure.describe()
    moved = [v for v in best.space.vertices if second.plan[v] != best.plan[v]]
    return f"another plan of {', '.join(moved)}"


def _configuration(
    search: Search, best: Found, ledger: Ledger, spaces: list[Space], notes: list[str]
) -> Configuration:
    """The configuration of `best`, with the report of how it was found."""
    chosen = best.space
    if len(spaces) > 1:
        notes = [f"chosen of {len(spaces)} structures: {chosen.structure.describe()}", *notes]
    baselines = ledger.baselines
    for name in ("greedy", "concurrent"):
        if name in ledger.tried and name not in baselines:
            notes.append(f"the {name} plan does not fit in memory")
    second = ledger.runner_up(best)
    if second is not None:
        baselines["runner-up"] = second.evaluation.score
        notes.append(f"runner-up: {_difference(best, second)}")
    problem = msgspec.structs.replace(chosen.problem, plan={}, search=None)
    notes += _fusion_note(problem, best.plan)
    return Configuration(
        problem=problem,
        plan={v: best.plan[v] for v in chosen.vertices},
        search=SearchReport(
            method=search.method,
            evaluations=ledger.evaluations,
            cache_hits=ledger.cache_hits,
            seed=search.seed,
            termination=ledger.termination,
            candidates={v: len(chosen.candidates[v]) for v in chosen.vertices},
            baselines=baselines,
            notes=tuple(notes),
        ),
    )
