"""Searching decision spaces: the restricted ones in parallel, then the whole one from what they found."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

import msgspec

from ir_schema.device import size
from ir_schema.diagnostics import Diagnostic, DiagnosticError
from ir_schema.problem import Problem, SearchSpace
from ir_schema.stages import Configuration, Scheduled, SearchReport
from passes.evaluate import evaluate
from passes.search import explore
from passes.search.restriction import EVERYTHING, PEERS, DecisionSpace, NotAllowed
from passes.search.settings import Settings
from passes.search.structures import structures
from passes.uncertainty import relation
from rpegc.compare.data import Comparison, Entry, Outcome
from rpegc.failure import suggestion, usage_error
from rpegc.figures import figures_of
from rpegc.outcome import INFEASIBLE
from rpegc.parallel import workers


@dataclass(frozen=True)
class Best:
    """The best configuration within a decision space, as a schedule, and how it was found; or why there is
    none: what the space needs, or what the search found wrong."""

    scheduled: Scheduled | None = None
    report: SearchReport | None = None
    needs: str | None = None
    diagnostics: tuple[Diagnostic, ...] = ()


def systems(names: Sequence[str]) -> list[DecisionSpace]:
    """The systems called `names`, in the order of the comparison; all if there are none.

    Raises UsageFailure E932 for an unknown name.
    """
    for name in names:
        if name not in PEERS:
            raise usage_error("E932", f"there is no system `{name}`", help=suggestion(name, PEERS))
    return [space for name, space in PEERS.items() if name in names or not names]


def compare(
    problem: Problem,
    spaces: Sequence[DecisionSpace],
    settings: Settings,
    *,
    jobs: int,
    on_progress: Callable[[int, int], None] = lambda done, of: None,
) -> Comparison:
    """The best plans of `problem` within each of `spaces` and without restriction.

    Every search is done with `settings`. The work is shared by `jobs` processes; without a time limit their
    number changes no result. `on_progress` is told how many of how many searches are done.
    Raises DiagnosticError when the problem is at fault, whatever the space.
    """
    # The file's own start need not lie in a restricted space, so only the whole one begins with it.
    unstarted = problem
    if problem.search is not None:
        unstarted = msgspec.structs.replace(
            problem, search=msgspec.structs.replace(problem.search, warm_start={})
        )
    different = list(dict.fromkeys(spaces))
    total = len(different) + 1
    with workers(max(1, min(jobs, len(different)))) as pool:
        searching: dict[DecisionSpace, Future[Best]] = {
            space: pool.submit(best_within, unstarted, settings, space, ()) for space in different
        }
        found = {}
        for space, future in searching.items():
            found[space] = future.result()
            on_progress(len(found), total)
        starts = tuple(b.scheduled.configuration for b in found.values() if b.scheduled)
        free = pool.submit(best_within, problem, settings, EVERYTHING, starts).result()
    on_progress(total, total)
    if free.diagnostics and not _infeasible(free.diagnostics):
        raise DiagnosticError(free.diagnostics)
    return Comparison(
        problem=problem.name,
        gpus=size(problem.device_space),
        cost_model=problem.options.cost_model,
        objective=(problem.search or SearchSpace()).objective,
        budget=settings.budget,
        time_limit=settings.time_limit,
        seed=settings.seed,
        start_evaluations=sum(b.report.evaluations for b in found.values() if b.report is not None),
        entries=(
            *(_entry(problem, space, found[space], free) for space in spaces),
            _entry(problem, EVERYTHING, free, free),
        ),
        diagnostics=free.diagnostics,
    )


def best_within(
    problem: Problem, settings: Settings, space: DecisionSpace, starts: Sequence[Configuration]
) -> Best:
    """The best configuration within `space` that a search finds which begins with `starts`."""
    try:
        found = explore(problem, settings, within=space, starts=starts)
    except NotAllowed as exc:
        return Best(needs=str(exc))
    except DiagnosticError as exc:
        return Best(diagnostics=exc.diagnostics)
    assert found.search is not None, "a search reports"
    return Best(evaluate(found), found.search)


def _infeasible(found: Sequence[Diagnostic]) -> bool:
    """Whether the findings of a search say that nothing fits in memory."""
    return any(d.code in INFEASIBLE for d in found)


def _entry(problem: Problem, space: DecisionSpace, best: Best, free: Best) -> Entry:
    """What is told of the best plan in `space`, `free` being the one without restriction."""
    scheduled, report = best.scheduled, best.report
    if scheduled is None or report is None:
        told = best.diagnostics[0].message if best.diagnostics else f"it needs {best.needs}"
        outcome: Outcome = "infeasible" if _infeasible(best.diagnostics) else "not allowed"
        return Entry(name=space.name, summary=space.summary, outcome=outcome, reason=told)
    assert free.scheduled is not None, "the search without restriction starts from this plan"
    gain = free.scheduled.tokens_per_s / scheduled.tokens_per_s - 1
    related = None if best is free else relation(free.scheduled, scheduled)
    return Entry(
        name=space.name,
        summary=space.summary,
        outcome="ok",
        figures=figures_of(scheduled, report),
        rpeg_gain=None if best is free else gain,
        indistinguishable=None if related is None else related == "indistinguishable",
        structure=_structure(problem, scheduled.configuration),
        evaluations=report.evaluations,
        termination=report.termination,
        plan=dict(scheduled.configuration.plan),
    )


def _structure(problem: Problem, chosen: Configuration) -> str:
    """The structural choices of a configuration of `problem`, in words."""
    return next(
        structure.describe()
        for structure, made in structures(problem)
        if msgspec.structs.replace(made, plan={}) == chosen.problem
    )
