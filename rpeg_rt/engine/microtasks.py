"""Microtasks of a training step: forward or backward of one microbatch on one pipeline stage.

Pure, so that controller and verifier hold a plan's interleaving of two models to the same rules as the
workers that follow it.
"""

import hashlib
from typing import Literal, NamedTuple

from ir_schema.envelope import canonical
from ir_schema.stages import Microtask, MicrotaskSchedule


class ScheduleError(ValueError):
    """A microtask schedule that does not fit the models, their layouts or their microbatches."""


class Task(NamedTuple):
    """Forward or backward of one microbatch."""

    direction: Literal["F", "B"]
    microbatch: int


def one_forward_one_backward(stage: int, stages: int, microbatches: int) -> list[Task]:
    """1F1B: min(m, P - stage) forwards to warm up, then backward and forward in turn."""
    warm = min(microbatches, stages - stage)
    order = [Task("F", i) for i in range(warm)]
    for i in range(microbatches):
        order.append(Task("B", i))
        if warm + i < microbatches:
            order.append(Task("F", warm + i))
    return order


def schedule_hash(schedule: MicrotaskSchedule) -> str:
    """The hash that identifies a schedule's order, computed anew."""
    return hashlib.sha256(canonical(schedule.order)).hexdigest()


def stage_of(schedule: MicrotaskSchedule, model: int, position: int) -> int:
    """The stage of model 0 or 1 that lies at a pipeline position; positions are those of model 0's stages."""
    return len(schedule.order) - 1 - position if model and schedule.second_model_reversed else position


def check_schedule(schedule: MicrotaskSchedule, stages: int, microbatches: tuple[int, int]) -> None:
    """Raises ScheduleError unless a schedule for two models with `microbatches` each is what it says it is.

    Its hash is that of its order, every position runs both models' own microtasks in 1F1B order, and no
    two positions wait for each other.
    """
    if len(schedule.order) != stages:
        raise ScheduleError(f"a schedule of {len(schedule.order)} positions for {stages} pipeline stages")
    if schedule.hash != schedule_hash(schedule):
        raise ScheduleError("the microtasks are not those that the schedule's hash was made of")
    for position, order in enumerate(schedule.order):
        for model, count in enumerate(microbatches):
            stage = stage_of(schedule, model, position)
            planned = [(t.stage, Task(t.direction, t.microbatch)) for t in order if t.model == model]
            if planned != [(stage, t) for t in one_forward_one_backward(stage, stages, count)]:
                raise ScheduleError(
                    f"the microtasks of model {model} at position {position} are not those of stage {stage} "
                    f"with {count} microbatches in 1F1B order"
                )
        if any(t.model not in (0, 1) for t in order):
            raise ScheduleError(f"position {position} has microtasks of a third model")
    _check_progress(schedule)


def _check_progress(schedule: MicrotaskSchedule) -> None:
    """Run the schedule dry: some position can always go on."""
    done: set[Microtask] = set()
    waiting = [list(reversed(order)) for order in schedule.order]
    moved = True
    while moved:
        moved = False
        for order in waiting:
            while order and _is_ready(order[-1], len(waiting), done):
                done.add(order.pop())
                moved = True
    if any(waiting):
        raise ScheduleError("the microtasks of the positions wait for each other")


def _is_ready(t: Microtask, stages: int, done: set[Microtask]) -> bool:
    neighbour = t.stage - 1 if t.direction == "F" else t.stage + 1
    return neighbour not in range(stages) or Microtask(t.model, neighbour, t.microbatch, t.direction) in done


def planned_microtasks(
    schedule: MicrotaskSchedule, position: int, rows: int, *, lockstep: bool
) -> tuple[Microtask, ...]:
    """What a rank at `position` runs for a minibatch of which its replica has `rows` rows: without the
    microbatches that would be empty, unless the replicas go in `lockstep`."""
    return tuple(t for t in schedule.order[position] if lockstep or t.microbatch < rows)
