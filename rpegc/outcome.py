"""What came of a compilation, for programs (`--json`) and for people (`--summary`)."""

from collections.abc import Mapping, Sequence
from typing import Any

from ir_schema.base import Record
from ir_schema.diagnostics import Diagnostic, Label
from ir_schema.problem import Placement, Problem
from ir_schema.stages import Configuration, CostedNode, Executable, Scheduled, Score, SearchReport, Ties
from passes.evaluate import evaluate
from passes.uncertainty import Uncertainty, uncertainty
from passes.verify import warnings
from rpegc.driver import StageRun
from rpegc.dump import plan_table, score_lines
from rpegc.failure import EXIT_INTERRUPTED, EXIT_OK
from rpegc.table import change, duration, indent, size, table

INFEASIBLE = frozenset({"E420", "E421"})


class StageOutcome(Record, frozen=True, kw_only=True):
    """A stage that came into being: its name and id, the pass that made it, seconds taken."""

    stage: str
    id: str
    made_by: str | None
    seconds: float


class Outcome(Record, frozen=True, kw_only=True):
    """The object printed by `--json`; what is not known is null.

    `outcome` is ok, infeasible, error or interrupted. `plan_id` is the id of the executable, the plan's hash.
    No plan that could have been found has a step time below `lower_bound_s`; `optimality_gap` is (step time -
    bound) / step time. `uncertainty` is how far the step time may be off, `ties` which plans that the search
    kept cannot be told from this one.
    """

    outcome: str
    plan_id: str | None = None
    tokens_per_second: float | None = None
    step_time_s: float | None = None
    uncertainty: Uncertainty | None = None
    utilization: float | None = None
    peak_memory_bytes: int | None = None
    memory_limit_bytes: int | None = None
    lower_bound_s: float | None = None
    optimality_gap: float | None = None
    ties: Ties | None = None
    evaluations: int | None = None
    cache_hits: int | None = None
    search_seconds: float | None = None
    seed: int | None = None
    termination: str | None = None
    stages: tuple[StageOutcome, ...] = ()
    diagnostics: tuple[Diagnostic, ...] = ()


def outcome_of(code: int, runs: Sequence[StageRun], diagnostics: Sequence[Diagnostic]) -> Outcome:
    """What came of a pipeline that made `runs` and ended with exit code `code` after `diagnostics`."""
    score, report = _latest(runs, score_of), _latest(runs, report_of)
    plan_id = next((r.id for r in runs if isinstance(r.stage, Executable)), None)
    return Outcome(
        outcome=_verdict(code, score, diagnostics),
        plan_id=plan_id,
        tokens_per_second=score.tokens_per_s if score else None,
        step_time_s=score.step_time_s if score else None,
        uncertainty=_latest(runs, uncertainty_of),
        utilization=score.utilisation if score else None,
        peak_memory_bytes=score.max_peak_bytes if score else None,
        memory_limit_bytes=score.memory_limit_bytes if score else None,
        lower_bound_s=report.lower_bound_s if report else None,
        optimality_gap=report.optimality_gap if report else None,
        ties=report.ties if report else None,
        evaluations=report.evaluations if report else None,
        cache_hits=report.cache_hits if report else None,
        search_seconds=next((r.seconds for r in runs if r.made_by and r.made_by.name == "search"), None),
        seed=report.seed if report else None,
        termination=report.termination if report else None,
        stages=tuple(
            StageOutcome(
                stage=r.name, id=r.id, made_by=r.made_by.name if r.made_by else None, seconds=r.seconds
            )
            for r in runs
        ),
        diagnostics=tuple(diagnostics),
    )


def _verdict(code: int, score: Score | None, diagnostics: Sequence[Diagnostic]) -> str:
    if code == EXIT_OK:
        return "ok" if score is None or score.memory_feasible else "infeasible"
    if code == EXIT_INTERRUPTED:
        return "interrupted"
    return "infeasible" if {d.code for d in diagnostics} & INFEASIBLE else "error"


def notices(runs: Sequence[StageRun]) -> list[Diagnostic]:
    """What a user should know about a problem and a plan that are not wrong."""
    given = runs[0].stage
    found = warnings(given) if isinstance(given, Problem) else []
    plan, score = _latest(runs, plan_of), _latest(runs, score_of)
    if plan is not None:
        problem = plan[0]
        staleness = max((problem.graph.staleness.get(m, 0) for m in problem.graph.trainable), default=0)
        if score is not None and problem.options.steps <= 2 * staleness + 1:
            found.append(
                Diagnostic(
                    code="W401",
                    severity="warning",
                    message=f"{problem.options.steps} steps are too few to see the steady state "
                    f"with a staleness of {staleness}",
                    labels=(Label(path="options.steps"),),
                    help=f"score at least {2 * staleness + 2} steps",
                )
            )
    if score is not None and not score.memory_feasible:
        found.append(
            Diagnostic(
                code="W402",
                severity="warning",
                message=f"the plan does not fit: {size(score.max_peak_bytes)} of "
                f"{size(score.memory_limit_bytes)} on the fullest GPU",
            )
        )
    return found


