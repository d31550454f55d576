"""How searches converged: the logs of one or several, as figures and as a plot of the best plan so far."""

from collections.abc import Callable, Sequence
from typing import Any

from ir_schema.base import Record
from rpegc.searchlog import Log
from rpegc.table import duration, table

NEAR = 0.01


class Convergence(Record, frozen=True, kw_only=True):
    """One search. `near_s` and `near_evaluations` is when a plan was within 1 % of the best one's value.

    `termination` is None where the log has no last line, everything else where no plan was found.
    """

    log: str
    problem: str
    method: str
    seed: int
    improvements: int
    seconds: float
    evaluations: int
    termination: str | None
    step_s: float | None = None
    score: float | None = None
    lower_bound_s: float | None = None
    gap: float | None = None
    near_s: float | None = None
    near_evaluations: int | None = None


def convergence(log: Log) -> Convergence:
    """The figures of one log; of a search that still runs, those so far."""
    begin, found, end = log.begin, log.improvements, log.end
    last = found[-1] if found else None
    near = next((x for x in found if last and x.value >= (1 - NEAR) * last.value), None)
    evaluations = end.evaluations if end and end.evaluations is not None else None
    return Convergence(
        log=log.name,
        problem=begin.problem,
        method=begin.method,
        seed=begin.seed,
        improvements=len(found),
        seconds=end.seconds if end else last.seconds if last else 0.0,
        evaluations=evaluations if evaluations is not None else last.evaluations if last else 0,
        termination=end.termination if end else None,
        step_s=last.step_s if last else None,
        score=last.score if last else None,
        lower_bound_s=end.lower_bound_s if end else last.lower_bound_s if last else None,
        gap=end.gap if end else last.gap if last else None,
        near_s=near.seconds if near else None,
        near_evaluations=near.evaluations if near else None,
    )


def render(found: Sequence[Convergence]) -> str:
    """One row per search."""
    header = ("log", "method", "seed", "step", "gap", "within 1 %", "evaluations", "end", "evaluations", "by")
    rows = [
        (
            c.log,
            c.method,
            c.seed,
            _shown(c.step_s, duration),
            _shown(c.gap, lambda gap: f"{100 * gap:.3g} %"),
            _shown(c.near_s, duration),
            _shown(c.near_evaluations, str),
            duration(c.seconds),
            c.evaluations,
            c.termination or "(it has not ended)",
        )
        for c in found
    ]
    return table(header, rows, right=range(2, 9))


def _shown(value: Any, text: Callable[[Any], str]) -> str:
    return "-" if value is None else text(value)


def draw(logs: Sequence[Log], figure: Any) -> None:
    """Draw the best plan so far of every log against seconds and against evaluations.

    Step times with their lower bounds; where a search had another objective than throughput, the values of
    the objective.
    """
    by_time = all(log.begin.objective == "throughput" for log in logs)
    left, right = figure.subplots(1, 2, sharey=True)
    for log in logs:
        if not log.improvements:
            continue
        found, last = convergence(log), log.improvements[-1]
        points = [(x.seconds, x.evaluations, x) for x in log.improvements]
        points.append((found.seconds, found.evaluations, last))  # the last plan is the best until the end
        seconds, evaluations, plans = zip(*points, strict=True)
        heights = [x.step_s if by_time else x.value for x in plans]
        for axes, places in ((left, seconds), (right, evaluations)):
            (line,) = axes.step(places, heights, where="post", label=log.name)
            if by_time and found.lower_bound_s is not None:
                axes.axhline(found.lower_bound_s, color=line.get_color(), linestyle=":", linewidth=1)
    left.set_ylabel("step time of the best plan [s]" if by_time else "value of the best plan")
    for axes, what in ((left, "seconds"), (right, "evaluations")):
        axes.set_xlabel(what)
        axes.set_xscale("log")
        axes.grid(alpha=0.3)
    if left.get_lines():
        left.legend(fontsize="small")
