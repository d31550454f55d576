"""The rules of interleaved microtasks, held against the compiler's own schedules and against broken ones."""

import dataclasses

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ir_schema.problem import Workload
from ir_schema.stages import Microtask, MicrotaskSchedule
from passes.microtasks import schedule_pair
from rpeg_rt.algorithms.batch import minibatches
from rpeg_rt.engine.microtasks import ScheduleError, check_schedule, planned_microtasks, schedule_hash
from rpeg_rt.rows import block, minibatch_rows, to_indices
from tests.rpeg_rt.engine.test_parity import batch_of

counts = st.integers(1, 6)
times = st.tuples(st.integers(0, 9), st.integers(0, 9))


@given(st.integers(1, 4), st.tuples(counts, counts), times, times)
def test_every_schedule_of_the_compiler_is_accepted(stages, microbatches, forward, backward) -> None:
    check_schedule(schedule_pair(stages, microbatches, forward, backward), stages, microbatches)


def test_positions_that_wait_for_each_other_are_refused() -> None:
    f, b = "F", "B"
    # Position 0 wants model 0's gradient before model 1 may start; position 1 wants model 1's input first.
    order = (
        (Microtask(0, 0, 0, f), Microtask(0, 0, 0, b), Microtask(1, 0, 0, f), Microtask(1, 0, 0, b)),
        (Microtask(1, 1, 0, f), Microtask(1, 1, 0, b), Microtask(0, 1, 0, f), Microtask(0, 1, 0, b)),
    )
    stuck = MicrotaskSchedule(order=order, makespan_ns=0, second_model_reversed=False, hash="")
    stuck = msgspec.structs.replace(stuck, hash=schedule_hash(stuck))
    with pytest.raises(ScheduleError, match="wait for each other"):
        check_schedule(stuck, 2, (1, 1))


@pytest.mark.parametrize("more", [Microtask(2, 0, 0, "F"), Microtask(0, 0, 1, "F")])
def test_a_microtask_too_many_is_refused(more: Microtask) -> None:
    plan = schedule_pair(1, (1, 1), (1, 1), (3, 3))
    plan = msgspec.structs.replace(plan, order=((*plan.order[0], more),))
    with pytest.raises(ScheduleError):
        check_schedule(msgspec.structs.replace(plan, hash=schedule_hash(plan)), 1, (1, 1))


def test_microbatches_beyond_the_rows_are_left_out() -> None:
    plan = schedule_pair(1, (2, 3), (1, 1), (3, 3))
    assert planned_microtasks(plan, 0, 3, lockstep=False) == plan.order[0]
    assert {t.microbatch for t in planned_microtasks(plan, 0, 1, lockstep=False)} == {0}
    assert planned_microtasks(plan, 0, 0, lockstep=False) == ()
    assert planned_microtasks(plan, 0, 0, lockstep=True) == plan.order[0]


@given(st.integers(1, 7), st.integers(1, 3), st.integers(1, 3), st.integers(1, 4), st.integers(1, 4))
def test_rows_of_minibatches_are_those_of_training(prompts, rollouts, epochs, deal, replicas) -> None:
    w = Workload(
        prompts=prompts,
        rollouts=rollouts,
        prompt_length=2,
        response_length=2,
        epochs=epochs,
        minibatches=deal,
    )
    for d in range(replicas):
        mine = torch.from_numpy(to_indices(block(w, replicas, d)))
        batch = batch_of(torch.zeros(len(mine), 4, dtype=torch.int32))
        batch = dataclasses.replace(batch, prompts=mine // rollouts)
        assert minibatch_rows(w, replicas, d) == [len(part) for part in minibatches(batch, deal, epochs)]
