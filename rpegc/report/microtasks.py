"""When each microtask of a fused pair of trainings runs: the order is in the schedule, the durations are the
cost model's, and a microtask starts as soon as its position is free and what it needs has ended."""

from ir_schema.stages import Microtask, MicrotaskSchedule, Scheduled
from passes.analysis import Analysis
from passes.cost import model_for
from rpegc.report.data import FusedPipeline, TimedMicrotask


def fused_pipelines(scheduled: Scheduled) -> list[FusedPipeline]:
    """The microtasks of every fused pair with their times."""
    configuration = scheduled.configuration
    model, vertices = model_for(configuration.problem), Analysis(configuration.problem).vertex
    found = []
    members = {n.vertex: n.members for n in scheduled.nodes if n.members}
    for name, schedule in scheduled.microtasks.items():
        first, second = members[name]
        placements = configuration.plan[first], configuration.plan[second]
        cost = model.fused((vertices[first], vertices[second]), *placements)
        durations = {"F": cost.forward_ns, "B": cost.backward_ns}
        found.append(
            FusedPipeline(
                name=name,
                members=(first, second),
                second_model_reversed=schedule.second_model_reversed,
                makespan_ns=schedule.makespan_ns,
                positions=timed(schedule, durations),
            )
        )
    return found


def timed(
    schedule: MicrotaskSchedule, durations: dict[str, tuple[int, int]]
) -> tuple[tuple[TimedMicrotask, ...], ...]:
    """Starts and finishes per pipeline position; `durations` are ns by direction and model."""
    stages = len(schedule.order)
    finish: dict[Microtask, int] = {}
    rows: list[list[TimedMicrotask]] = [[] for _ in schedule.order]
    while sum(map(len, rows)) < sum(map(len, schedule.order)):
        for row, order in zip(rows, schedule.order, strict=True):
            while len(row) < len(order):
                task = order[len(row)]
                needs = _needs(task, stages)
                if not all(n in finish for n in needs):
                    break
                start = max([row[-1].finish_ns if row else 0, *(finish[n] for n in needs)])
                finish[task] = start + durations[task.direction][task.model]
                row.append(TimedMicrotask(task=task, start_ns=start, finish_ns=finish[task]))
    return tuple(map(tuple, rows))


def _needs(task: Microtask, stages: int) -> list[Microtask]:
    m, s, i = task.model, task.stage, task.microbatch
    if task.direction == "F":
        return [Microtask(m, s - 1, i, "F")] if s else []
    behind = [Microtask(m, s + 1, i, "B")] if s + 1 < stages else []
    return [Microtask(m, s, i, "F"), *behind]
