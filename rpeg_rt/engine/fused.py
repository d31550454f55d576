"""Fused training: one optimizer step of two models whose microtasks are interleaved on the same ranks.

The order comes from the plan. Each model's own microtasks keep their 1F1B order, so that the result has the
bits of the two models trained one after the other; only bubbles are filled. The second model may run through
the pipeline the other way, its stage s where the first has stage P_p - 1 - s: its layout is then that of
`reverse_stages(ranks, layout)`.
"""

from dataclasses import dataclass

from ir_schema.stages import Microtask, MicrotaskSchedule
from rpeg_rt.algorithms.batch import TrainBatch
from rpeg_rt.engine.engine import Engine
from rpeg_rt.engine.microtasks import ScheduleError, Task, check_schedule, planned_microtasks, stage_of
from rpeg_rt.engine.training import Loss


@dataclass(frozen=True)
class Update:
    """One model's part: what `Engine.train_minibatch` is given."""

    engine: Engine
    batch: TrainBatch
    loss: Loss
    microbatches: int


@dataclass(frozen=True)
class FusedStep:
    """Metrics of the first and the second model, and the microtasks of this rank in the order they ran."""

    metrics: tuple[dict[str, float], dict[str, float]]
    executed: tuple[Microtask, ...]


def train_fused(
    first: Update, second: Update, schedule: MicrotaskSchedule, temperature: float = 1.0
) -> FusedStep:
    """One optimizer step of each model (see `Engine.train_minibatch`) in the schedule's order. Collective
    over the ranks, which are those of both layouts.

    Microtasks of microbatches that would be empty, because a replica has fewer rows, are left out, unless the
    replicas go in lockstep. Raises `ScheduleError` before anything is sent.
    """
    updates = (first, second)
    _check(updates, schedule)
    begun = [
        u.engine.begin_minibatch(u.batch, u.loss, u.microbatches, temperature, tag)
        for tag, u in enumerate(updates, start=1)
    ]
    executed = []
    groups = first.engine.groups
    planned = planned_microtasks(schedule, groups.place.pipeline, len(first.batch), lockstep=groups.lockstep)
    for microtask in planned:
        begun[microtask.model].run(Task(microtask.direction, microtask.microbatch))
        executed.append(microtask)
    one, two = (u.engine.finish_minibatch(done) for u, done in zip(updates, begun, strict=True))
    return FusedStep((one, two), tuple(executed))


def _check(updates: tuple[Update, Update], schedule: MicrotaskSchedule) -> None:
    """The schedule is one of these models, and they lie where it says."""
    first, second = (u.engine.groups for u in updates)
    stages = first.layout.pipeline_parallel
    check_schedule(schedule, stages, (updates[0].microbatches, updates[1].microbatches))
    stage = stage_of(schedule, 1, first.place.pipeline)
    if first.layout != second.layout or second.place != first.place._replace(pipeline=stage):
        raise ScheduleError("the models of a fused training operator do not lie on the planned stages")
    if len(updates[0].batch) != len(updates[1].batch):
        raise ScheduleError("the models of a fused training operator have different rows")
