"""The configuration that a search found, with the report of how it was found."""

from collections.abc import Mapping, Sequence

import msgspec

from ir_schema.problem import Problem
from ir_schema.stages import Configuration, Scheduled, SearchReport, Ties
from passes.analysis import Analysis
from passes.evaluate import evaluate
from passes.search.found import Found
from passes.search.ledger import Ledger
from passes.search.progress import optimality_gap
from passes.search.settings import Settings
from passes.structure import Plan, fusion_obstacle
from passes.uncertainty import COVERAGE, relation, unknown


def configuration(best: Found, ledger: Ledger, settings: Settings, notes: list[str]) -> Configuration:
    """The configuration of `best`; `notes` go before the report's own, except which structure was chosen."""
    chosen = best.space
    if len(ledger.spaces) > 1:
        notes = [f"chosen of {len(ledger.spaces)} structures: {chosen.structure.describe()}", *notes]
    baselines = dict(ledger.baselines)
    notes = notes + [
        f"the {name} plan does not fit in memory"
        for name in ("warm start", "greedy", "concurrent")
        if name in ledger.tried and name not in baselines
    ]
    second = ledger.runner_up(best)
    if second is not None:
        baselines["runner-up"] = second
        notes.append(f"runner-up: {_difference(best, second)}")
    problem = msgspec.structs.replace(chosen.problem, plan={}, search=None)
    plan = best.plan
    step_s = best.evaluation.makespan_ns * 1e-9 / problem.options.steps
    bound_s = ledger.lower_bound_s
    gap = None if bound_s is None else optimality_gap(step_s, bound_s)
    if ledger.lower_bound_ns is not None and best.evaluation.makespan_ns < ledger.lower_bound_ns:
        raise AssertionError(f"makespan {best.evaluation.makespan_ns} ns, bound {ledger.lower_bound_ns} ns")
    return Configuration(
        problem=problem,
        plan={v: plan[v] for v in chosen.vertices},
        search=SearchReport(
            method=settings.method,
            evaluations=ledger.evaluations,
            cache_hits=ledger.cache_hits,
            seed=settings.seed,
            termination=ledger.termination,
            lower_bound_s=bound_s,
            optimality_gap=0.0 if ledger.proven else gap,
            candidates={v: len(chosen.candidates[v]) for v in chosen.vertices},
            baselines={name: found.evaluation.score for name, found in baselines.items()},
            ties=ties(best, ledger.others(best), baselines),
            notes=(*notes, *fusion_note(problem, plan)),
        ),
    )


def ties(best: Found, others: Sequence[Found], baselines: Mapping[str, Found]) -> Ties | None:
    """Which of `others` and of `baselines` cannot be told from `best` by their step times; None where the
    hardware file does not say how far predictions are off."""
    if unknown(best.space.problem):
        return None
    chosen = _scheduled(best)

    def tied(found: Found) -> bool:
        return relation(chosen, _scheduled(found)) == "indistinguishable"

    return Ties(
        coverage=COVERAGE,
        kept=len(others),
        indistinguishable=sum(map(tied, others)),
        baselines=tuple(name for name, found in baselines.items() if tied(found)),
    )


def _scheduled(found: Found) -> Scheduled:
    problem = msgspec.structs.replace(found.space.problem, plan={}, search=None)
    return evaluate(Configuration(problem=problem, plan=found.plan))


def _difference(best: Found, second: Found) -> str:
    """What distinguishes the runner-up, in words."""
    if second.space is not best.space:
        return second.space.structure.describe()
    ours, theirs = best.plan, second.plan
    moved = [v for v in best.space.vertices if theirs[v] != ours[v]]
    return f"another plan of {', '.join(moved)}"


def fusion_note(problem: Problem, plan: Plan) -> list[str]:
    """What the report says of a fusion that was asked for and has no effect."""
    obstacle = fusion_obstacle(Analysis(problem), plan)
    if obstacle is None:
        return []
    return [f"fusing {' and '.join(problem.options.fuse or ())} has no effect: {obstacle}"]
