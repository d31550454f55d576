"""The microtask schedule of a fused pair of training operators (semantics: Fused training)."""

import hashlib
from functools import lru_cache

from ir_schema.envelope import canonical
from ir_schema.stages import Microtask, MicrotaskSchedule


def one_forward_one_backward(model: int, stage: int, stages: int, microbatches: int) -> list[Microtask]:
    """The 1F1B order of one model's stage, with warm-up min(mb, P_p - s)."""
    warmup = min(microbatches, stages - stage)
    order = [Microtask(model, stage, i, "F") for i in range(warmup)]
    for i in range(microbatches):
        order.append(Microtask(model, stage, i, "B"))
        if i + warmup < microbatches:
            order.append(Microtask(model, stage, i + warmup, "F"))
    return order


def list_schedule(
    stages: int,
    microbatches: tuple[int, ...],
    forward_ns: tuple[int, ...],
    backward_ns: tuple[int, ...],
    *,
    reverse_second: bool = False,
) -> tuple[int, tuple[tuple[Microtask, ...], ...]]:
    """Makespan and order per pipeline position of one or two models' microtasks.

    Earliest start first; ties: B before F, then model, microbatch, stage. A position runs one microtask
    at a time; F(s,i) follows F(s-1,i); B(s,i) follows B(s+1,i) and F(s,i).
    """
    chains = {
        (m, s): one_forward_one_backward(m, s, stages, mb)
        for m, mb in enumerate(microbatches)
        for s in range(stages)
    }
    position = {(m, s): stages - 1 - s if reverse_second and m == 1 else s for m, s in chains}
    progress = dict.fromkeys(chains, 0)
    finish: dict[Microtask, int] = {}
    free = [0] * stages
    order: list[list[Microtask]] = [[] for _ in range(stages)]

    def earliest(task: Microtask) -> int | None:
        m, s, i = task.model, task.stage, task.microbatch
        start = free[position[m, s]]
        needs = []
        if task.direction == "F" and s > 0:
            needs.append(Microtask(m, s - 1, i, "F"))
        if task.direction == "B":
            needs.append(Microtask(m, s, i, "F"))
            if s + 1 < stages:
                needs.append(Microtask(m, s + 1, i, "B"))
        for need in needs:
            if need not in finish:
                return None
            start = max(start, finish[need])
        return start

    while progress:
        best: tuple[tuple[int, bool, int, int, int], Microtask] | None = None
        for key, done in progress.items():
            task = chains[key][done]
            start = earliest(task)
            if start is None:
                continue
            rank = (start, task.direction == "F", task.model, task.microbatch, task.stage)
            if best is None or rank < best[0]:
                best = (rank, task)
        assert best is not None, "1F1B chains cannot deadlock"
        (start, *_), task = best
        key = (task.model, task.stage)
        duration = (forward_ns if task.direction == "F" else backward_ns)[task.model]
        finish[task] = free[position[key]] = start + duration
        order[position[key]].append(task)
        progress[key] += 1
        if progress[key] == len(chains[key]):
            del progress[key]
    return max(finish.values()), tuple(map(tuple, order))


@lru_cache(maxsize=4096)
def schedule_pair(
    stages: int, microbatches: tuple[int, int], forward_ns: tuple[int, int], backward_ns: tuple[int, int]
) -> MicrotaskSchedule:
    """The better of both placements of the second model's stages (a tie is not reversed)."""
    plain = list_schedule(stages, microbatches, forward_ns, backward_ns)
    reversed_ = list_schedule(stages, microbatches, forward_ns, backward_ns, reverse_second=True)
    makespan, order = min(plain, reversed_, key=lambda x: x[0])
    return MicrotaskSchedule(
        order=order,
        makespan_ns=makespan,
        second_model_reversed=reversed_[0] < plain[0],
        hash=hashlib.sha256(canonical(order)).hexdigest(),
    )
