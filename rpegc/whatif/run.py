"""What a change is worth, all changes of a plan: the jobs, in which order, and what comes of them.

The present plan is searched again first, with nothing changed: that gain is what a search alone finds, and
the plan it finds is one of those that every change starts from, so that no change takes the credit for it.
"""

import itertools
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TypeVar

from ir_schema.base import Record
from ir_schema.device import size
from ir_schema.envelope import identify, stage_name
from rpegc.failure import usage_error
from rpegc.figures import figures_of
from rpegc.outcome import plan_of, report_of, score_of
from rpegc.parallel import cores, workers
from rpegc.whatif.changes import Change, changes
from rpegc.whatif.data import Kind, WhatIf
from rpegc.whatif.weigh import by_gain, moves, scheduled, weigh

T = TypeVar("T")


def whatif(
    stage: Record,
    kinds: Sequence[Kind],
    *,
    budget: int,
    jobs: int,
    on_progress: Callable[[int, int], None] = lambda done, of: None,
) -> WhatIf:
    """The effects of all changes of `kinds` on the plan in `stage`.

    `budget` counts the evaluations of each search, 0 leaves out searching; the work is shared by `jobs`
    processes, whose number changes no result. `on_progress` is told how many of how many jobs are done.
    Raises UsageFailure E935 for a stage without a plan.
    """
    carried = plan_of(stage)
    if carried is None:
        raise usage_error(
            "E935",
            f"a `{stage_name(stage)}` has no plan to change",
            help="compile it first: `rpegc FILE -o plan.exe.json`",
        )
    problem, plan = carried[0], dict(carried[1])
    present = scheduled(problem, plan)
    base = figures_of(present, report_of(stage))
    tried, left_out = changes(problem, kinds)
    vertices = [v.name for v in problem.graph.vertices if v.model is not None and "operator" in kinds]
    searching = budget > 0 and bool(tried or "search" in kinds)
    total = len(tried) + len(vertices) + searching
    jobs = max(1, min(jobs, total))
    threads = max(1, cores() // jobs)
    counter = itertools.count(1)

    with workers(jobs) as pool:

        def submit(work: Callable[..., T], *arguments: object) -> Future[T]:
            future = pool.submit(work, *arguments)
            future.add_done_callback(lambda _: on_progress(next(counter), total))
            return future

        plans = [plan]
        effects = []
        if searching:
            nothing = Change("search", "nothing, but searched again", problem)
            again = submit(weigh, nothing, plans, budget, threads, present)
        moving = [submit(moves, problem, plan, v, present) for v in vertices]
        if searching:
            effects.append(again.result())
            plans.append(effects[0].plan)
        weighing = [submit(weigh, change, plans, budget, threads, present) for change in tried]
        effects += [effect for future in moving for effect in future.result()]
        effects += [future.result() for future in weighing]
    said = score_of(stage)
    differs = said is not None and figures_of(said, report_of(stage)) != base
    notice = "the file's figures are not this release's: compile the problem again to compare with them"
    return WhatIf(
        name=problem.name,
        stage=stage_name(stage),
        stage_id=identify(stage),
        gpus=size(problem.device_space),
        base=base,
        budget=budget,
        effects=tuple(by_gain(effects)),
        left_out=tuple(left_out),
        notices=(notice,) if differs else (),
    )
