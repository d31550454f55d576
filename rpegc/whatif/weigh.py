"""What a change is worth: the present plan under it, and the plan that a search finds for it."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from ir_schema.device import size
from ir_schema.diagnostics import DiagnosticError
from ir_schema.problem import PartialPlacement, Placement, Problem, SearchSpace
from ir_schema.stages import Configuration, Scheduled, SearchReport
from passes.evaluate import evaluate
from passes.search import Search
from passes.search.candidates import Enumeration
from passes.search.constraints import Rules
from passes.search.evaluator import Evaluator
from passes.search.legality import legal
from passes.structure import Plan
from passes.uncertainty import relation
from rpegc.dump import placement_text
from rpegc.figures import figures_of
from rpegc.whatif.changes import Change
from rpegc.whatif.data import Effect, How


class _Known(NamedTuple):
    """A plan, what is predicted of it, and how it was searched for (None: it was not)."""

    plan: dict[str, Placement]
    stage: Scheduled
    report: SearchReport | None = None


def weigh(change: Change, plans: Sequence[Plan], budget: int, threads: int, base: Scheduled) -> Effect:
    """The effect of `change`: of `plans`, the present one first, those that stay legal, and what a search of
    `budget` evaluations (0: none) by `threads` finds from the best of them."""
    problem, notes = change.problem, change.notes
    carried = [change.carry(plan) for plan in plans]
    known = [_Known(p, scheduled(problem, p)) for p in carried if _legal(problem, p)]
    same = known[0].stage if known and known[0].plan == carried[0] else None
    if budget:
        start = max(known, key=_worth).plan if known else {}
        # Splitting is a change of its own: the search keeps to what the problem says of it.
        space = SearchSpace(split=(problem.options.split,), warm_start=start)
        try:
            found = Search(budget=budget, threads=threads).run(msgspec.structs.replace(problem, search=space))
            known.append(_Known(found.plan, scheduled(problem, found.plan), found.search))
        except DiagnosticError as exc:
            notes += tuple(f"{change.text}: {d.message}" for d in exc.diagnostics)
    best = max(known, key=_worth, default=None)
    how: How = "same plan" if best is not None and best.plan == carried[0] else "re-planned"
    return Effect(
        kind=change.kind,
        change=change.text,
        changes_training=change.changes_training,
        gpus=size(problem.device_space),
        same_plan=None if same is None else figures_of(same, None),
        same_plan_gain_percent=_gain(same, base),
        best=None if best is None else figures_of(best.stage, best.report),
        gain_percent=_gain(best and best.stage, base),
        indistinguishable=_indistinguishable(best and best.stage, base),
        how=None if best is None else how,
        plan={} if best is None else best.plan,
        notes=notes,
    )


def scheduled(problem: Problem, plan: Plan) -> Scheduled:
    """What is predicted of `plan`."""
    return evaluate(Configuration(problem=problem, plan=plan))


def _indistinguishable(found: Scheduled | None, base: Scheduled) -> bool | None:
    """Whether the two may be equally fast as far as the hardware file knows its errors; None where it knows
    none, or steps do not process the same tokens."""
    workload = base.configuration.problem.workload
    if found is None or found.configuration.problem.workload != workload:
        return None
    related = relation(base, found)
    return None if related is None else related == "indistinguishable"


def _gain(found: Scheduled | None, base: Scheduled) -> float | None:
    """Change of tokens per second [%]."""
    return None if found is None else 100 * (found.tokens_per_s / base.tokens_per_s - 1)


def _worth(known: _Known) -> tuple[bool, float]:
    """What makes one plan better than another: to fit, then to be faster."""
    return known.stage.memory_feasible, known.stage.tokens_per_s


def _legal(problem: Problem, plan: Plan) -> bool:
    return not any(legal(problem, v, plan[v.name]) for v in problem.graph.vertices if v.model is not None)


def moves(problem: Problem, plan: Plan, vertex: str, base: Scheduled) -> list[Effect]:
    """The effects of giving `vertex` the best other allocation, and the best other layout where it stands,
    everything else of `plan` being left as it is."""
    evaluator = Evaluator(problem)
    index = evaluator.placed.index(vertex)
    rules = Rules(problem, evaluator.analysis.vertex[vertex], 0)
    candidates = Enumeration(evaluator, rules, PartialPlacement()).candidates()
    own = evaluator.row(plan)
    places = [
        (number, start)
        for number, shape in zip(candidates.numbers, candidates.shapes, strict=True)
        for start in candidates.starts[shape.gpus]
    ]
    if not places:  # it does not even fit alone
        return []
    rows = np.repeat(own[None], len(places), axis=0)
    rows[:, index] = places
    keys = evaluator.keys(np.concatenate([own[None], rows]))
    rows = rows[(keys[1:] != keys[0]).any(axis=1)]  # what differs in its place alone is no change
    batch = evaluator.evaluate_rows(rows)
    fits = batch.peak_bytes <= evaluator.limit_bytes
    order = np.lexsort((np.where(fits, batch.makespan_ns, batch.peak_bytes), ~fits))
    gpus = evaluator.sizes(index)
    stays = (rows[:, index, 1] == own[index, 1]) & (gpus[rows[:, index, 0]] == gpus[own[index, 0]])
    effects = []
    for what, chosen in (("moved", order[~stays[order]]), ("laid out anew", order[stays[order]])):
        if len(chosen):
            moved = evaluator.plan(rows[chosen[0]])
            effects.append(_move(problem, plan | {vertex: moved[vertex]}, vertex, what, base))
    return effects


def _move(problem: Problem, plan: Plan, vertex: str, what: str, base: Scheduled) -> Effect:
    best = scheduled(problem, plan)
    return Effect(
        kind="operator",
        change=f"{vertex} {what}: {placement_text(plan[vertex])}",
        changes_training=False,
        gpus=size(problem.device_space),
        same_plan=None,
        same_plan_gain_percent=None,
        best=figures_of(best, None),
        gain_percent=_gain(best, base),
        indistinguishable=_indistinguishable(best, base),
        how="one move",
        plan=plan,
    )


def by_gain(effects: Iterable[Effect]) -> list[Effect]:
    """Those whose best plan fits first, then by falling gain; those without a plan last."""
    return sorted(
        effects,
        key=lambda e: (e.best is None, not (e.best and e.best.fits), -(e.gain_percent or 0)),
    )