def score_of(stage: Record) -> Score | None:
    """The figures that a stage carries."""
    if isinstance(stage, Executable):
        return stage.prediction.score
    return stage if isinstance(stage, Scheduled) else None


def uncertainty_of(stage: Record) -> Uncertainty | None:
    """How far the step time of a schedule may be off."""
    return uncertainty(stage) if isinstance(stage, Scheduled) else None


def report_of(stage: Record) -> SearchReport | None:
    """How the plan that a stage carries was found."""
    if isinstance(stage, (Configuration, Executable)):
        return stage.search
    configuration = getattr(stage, "configuration", None)
    return configuration.search if isinstance(configuration, Configuration) else None


def plan_of(stage: Record) -> tuple[Problem, Mapping[str, Placement]] | None:
    """The problem and the complete plan that a stage carries."""
    if isinstance(stage, (Configuration, Executable)):
        return stage.problem, stage.plan
    configuration = getattr(stage, "configuration", None)
    return (configuration.problem, configuration.plan) if isinstance(configuration, Configuration) else None


def schedule_of(stage: Record) -> Scheduled | None:
    """The schedule that `stage` is, or that its plan leads to; None without a plan."""
    if isinstance(stage, Scheduled):
        return stage
    found = plan_of(stage)
    if found is None:
        return None
    problem, plan = found
    return evaluate(Configuration(problem=problem, plan=dict(plan), search=report_of(stage)))


def _latest(runs: Sequence[StageRun], look: Any) -> Any:
    return next((found for r in reversed(runs) if (found := look(r.stage)) is not None), None)


def summary(runs: Sequence[StageRun]) -> str:
    """The plan as a table, its figures, and what the other ways to plan would have given."""
    plan, score, report = _latest(runs, plan_of), _latest(runs, score_of), _latest(runs, report_of)
    nodes = _latest(runs, lambda s: getattr(s, "template", None) or _costed(s))
    if plan is None:
        return f"{runs[-1].name} {runs[-1].id[:12]}: no plan yet"
    problem, placements = plan
    parts = [f"{problem.name}: {runs[-1].name} {runs[-1].id[:12]}"]
    parts.append(indent(plan_table(problem, placements, _operator_times(nodes) if nodes else None)))
    if score is not None:
        parts.append(indent(score_lines(score, _latest(runs, uncertainty_of))))
    if report is not None:
        parts.append(indent(_search_lines(report, score)))
    return "\n\n".join(parts)


def _costed(stage: Record) -> Sequence[CostedNode] | None:
    nodes = getattr(stage, "nodes", None)
    return nodes if nodes and isinstance(nodes[0], CostedNode) else None


def _operator_times(nodes: Sequence[CostedNode]) -> dict[str, float]:
    """Seconds of each operator in one step, its phases added; a composite counts under its members' names."""
    times: dict[str, float] = {}
    for n in nodes:
        if n.kind == "Op" and n.step == 0 and not n.members:
            times[n.vertex] = times.get(n.vertex, 0.0) + n.time_ns / 1e9
    return times


def _quality(gap: float, lower_bound_s: float) -> str:
    """How much better another plan could be, in words."""
    if gap == 0:
        return "proven optimal: no other plan that could be chosen is better"
    bound = duration(lower_bound_s)
    return f"at most {100 * gap:.3g} % of the step time to gain: no plan takes less than {bound} per step"


def _indistinguishable(ties: Ties) -> str:
    """How many other plans may be as fast, in words."""
    return (
        f"{ties.indistinguishable} of {ties.kept} other plans that the search kept are indistinguishable: "
        f"the {100 * ties.coverage:.0f} % interval of the difference in step time contains 0"
    )


def _search_lines(report: SearchReport, score: Score | None) -> str:
    if report.method == "none":
        return "\n".join(["the plan in the file", *(f"note: {n}" for n in report.notes)])
    lines = [
        f"found by {report.method}: {report.evaluations} evaluations, {report.cache_hits} cache hits, "
        f"seed {report.seed}, ended by {report.termination}"
    ]
    if report.optimality_gap is not None and report.lower_bound_s is not None:
        lines.append(_quality(report.optimality_gap, report.lower_bound_s))
    if report.baselines and score is not None:
        tied = report.ties.baselines if report.ties else ()
        rows = [
            (
                name,
                f"{tokens:.5g} tokens/s",
                change(tokens, score.score_tokens_per_s),
                "indistinguishable" if name in tied else "",
            )
            for name, tokens in report.baselines.items()
        ]
        lines.append("gain over other plans:")
        lines.append(indent(table(("plan", "score", "gain", ""), rows, right=(1, 2))))
    if report.ties is not None:
        lines.append(_indistinguishable(report.ties))
    return "\n".join([*lines, *(f"note: {n}" for n in report.notes)])
