"""Microtask orders and the left-aligned form of token rows."""

import pytest
import torch

from rpeg_rt.engine.alignment import align
from rpeg_rt.engine.microtasks import Task, one_forward_one_backward


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
