"""Two models trained with interleaved microtasks have the bits of the two trained one after the other."""

import msgspec
import pytest
import torch

from ir_schema.stages import Microtask, MicrotaskSchedule
from rpeg_rt.algorithms.batch import TrainBatch
from rpeg_rt.engine import reverse_stages
from rpeg_rt.engine.fused import Update, train_fused
from rpeg_rt.engine.microtasks import ScheduleError, one_forward_one_backward, schedule_hash
from tests.rpeg_rt.engine import harness
from tests.rpeg_rt.engine.harness import layout
from tests.rpeg_rt.engine.test_parity import OPTIMIZER, batch_of, block, loss, responses

ACTOR = harness.spec(vocabulary=13, layers=4, tied_embeddings=True)
CRITIC = harness.spec(vocabulary=13, layers=4, head="scalar", hidden=24, head_dim=8)
CASES = [
    (layout(1, 1, 1), (1, 1), False),
    (layout(1, 1, 1), (3, 2), False),
    (layout(2, 1, 1), (2, 2), False),
    (layout(1, 2, 1), (4, 4), False),
    (layout(1, 2, 1), (4, 4), True),
    (layout(1, 2, 1), (2, 5), True),
    (layout(1, 4, 1), (4, 6), False),
    (layout(1, 4, 1), (4, 4), True),
    (layout(1, 4, 1), (6, 4), True),
    (layout(2, 2, 1), (3, 2), True),
    (layout(1, 2, 2), (3, 4), True),
    (layout(1, 2, 1, 2), (3, 4), True),
    (layout(2, 2, 1), (6, 7), False),  # more microbatches than a replica has rows
]


def schedule(stages: int, microbatches: tuple[int, int], backwards: bool) -> MicrotaskSchedule:
    """Whatever can run next at a position runs, B before F, the models in turn: no planner is asked."""
    chains = {
        (m, s): [Microtask(m, s, i, d) for d, i in one_forward_one_backward(s, stages, count)]
        for m, count in enumerate(microbatches)
        for s in range(stages)
    }
    order: list[list[Microtask]] = [[] for _ in range(stages)]
    done: set[Microtask] = set()
    turn = 0
    while any(chains.values()):
        turn += 1
        ready = {}
        for (m, s), chain in chains.items():
            t = chain[0] if chain else None
            near = None if t is None else s - 1 if t.direction == "F" else s + 1
            if t is not None and (
                near not in range(stages) or Microtask(t.model, near, t.microbatch, t.direction) in done
            ):
                position = stages - 1 - s if m and backwards else s
                ready.setdefault(position, []).append(t)
        for position, tasks in ready.items():
            chosen = min(tasks, key=lambda t: (t.direction == "F", (t.model + turn) % 2))
            order[position].append(chosen)
            done.add(chosen)
            chains[chosen.model, chosen.stage].pop(0)
    return hashed(
        MicrotaskSchedule(
            order=tuple(map(tuple, order)), makespan_ns=0, second_model_reversed=backwards, hash=""
        )
    )


def hashed(plan: MicrotaskSchedule) -> MicrotaskSchedule:
    return msgspec.structs.replace(plan, hash=schedule_hash(plan))


def weights(engine):
    return [(s.name, s.slices, s.tensor.clone()) for s in engine.shards()]


def pair(shape, backwards):
    ranks = tuple(range(shape.gpus))
    there = reverse_stages(ranks, shape) if backwards else ranks
    groups = harness.groups_of(ranks, shape), harness.groups_of(there, shape)
    if not groups[0].member:
        return None
    return [
        harness.engine(spec, g, trainable=OPTIMIZER) for spec, g in zip((ACTOR, CRITIC), groups, strict=True)
    ]


def both_ways(shape, microbatches, backwards):
    """Metrics and weights after two steps: fused, and one model after the other."""
    plan = schedule(shape.pipeline_parallel, microbatches, backwards)
    results = []
    for fused in (True, False):
        engines = pair(shape, backwards)
        if engines is None:
            return None
        # Losses of different size, so that mixed up messages cannot go unnoticed.
        updates = [
            Update(e, batch_of(block(responses(e.spec), e.groups)), loss, count)
            for e, count in zip(engines, microbatches, strict=True)
        ]
        metrics = []
        for _ in range(2):
            if fused:
                step = train_fused(*updates, plan, temperature=1.3)
                metrics.append(list(step.metrics))
            else:
                metrics.append(
                    [u.engine.train_minibatch(u.batch, u.loss, u.microbatches, 1.3) for u in updates]
                )
        results.append((metrics, [weights(e) for e in engines]))
    planned = plan.order[engines[0].groups.place.pipeline]
    rows = len(updates[0].batch)
    return results, step.executed, tuple(t for t in planned if t.microbatch < rows)


@pytest.fixture(scope="module")
def outcomes():
    ranks = harness.launch(4, lambda _: [both_ways(*case) for case in CASES])
    return [[r[i] for r in ranks if r[i] is not None] for i in range(len(CASES))]


@pytest.mark.parametrize("i", range(len(CASES)), ids=lambda i: f"{i}-mb{CASES[i][1]}-reversed{CASES[i][2]}")
def test_fused_training_has_the_bits_of_training_one_after_the_other(i, outcomes):
    shape, _, backwards = CASES[i]
    assert len(outcomes[i]) == shape.gpus
    for (fused, alone), executed, planned in outcomes[i]:
        assert executed == planned
        assert fused[0] == alone[0]
        for mine, theirs in zip(fused[1], alone[1], strict=True):
            assert [x[:2] for x in mine] == [x[:2] for x in theirs]
            assert all(torch.equal(x[2], y[2]) for x, y in zip(mine, theirs, strict=True))
    if backwards:
        first_rank = {name for name, *_ in outcomes[i][0][0][0][1][1]}
        assert "model.norm.weight" in first_rank, "the second model's last stage lies on the first rank"


def refused(_):
    shape = layout(1, 2, 1)
    engines = pair(shape, False)
    nothing: TrainBatch = batch_of(responses(ACTOR)[:0])
    updates = [Update(e, nothing, loss, 2) for e in engines]
    for plan, words in (
        (schedule(2, (2, 2), True), "planned stages"),
        (schedule(1, (2, 2), False), "1 positions for 2"),
        (schedule(2, (2, 3), False), "model 1 at position"),
    ):
        with pytest.raises(ScheduleError, match=words):
            train_fused(*updates, plan)
    return True


def test_a_schedule_for_other_models_is_refused():
    assert harness.launch(2, refused) == [True, True]
