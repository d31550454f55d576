"""Schedule: the list schedule of lowered plans, as `passes.schedule` defines it.

As an Op or a transfer always reserves the whole allocation of some vertex, GPUs need not be looked at one
by one: it is enough to know which of a plan's allocations overlap.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from passes.fast.compilation import compiled
from passes.fast.tables import Ints

OP, PHASE, LAST = 1, 2, 4  # as in passes.fast.lowering
FIRST_OP = 1 << 61
FAR = (1 << 63) - 1


class Timed(NamedTuple):
    """Schedules, one a row: `start` and `finish` [ns] by node, nodes in the `order` they were placed, and
    `figures`: makespan [ns] (-1 if the graph has a cycle or the schedule is stuck) and busy GPU time [ns]."""

    start: Ints
    finish: Ints
    order: NDArray[np.int32]
    figures: Ints


def space_for(nodes: int, plans: int) -> Timed:
    """Uninitialised arrays for so many plans of up to `nodes` nodes."""
    return Timed(
        np.empty((plans, nodes), dtype=np.int64),
        np.empty((plans, nodes), dtype=np.int64),
        np.empty((plans, nodes), dtype=np.int32),
        np.empty((plans, 2), dtype=np.int64),
    )


@compiled
def schedule(
    duration_of: Ints,
    tie_of: Ints,
    group_of: NDArray[np.int32],
    flags_of: NDArray[np.int32],
    head_of: NDArray[np.int32],
    source_of: NDArray[np.int32],
    target_of: NDArray[np.int32],
    conflicts_of: Ints,
    gpus_of: Ints,
    counts: Ints,
    plans: int,
    hold: bool,
    out: Timed,
) -> None:
    """Schedule the first `plans` lowered plans (`passes.fast.lowering.Lowered`, field by field) into `out`.

    `hold`: whether a generation keeps its GPUs from other Ops from its first to its last phase.
    """
    most = duration_of.shape[1]
    after = np.empty(most + 2, np.int32)
    successors = np.empty(source_of.shape[1], np.int32)
    missing = np.empty(most, np.int32)
    rank, earliest = np.empty(most, np.int64), np.empty(most, np.int64)
    queue = np.empty(most, np.int32)
    available, held = np.empty(64, np.int64), np.empty(64, np.int64)
    for i in range(plans):
        nodes, edges, groups = counts[i, 0], counts[i, 1], counts[i, 2]
        duration, tie, group, flags = duration_of[i], tie_of[i], group_of[i], flags_of[i]
        source, target, conflicts = source_of[i], target_of[i], conflicts_of[i]
        start, finish, order = out.start[i], out.finish[i], out.order[i]
        out.figures[i, 0], out.figures[i, 1] = -1, 0
        if counts[i, 4]:
            continue

        # Successors of every node, one after another.
        for x in range(nodes):
            after[x + 1], missing[x], earliest[x], rank[x] = 0, 0, 0, 0
        after[0], after[nodes + 1] = 0, 0
        for e in range(edges):
            after[source[e] + 2] += 1
            missing[target[e]] += 1
        for x in range(nodes):
            after[x + 1] += after[x]
        for e in range(edges):
            u = source[e]
            successors[after[u + 1]] = target[e]
            after[u + 1] += 1

        # Ranks, against a topological order.
        tail = 0
        for x in range(nodes):
            order[x] = missing[x]
            if not missing[x]:
                queue[tail] = x
                tail += 1
        at = 0
        while at < tail:
            u = queue[at]
            at += 1
            for j in range(after[u], after[u + 1]):
                v = successors[j]
                order[v] -= 1
                if not order[v]:
                    queue[tail] = v
                    tail += 1
        if tail < nodes:
            continue
        for at in range(nodes - 1, -1, -1):
            u = queue[at]
            longest = 0
            for j in range(after[u], after[u + 1]):
                longest = max(longest, rank[successors[j]])
            rank[u] = longest + duration[u]

        for a in range(groups):
            available[a], held[a] = 0, 0
        ready = 0
        for x in range(nodes):
            if flags[x] & PHASE:
                rank[x] = rank[head_of[i, x]]
            if not missing[x]:
                queue[ready] = x
                ready += 1
        for x in range(nodes):
            rank[x] = (FIRST_OP if flags[x] & OP else 0) - rank[x]

        # The smallest possible start first; ties by rank and what breaks equal ranks.
        makespan, busy, placed = 0, 0, 0
        while ready:
            best, begin, where = -1, FAR, 0
            for j in range(ready):
                x = queue[j]
                s, g = earliest[x], group[x]
                if g >= 0:
                    s = max(s, available[g])
                if s > begin or (s == begin and rank[x] > rank[best]):
                    continue
                if s == begin and rank[x] == rank[best] and tie[x] > tie[best]:
                    continue
                inside = flags[x] & PHASE and head_of[i, x] != x
                if g >= 0 and held[g] and flags[x] & OP and not inside:
                    continue
                best, begin, where = x, s, j
            if best < 0:
                break
            ready -= 1
            queue[where] = queue[ready]
            order[placed] = best
            placed += 1
            end = begin + duration[best]
            start[best], finish[best] = begin, end
            makespan = max(makespan, end)
            g = group[best]
            if g >= 0:
                busy += duration[best] * gpus_of[i, g]
                change = 0
                if hold and flags[best] & PHASE:
                    change = (head_of[i, best] == best) - (flags[best] & LAST != 0)
                for a in range(groups):
                    if conflicts[g] >> a & 1:
                        available[a] = max(available[a], end)
                        held[a] += change
            for j in range(after[best], after[best + 1]):
                v = successors[j]
                earliest[v] = max(earliest[v], end)
                missing[v] -= 1
                if not missing[v]:
                    queue[ready] = v
                    ready += 1
        if placed == nodes:
            out.figures[i, 0], out.figures[i, 1] = makespan, busy


@compiled
def critical_path(
    group: NDArray[np.int32],
    source: NDArray[np.int32],
    target: NDArray[np.int32],
    conflicts: Ints,
    start: Ints,
    finish: Ints,
    order: NDArray[np.int32],
    nodes: int,
    edges: int,
) -> NDArray[np.int64]:
    """The critical path of one plan, from its end, as `passes.schedule.critical_path` walks it."""
    path = np.empty(nodes, np.int64)
    place = np.empty(nodes, np.int64)
    before = np.zeros(nodes + 1, np.int64)
    predecessors = np.empty(edges, np.int64)
    for at in range(nodes):
        place[order[at]] = at
    for e in range(edges):
        before[target[e]] += 1
    for x in range(nodes):
        before[x + 1] += before[x]
    for e in range(edges):
        before[target[e]] -= 1
        predecessors[before[target[e]]] = source[e]
    current, length = 0, 0
    for x in range(nodes):
        if finish[x] > finish[current]:
            current = x
    while nodes:
        path[length] = current
        length += 1
        found = nodes
        for j in range(before[current], before[current + 1]):
            if finish[predecessors[j]] == start[current]:
                found = min(found, predecessors[j])
        g = group[current]
        if found == nodes and g >= 0:
            for at in range(place[current]):
                x = order[at]
                h = group[x]
                if h >= 0 and finish[x] == start[current] and conflicts[g] >> h & 1:
                    found = min(found, x)
        if found == nodes:
            break
        current = found
    return path[:length]
