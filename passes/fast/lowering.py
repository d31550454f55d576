"""Lower: the nodes and edges of each plan, in the order of `passes.lower`, with their durations."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from passes.fast.compilation import compiled, part
from passes.fast.tables import GENERATION, INFERENCE, TRAINING, WANTED, Graph, Ints, Links, Shapes

OP, PHASE, LAST = 1, 2, 4  # flags of a node: an Op; a phase of a split generation, its last one
VERTEX_BIT, STEP_BIT = 44, 24


class Lowered(NamedTuple):
    """Plans lowered, one a row. By node: `duration` [ns], `tie` (vertex, step and id, in the order in which
    they break ties), `group` (the allocation it reserves, -1 for none), `flags`, `head` (the first phase of
    its generation, else itself), `owner` (the vertex it belongs to). Edges go from `source` to `target`.
    `conflicts`: by group the groups that share a GPU, as bits; `group_gpus` its size. `counts`: nodes,
    edges, groups, whether the pair is fused, whether a time is missing. `handover`: by place the place that
    hands its weights over to it inside a step, or -1."""

    duration: Ints
    tie: Ints
    group: NDArray[np.int32]
    flags: NDArray[np.int32]
    head: NDArray[np.int32]
    owner: NDArray[np.int32]
    source: NDArray[np.int32]
    target: NDArray[np.int32]
    conflicts: Ints
    group_gpus: Ints
    counts: Ints
    handover: Ints


NODES, EDGES, GROUPS, FUSED, MISSING = range(5)


def space_for(graph: Graph, plans: int) -> Lowered:
    """Uninitialised arrays for so many plans."""
    nodes, edges, vertices = graph.most_nodes(), graph.most_edges(), len(graph.role)
    places = int((graph.place >= 0).sum())

    def numbers(columns: int) -> Ints:
        return np.empty((plans, columns), dtype=np.int64)

    def small(columns: int) -> NDArray[np.int32]:
        return np.empty((plans, columns), dtype=np.int32)

    return Lowered(
        duration=numbers(nodes),
        tie=numbers(nodes),
        group=small(nodes),
        flags=small(nodes),
        head=small(nodes),
        owner=small(nodes),
        source=small(edges),
        target=small(edges),
        conflicts=numbers(vertices),
        group_gpus=numbers(vertices),
        counts=numbers(5),
        handover=numbers(places),
    )


@part
def _overlap(a: int, n: int, b: int, m: int) -> int:
    return max(0, min(a + n, b + m) - max(a, b))


@part
def _joint_tier(node: int, rack: int, a: int, n: int, b: int, m: int) -> int:
    """The slowest tier that allocations of n GPUs from a and m GPUs from b span together."""
    if max(n, m) > rack or a // rack != b // rack:
        return 2
    return 1 if max(n, m) > node or a // node != b // node else 0


@part
def _transfer_ns(links: Links, tier: int, payload: float, source_gpus: int, target_gpus: int) -> int:
    """A payload between two allocations whose union spans `tier`."""
    seconds = 0.0 + links.alpha[tier]
    seconds += payload / min(source_gpus, target_gpus) * links.beta[tier]
    return int(np.rint(seconds * 1e9))


@part
def _publish_ns(
    links: Links, tier: int, total: int, shard: float, source_gpus: int, target_gpus: int, shared: int
) -> int:
    """Weights to another allocation: `total` bytes, `shard` of them to a target GPU, from allocations that
    share `shared` GPUs."""
    seconds = 0.0 + links.alpha[tier]
    if links.megatron:
        seconds += shard * max(1.0, target_gpus / source_gpus) * links.beta[tier]
    else:
        widest = max(source_gpus, target_gpus)
        payload = total * (widest - shared) / widest
        seconds += payload / min(source_gpus, target_gpus) * links.beta[tier]
    return int(np.rint(seconds * 1e9))


@part
def _reshard_ns(links: Links, tier: int, total: int, shard: float, gpus: int, same_layout: bool) -> int:
    """Weights from one layout to another on one allocation."""
    if same_layout or gpus == 1:
        seconds = 2 * shard / links.copy_bandwidth if links.megatron else 0.0
    else:
        moved = shard if links.megatron else total / gpus
        seconds = 0.0 + (gpus - 1) * links.collective_alpha[tier]
        seconds += moved * links.collective_beta[tier]
    return int(np.rint(seconds * 1e9))


@compiled
def lower(graph: Graph, links: Links, shapes: Shapes, rows: Ints, out: Lowered) -> None:
    """Lower every plan of `rows`, (N, V, 2), into `out`. Times that are not known are marked as wanted."""
    V, K, Q = len(graph.role), graph.steps, graph.phases
    node, rack = graph.node, graph.rack
    first, gpus, group, layout = (
        np.empty(V, np.int64), np.empty(V, np.int64), np.empty(V, np.int64), np.empty(V, np.int64),
    )  # fmt: skip
    shape, split, fed, index = (
        np.empty(V, np.int64), np.empty(V, np.bool_), np.empty(V, np.bool_), np.empty(V, np.int64),
    )  # fmt: skip
    begins = np.empty(V, np.int64)
    start = np.empty((V, K), np.int64)
    count = np.empty(V, np.int64)
    containers = 1 + graph.moves[:, 2].max() if len(graph.moves) else 0
    merged = np.zeros((containers, Q + 1, V), np.int64)
    merged_at = np.zeros((containers, Q + 1, V), np.int64)
    installed = np.empty(len(graph.publications), np.int64)
    alike = np.empty(len(graph.publications), np.int64)

    for i in range(len(rows)):
        duration, tie, group_of, flags = out.duration[i], out.tie[i], out.group[i], out.flags[i]
        head, owner, source, target = out.head[i], out.owner[i], out.source[i], out.target[i]
        x, e, missing, groups = 0, 0, 0, 0

        # Allocations, and which vertices are split and fused.
        for v in range(V):
            place = graph.place[v]
            split[v], fed[v], index[v] = False, False, v
            first[v], gpus[v], group[v], layout[v], shape[v] = 0, 0, -1, -1, -1
            if place < 0:
                continue
            s = rows[i, place, 0]
            shape[v], first[v] = s, rows[i, place, 1]
            gpus[v], layout[v] = shapes.gpus[place, s], shapes.layout[place, s]
            for u in range(v):
                if group[u] >= 0 and first[u] == first[v] and gpus[u] == gpus[v]:
                    group[v] = group[u]
                    break
            if group[v] < 0:
                group[v], begins[groups], out.group_gpus[i, groups] = groups, first[v], gpus[v]
                groups += 1
            out.handover[i, place] = -1
        for a in range(groups):
            bits = 0
            for b in range(groups):
                if _overlap(begins[a], out.group_gpus[i, a], begins[b], out.group_gpus[i, b]):
                    bits |= 1 << b
            out.conflicts[i, a] = bits
        if Q:
            for j in range(len(graph.splits)):
                u, v = graph.splits[j]
                apart = group[v] < 0 or not out.conflicts[i, group[u]] >> group[v] & 1
                if apart and not shapes.waved[graph.place[u], shape[u]]:
                    split[u], split[v] = True, True
        a, b = graph.pair
        fused = a >= 0 and group[a] == group[b] and layout[a] == layout[b]
        if fused:
            index[b] = a

        # Stage 1: operators and the dependences that move no data.
        for v in range(V):
            count[v] = Q if split[v] else 1
        for k in range(K):
            for v in range(V):
                if fused and v == b:
                    start[b, k] = start[a, k]
                    continue
                start[v, k] = x
                place = graph.place[v]
                for q in range(count[v]):
                    column = q + 1 if split[v] else 0
                    if fused and v == a:
                        second = shapes.alike[graph.place[b], shape[b]]
                        time = shapes.fused[shape[a], second]
                        if time < 0:
                            shapes.fused[shape[a], second] = WANTED
                    elif place < 0:
                        time = graph.host_ns[v, column]
                    else:
                        time = shapes.times[place, shape[v], column]
                        if time < 0:
                            shapes.times[place, shape[v], column] = WANTED
                    if time < 0:
                        missing = 1
                    flag = OP
                    if split[v] and graph.role[v] == GENERATION:
                        flag |= PHASE | (LAST if q == Q - 1 else 0)
                    head[x] = start[v, k] if flag & PHASE else x
                    duration[x], group_of[x], flags[x], owner[x] = time, group[v], flag, v
                    tie[x] = v << VERTEX_BIT | k << STEP_BIT | x
                    if q:
                        source[e], target[e] = x - 1, x
                        e += 1
                    x += 1
        for k in range(K):
            for j in range(len(graph.follows)):
                u, v = graph.follows[j]
                p, n = start[u, k] + count[u] - 1, start[v, k]
                if p != n:
                    source[e], target[e] = p, n
                    e += 1
            if k:
                for v in graph.trainers:
                    source[e], target[e] = start[v, k - 1], start[v, k]
                    e += 1
            if k >= graph.window:
                for u in graph.sinks:
                    for v in graph.sources:
                        source[e], target[e] = start[u, k - graph.window] + count[u] - 1, start[v, k]
                        e += 1

        # Stage 2: data.
        for k in range(K):
            stamp = i * K + k + 1
            for j in range(len(graph.moves)):
                u, v, container, implied = graph.moves[j]
                gu, gv = group[u], group[v]
                by_phase = split[u] and split[v]
                if by_phase and gu >= 0 and gv >= 0:
                    by_phase = not out.conflicts[i, gu] >> gv & 1
                if by_phase and not implied:
                    by_phase = graph.role[u] == GENERATION and graph.role[v] == INFERENCE
                for q in range(0 if by_phase else Q, Q if by_phase else Q + 1):
                    p = start[u, k] + (q if by_phase else count[u] - 1)
                    n = start[v, k] + (q if by_phase else 0)
                    if gu < 0 or gv < 0 or gu == gv:
                        if p != n:
                            source[e], target[e] = p, n
                            e += 1
                        continue
                    comm = merged[container, q, gv]
                    if graph.as_printed or merged_at[container, q, gv] != stamp:
                        comm = merged[container, q, gv] = x
                        merged_at[container, q, gv] = stamp
                        tier = _joint_tier(node, rack, first[u], gpus[u], first[v], gpus[v])
                        duration[x] = _transfer_ns(links, tier, graph.payload[j, q], gpus[u], gpus[v])
                        group_of[x], flags[x], head[x], owner[x] = gv, 0, x, v
                        tie[x] = index[v] << VERTEX_BIT | k << STEP_BIT | x
                        source[e], target[e] = p, x
                        e += 1
                        x += 1
                    source[e], target[e] = comm, n
                    e += 1

        # Stage 3: weights handed from one vertex to the next inside a step.
        for j in range(graph.handovers.shape[1]):
            model, u, v = graph.handovers[1 if fused and not graph.as_printed else 0, j]
            if graph.as_printed:
                apart = not out.conflicts[i, group[u]] >> group[v] & 1
                if graph.staleness[model] > 0 and apart:
                    continue
                if group[u] != group[v]:
                    for k in range(K):
                        p, n = start[u, k] + count[u] - 1, start[v, k]
                        if p != n:
                            source[e], target[e] = p, n
                            e += 1
                    continue
                if layout[u] == layout[v]:
                    continue
            else:
                trainer = graph.trainer[model]
                if group[u] != group[v] or layout[u] == layout[v]:
                    continue
                if group[trainer] == group[v] and layout[trainer] == layout[v]:
                    continue
                fed[v] = True
            out.handover[i, graph.place[v]] = graph.place[u]
            tier = _joint_tier(node, rack, first[v], gpus[v], first[v], gpus[v])
            shard = shapes.weights[graph.place[v], shape[v]]
            time = _reshard_ns(links, tier, graph.weights[model], shard, gpus[v], False)
            for k in range(K):
                duration[x], group_of[x], flags[x], head[x], owner[x] = time, group[v], 0, x, v
                tie[x] = index[v] << VERTEX_BIT | k << STEP_BIT | x
                source[e], target[e] = start[u, k] + count[u] - 1, x
                source[e + 1], target[e + 1] = x, start[v, k]
                e += 2
                x += 1

        # Stage 4: publications. Those of one model to one place share an installation.
        for j in range(len(graph.publications)):
            v = graph.publications[j, 1]
            alike[j] = j
            for h in range(j):
                t = graph.publications[h, 1]
                same = graph.publications[h, 2] == graph.publications[j, 2] and not fed[t]
                if same and group[t] == group[v] and layout[t] == layout[v]:
                    alike[j] = h
                    break
        for k in range(K):
            for j in range(len(graph.publications)):
                u, v, model = graph.publications[j]
                tau = graph.staleness[model]
                if k <= tau or fed[v]:
                    continue
                version = k - tau
                same_place, same_layout = group[u] == group[v], layout[u] == layout[v]
                rings = tau > 0 and not graph.as_printed
                if same_place and same_layout and not rings:
                    p, n = start[u, version - 1] + count[u] - 1, start[v, k]
                    if p != n:
                        source[e], target[e] = p, n
                        e += 1
                    continue
                if alike[j] == j:
                    installed[j] = x
                    total, shard = graph.weights[model], shapes.weights[graph.place[v], shape[v]]
                    if same_place:
                        tier = _joint_tier(node, rack, first[v], gpus[v], first[v], gpus[v])
                        duration[x] = _reshard_ns(links, tier, total, shard, gpus[v], same_layout)
                    else:
                        tier = _joint_tier(node, rack, first[u], gpus[u], first[v], gpus[v])
                        shared = _overlap(first[u], gpus[u], first[v], gpus[v])
                        duration[x] = _publish_ns(links, tier, total, shard, gpus[u], gpus[v], shared)
                    step = version if rings else k
                    group_of[x], flags[x], head[x], owner[x] = group[v], 0, x, v
                    tie[x] = index[v] << VERTEX_BIT | step << STEP_BIT | x
                    source[e], target[e] = start[u, version - 1] + count[u] - 1, x
                    e += 1
                    if rings:
                        for r in range(V):
                            reads = graph.trained[r] == model and graph.role[r] != TRAINING
                            if version >= tau and reads and group[r] == group[v] and layout[r] == layout[v]:
                                source[e], target[e] = start[r, version] + count[r] - 1, x
                                e += 1
                        source[e], target[e] = x, start[u, version]
                        e += 1
                    x += 1
                source[e], target[e] = installed[alike[j]], start[v, k]
                e += 1

        counts = out.counts[i]
        counts[0], counts[1], counts[2], counts[3], counts[4] = x, e, groups, fused, missing
