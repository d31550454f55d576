"""Microtask orders, the left-aligned form of token rows, and what goes between stages."""

import socket

import pytest
import torch
import torch.distributed as dist

from rpeg_rt.engine.alignment import align
from rpeg_rt.engine.microtasks import Task, one_forward_one_backward
from tests.rpeg_rt.engine import harness, test_parity
from tests.rpeg_rt.engine.harness import layout


@pytest.mark.parametrize("stages", [1, 2, 3, 4])
@pytest.mark.parametrize("microbatches", [1, 2, 3, 7])
def test_1f1b_runs_every_microtask_once_and_never_waits_in_a_circle(stages, microbatches):
    orders = [one_forward_one_backward(s, stages, microbatches) for s in range(stages)]
    for stage, order in enumerate(orders):
        assert sorted(order) == sorted(Task(d, i) for d in "FB" for i in range(microbatches))
        live = peak = 0
        for task in order:
            live += 1 if task.direction == "F" else -1
            peak = max(peak, live)
        assert peak == min(microbatches, stages - stage)
        for direction in "FB":
            alone = [t.microbatch for t in order if t.direction == direction]
            assert alone == sorted(alone)
    done: set[tuple[int, Task]] = set()
    heads = [0] * stages
    while any(heads[s] < len(orders[s]) for s in range(stages)):
        progress = False
        for s in range(stages):
            if heads[s] == len(orders[s]):
                continue
            task = orders[s][heads[s]]
            earlier = s - 1 if task.direction == "F" else s + 1
            if 0 <= earlier < stages and (earlier, task) not in done:
                continue
            done.add((s, task))
            heads[s] += 1
            progress = True
        assert progress, "the stages wait for each other"


def test_1f1b_example():
    letters = ["".join(f"{d}{i}" for d, i in one_forward_one_backward(s, 2, 3)) for s in (0, 1)]
    assert letters == ["F0F1B0F2B1B2", "F0B0F1B1F2B2"]


def test_rows_are_left_aligned():
    tokens = torch.tensor(
        [[-1, 7, 8, 9, -1, -1], [3, 4, 5, 6, 2, 1], [-1, -1, 5, -1, -1, -1]], dtype=torch.int32
    )
    rows = align(tokens, prompt_length=3)
    assert rows.ids.tolist() == [[7, 8, 9, 0, 0, 0], [3, 4, 5, 6, 2, 1], [5, 0, 0, 0, 0, 0]]
    assert rows.mask.tolist() == [[True, False, False], [True, True, True], [False] * 3]
    assert rows.targets.tolist() == [9, 6, 2, 1]
    # Hidden states are [s, b]: the position before each response token, and the last token of each row.
    assert rows.predicting.tolist() == [1 * 3 + 0, 2 * 3 + 1, 3 * 3 + 1, 4 * 3 + 1]
    assert rows.last.tolist() == [2 * 3 + 0, 5 * 3 + 1, 0 * 3 + 2]
    assert rows.expand(torch.tensor([1.0, 2, 3, 4])).tolist() == [[1, 0, 0], [2, 3, 4], [0, 0, 0]]


def test_a_batch_without_responses_has_nothing_to_predict():
    rows = align(torch.tensor([[-1, 2, -1, -1]], dtype=torch.int32), prompt_length=2)
    assert rows.targets.tolist() == []
    assert rows.expand(torch.zeros(0)).tolist() == [[0, 0]]


def _piped(spec, shape, machines):
    """What an engine scores, trains and becomes, and the sizes of the tensors that this rank sent; rank r is
    on `machines[r]`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket, "gethostname", lambda: machines[dist.get_rank()])
        groups = harness.groups_of(list(range(shape.gpus)), shape)
    engine = harness.engine(spec, groups, trainable=test_parity.OPTIMIZER)
    tokens = test_parity.block(test_parity.responses(spec), groups)
    sent, isend = [], dist.isend
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dist, "isend", lambda t, *a, **k: (sent.append(t.numel()), isend(t, *a, **k))[1])
        scores = engine.score(tokens, 2, "logp", temperature=1.3)
        metrics = engine.train_minibatch(
            test_parity.batch_of(tokens), test_parity.loss, 3, temperature=1.3
        )  # fmt: skip
    engine.finish_version()
    return [scores, metrics, [s.tensor.clone() for s in engine.shards()]], sent


@pytest.mark.parametrize(
    ("shape", "machines", "share"),
    [
        pytest.param(layout(1, 2, 2), "aabb", 2, id="every rank its half"),
        pytest.param(layout(1, 2, 2), "aaab", 1, id="a tensor group on two machines"),
        pytest.param(layout(1, 4, 1), "abcd", 1, id="nothing to divide over"),
        pytest.param(layout(1, 2, 2, 2), "aaaabbbb", 2, id="context ranks", marks=pytest.mark.slow),
    ],
)
def test_between_machines_tensor_ranks_carry_a_part_each(shape, machines, share):
    spec = harness.spec(layers=4)
    near, far = (
        harness.launch(shape.gpus, lambda _, m=m: _piped(spec, shape, m)) for m in ("a" * 8, machines)
    )
    for (whole, all_sent), (parts, sent) in zip(near, far, strict=True):
        assert all_sent, "every rank sends to another stage"
        assert sent == [n // share for n in all_sent]
        assert torch.equal(parts[0], whole[0])
        assert parts[1] == whole[1]
        assert all(torch.equal(a, b) for a, b in zip(parts[2], whole[2], strict=True))
