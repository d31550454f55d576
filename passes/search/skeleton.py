"""The lowered graph as flat lists, and its schedule: the inner loop of fast evaluation.

As an Op or a transfer always reserves the whole allocation of some vertex, GPUs need not be looked at one
by one: it is enough to know which of the plan's allocations overlap.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from ir_schema.stages import Node

RANK_SHIFT = 24
OP_BIT = 1 << 96


@dataclass(frozen=True, slots=True)
class Skeleton:
    """The lowered graph of one pattern.

    Nodes of equal duration share a kind: `kinds[kind_of[x]]` represents node x. `place[x]` is the vertex
    (by number) whose allocation x reserves, -1 for none. `chain[x]` numbers (vertex, step) of an Op;
    `head[x]` is the first phase of x's split generation (x itself otherwise), `opens[x]` and `closes[x]`
    say whether placing x begins and ends a generation's hold on its GPUs. `ties[x]` breaks ties between
    equal starts, less `rank << RANK_SHIFT`: transfers before Ops, larger rank, vertex, step, insertion.
    """

    kinds: tuple[Node, ...]
    kind_of: list[int]
    predecessors: list[tuple[int, ...]]
    successors: list[list[int]]
    backwards: list[int]
    is_op: list[bool]
    place: list[int]
    chain: list[int]
    head: list[int]
    opens: list[bool]
    closes: list[bool]
    ties: list[int]


@dataclass(frozen=True, slots=True)
class Run:
    """A schedule in numbers: durations, starts and finishes by node, and the order of placement."""

    skeleton: Skeleton
    groups: list[int]
    conflicts: list[list[int]]
    duration: list[int]
    start: list[int]
    finish: list[int]
    order: list[int]


def list_schedule(
    skeleton: Skeleton, groups: Sequence[int], conflicts: Sequence[Sequence[int]], duration: Sequence[int]
) -> Run:
    """What `passes.schedule.list_schedule` computes, on flat lists."""
    count = len(duration)
    successors, is_op, chain = skeleton.successors, skeleton.is_op, skeleton.chain
    rank = [0] * count
    for x in skeleton.backwards:
        rank[x] = duration[x] + max(map(rank.__getitem__, successors[x]), default=0)
    priority = [t - (rank[h] << RANK_SHIFT) for t, h in zip(skeleton.ties, skeleton.head, strict=True)]
    resource = [groups[p] if p >= 0 else -1 for p in skeleton.place]
    available = [0] * len(conflicts)
    held = [0] * len(conflicts)
    active: set[int] = set()
    missing = [len(p) for p in skeleton.predecessors]
    earliest, start, finish = [0] * count, [0] * count, [0] * count
    ready = [x for x in range(count) if not missing[x]]
    order: list[int] = []
    while ready:
        best, begin, first = -1, 0, 0
        for x in ready:
            at, g = earliest[x], resource[x]
            if g >= 0 and available[g] > at:
                at = available[g]
            if best >= 0 and (at > begin or (at == begin and priority[x] > first)):
                continue
            if active and is_op[x] and g >= 0 and held[g] and chain[x] not in active:
                continue
            best, begin, first = x, at, priority[x]
        ready.remove(best)
        order.append(best)
        end = begin + duration[best]
        start[best], finish[best] = begin, end
        g = resource[best]
        if g >= 0:
            for h in conflicts[g]:
                if available[h] < end:  # noqa: PLR1730 - calling max costs more than all the rest
                    available[h] = end
            if skeleton.opens[best] != skeleton.closes[best]:
                change = 1 if skeleton.opens[best] else -1
                (active.add if change > 0 else active.discard)(chain[best])
                for h in conflicts[g]:
                    held[h] += change
        for v in successors[best]:
            if earliest[v] < end:  # noqa: PLR1730
                earliest[v] = end
            missing[v] -= 1
            if not missing[v]:
                ready.append(v)
    return Run(skeleton, list(groups), list(map(list, conflicts)), list(duration), start, finish, order)


def critical_path(run: Run) -> list[int]:
    """What `passes.schedule.critical_path` finds."""
    start, finish, skeleton = run.start, run.finish, run.skeleton
    if not finish:
        return []
    place = {x: i for i, x in enumerate(run.order)}
    current = max(range(len(finish)), key=lambda x: (finish[x], -x))
    path = [current]
    while True:
        begin = start[current]
        before = [p for p in skeleton.predecessors[current] if finish[p] == begin]
        own = skeleton.place[current]
        if not before and own >= 0:
            near = set(run.conflicts[run.groups[own]])
            before = [
                x
                for x in run.order[: place[current]]
                if finish[x] == begin and skeleton.place[x] >= 0 and run.groups[skeleton.place[x]] in near
            ]
        if not before:
            return path
        current = min(before)
        path.append(current)
