"""Fused training: one optimizer step of two models whose microtasks are interleaved on the same ranks.

The order comes from the plan. Each model's own microtasks keep their 1F1B order, so that the result has the
bits of the two models trained one after the other; only bubbles are filled. The second model may run through
the pipeline the other way, its stage s where the first has stage P_p - 1 - s: its layout is then that of
`reverse_stages(ranks, layout)`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from ir_schema.stages import Microtask, MicrotaskSchedule
from rpeg_rt.algorithms.batch import TrainBatch
from rpeg_rt.engine.engine import Engine
from rpeg_rt.engine.pipeline import Task, one_forward_one_backward
from rpeg_rt.engine.training import Loss


class ScheduleError(ValueError):
    """A microtask schedule that does not fit the models, their layouts or their microbatches."""


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

    Microtasks of microbatches that would be empty, because a replica has fewer rows, are left out. Raises
    `ScheduleError` before anything is sent.
    """
    updates = (first, second)
    order = _order_here(updates, schedule)
    begun = [
        u.engine.begin_minibatch(u.batch, u.loss, u.microbatches, temperature, tag)
        for tag, u in enumerate(updates, start=1)
    ]
    executed = []
    for microtask in order:
        task = Task(microtask.direction, microtask.microbatch)
        if task in begun[microtask.model].order:
            begun[microtask.model].run(task)
            executed.append(microtask)
    one, two = (u.engine.finish_minibatch(done) for u, done in zip(updates, begun, strict=True))
    return FusedStep((one, two), tuple(executed))


def _order_here(updates: Sequence[Update], schedule: MicrotaskSchedule) -> tuple[Microtask, ...]:
    """This rank's microtasks, which must be both models' own in 1F1B order."""
    first, second = (u.engine.groups for u in updates)
    stages = first.layout.pipeline_parallel
    expected = first.place.pipeline
    if schedule.second_model_reversed:
        expected = stages - 1 - expected
    if first.layout != second.layout or second.place != first.place._replace(pipeline=expected):
        raise ScheduleError("the models of a fused training operator do not lie on the planned stages")
    if len(schedule.order) != stages:
        raise ScheduleError(f"a schedule of {len(schedule.order)} positions for {stages} pipeline stages")
    order = schedule.order[first.place.pipeline]
    for model, update in enumerate(updates):
        stage = update.engine.groups.place.pipeline
        planned = [(t.stage, Task(t.direction, t.microbatch)) for t in order if t.model == model]
        own = [(stage, t) for t in one_forward_one_backward(stage, stages, update.microbatches)]
        if planned != own:
            raise ScheduleError(
                f"the microtasks of model {model} at position {first.place.pipeline} are not those of stage "
                f"{stage} with {update.microbatches} microbatches in 1F1B order"
            )
    return order
