"""Schedule: a start time for every node by greedy list scheduling, and the score (semantics: Schedule).

Invariants: f(u) <= s(v) on every edge; nodes whose reserved GPU sets intersect never overlap in time;
from the first to the last phase of a split generation no other Op uses its GPUs (except as printed).
All arithmetic is on whole nanoseconds.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from ir_schema.base import Record
from ir_schema.device import Allocation, size
from ir_schema.problem import Problem
from ir_schema.stages import Costed, CostedNode, Node, Scheduled, ScheduledNode, Score
from passes.analysis import Analysis
from passes.base import Pass

BETA_OOM = 40.0


def resources(allocations: Sequence[Allocation | None]) -> list[tuple[int, ...]]:
    """For each allocation the indices of the atoms it covers: two intersect iff they share an atom.

    Atoms are the classes of GPUs covered by the same distinct allocations.
    """
    distinct = list({a for a in allocations if a is not None})
    covering: dict[tuple[int, int, int], list[int]] = {}
    for i, a in enumerate(distinct):
        for c in a.coordinates():
            covering.setdefault(c, []).append(i)
    atoms: dict[Allocation, list[int]] = {a: [] for a in distinct}
    for atom, members in enumerate(sorted(set(map(tuple, covering.values())))):
        for i in members:
            atoms[distinct[i]].append(atom)
    return [() if a is None else tuple(atoms[a]) for a in allocations]


@dataclass(frozen=True)
class Timeline:
    """A schedule: ranks, starts and finishes by node id, and the order of placement."""

    rank: list[int]
    start: list[int]
    finish: list[int]
    order: list[int]

    @property
    def makespan(self) -> int:
        """Largest finish."""
        return max(self.finish, default=0)


def successors_of(nodes: Sequence[Node]) -> list[list[int]]:
    """Successor ids by node id."""
    successors: list[list[int]] = [[] for _ in nodes]
    for n in nodes:
        for p in n.predecessors:
            successors[p].append(n.id)
    return successors


def topological(nodes: Sequence[Node], successors: list[list[int]]) -> list[int]:
    """Node ids in a topological order. Raises ValueError on a cycle."""
    missing = [len(n.predecessors) for n in nodes]
    order = [n.id for n in nodes if not n.predecessors]
    for u in order:
        for v in successors[u]:
            missing[v] -= 1
            if missing[v] == 0:
                order.append(v)
    if len(order) != len(nodes):
        raise ValueError("the lowered graph has a cycle")
    return order


def ranks(nodes: Sequence[CostedNode], successors: list[list[int]], analysis: Analysis) -> list[int]:
    """rank(x) = T(x) + max rank of successors; phases of a split generation take their first phase's rank."""
    rank = [0] * len(nodes)
    for u in reversed(topological(nodes, successors)):
        rank[u] = nodes[u].time_ns + max((rank[v] for v in successors[u]), default=0)
    heads: dict[tuple[str, int], int] = {}
    for n in nodes:
        if is_generation_phase(n, analysis):
            rank[n.id] = rank[heads.setdefault((n.vertex, n.step), n.id)]
    return rank


def is_generation_phase(node: Node, analysis: Analysis) -> bool:
    """Whether `node` is a phase of a split generation chain."""
    return node.kind == "Op" and node.phases > 1 and analysis.vertex[node.vertex].role == "generation"


def list_schedule(nodes: Sequence[CostedNode], analysis: Analysis) -> Timeline:
    """Greedy list scheduling: the smallest earliest start first, ties as in semantics: Schedule.

    `nodes` are in insertion order with ids 0..n-1; an Op reserves its sigma, a transfer its destination.
    """
    hold_chains = not analysis.problem.options.as_printed
    successors = successors_of(nodes)
    rank = ranks(nodes, successors, analysis)
    reserved = resources([n.allocation for n in nodes])
    available = [0] * (1 + max((a for atoms in reserved for a in atoms), default=-1))
    holder: list[tuple[str, int] | None] = [None] * len(available)
    priority = [(n.kind == "Op", -rank[n.id], n.vertex_index, n.step, n.id) for n in nodes]
    missing = [len(n.predecessors) for n in nodes]
    earliest = [0] * len(nodes)
    start, finish = [0] * len(nodes), [0] * len(nodes)
    ready = [n.id for n in nodes if not n.predecessors]
    order: list[int] = []

    while ready:
        best, best_key = -1, (0, priority[0])
        for x in ready:
            node = nodes[x]
            begin = earliest[x]
            for atom in reserved[x]:
                begin = max(begin, available[atom])
            key = (begin, priority[x])
            if best >= 0 and key >= best_key:
                continue
            if hold_chains and node.kind == "Op":
                chain = (node.vertex, node.step)
                if any(holder[atom] not in (None, chain) for atom in reserved[x]):
                    continue
            best, best_key = x, key
        node = nodes[best]
        ready.remove(best)
        order.append(best)
        start[best] = best_key[0]
        finish[best] = best_key[0] + node.time_ns
        if is_generation_phase(node, analysis):
            chain_or_none = (node.vertex, node.step) if node.phase != node.phases else None
            for atom in reserved[best]:
                holder[atom] = chain_or_none
        for atom in reserved[best]:
            available[atom] = finish[best]
        for v in successors[best]:
            earliest[v] = max(earliest[v], finish[best])
            missing[v] -= 1
            if missing[v] == 0:
                ready.append(v)
    return Timeline(rank=rank, start=start, finish=finish, order=order)


def both_reserved_makespan(nodes: Sequence[CostedNode], order: Sequence[int]) -> int:
    """Makespan in the same placement order when a transfer reserves both its endpoints."""
    count = len(nodes)
    atoms = resources([n.allocation for n in nodes] + [n.source_allocation for n in nodes])
    available = [0] * (1 + max((a for group in atoms for a in group), default=-1))
    finish = [0] * count
    for x in order:
        node = nodes[x]
        held = set(atoms[x]) | (set(atoms[count + x]) if node.kind == "Comm" else set())
        begin = max((finish[p] for p in node.predecessors), default=0)
        begin = max([begin, *(available[a] for a in held)])
        finish[x] = begin + node.time_ns
        for a in held:
            available[a] = finish[x]
    return max(finish, default=0)


def critical_path(nodes: Sequence[CostedNode], timeline: Timeline) -> list[int]:
    """Node ids of the chain that determines the makespan, walked back from its end.

    From the node with the largest finish back: a predecessor, else a node placed earlier on a shared
    device, whose finish equals this start; the smallest insertion index among equals.
    """
    if not nodes:
        return []
    reserved = [set(atoms) for atoms in resources([n.allocation for n in nodes])]
    place = {x: i for i, x in enumerate(timeline.order)}
    current = max(range(len(nodes)), key=lambda x: (timeline.finish[x], -x))
    path = [current]
    while True:
        begin = timeline.start[current]
        before = [p for p in nodes[current].predecessors if timeline.finish[p] == begin]
        if not before:
            before = [
                x
                for x in timeline.order[: place[current]]
                if timeline.finish[x] == begin and reserved[x] & reserved[current]
            ]
        if not before:
            return path
        current = min(before)
        path.append(current)


def raw_score(problem: Problem, makespan_ns: int) -> float:
    """Score(C) = K_eval B R (L_p + L_r) / MS [tokens/s]; 0 where nothing takes time."""
    workload = problem.workload
    if not makespan_ns:
        return 0.0
    return problem.options.steps * workload.sequences * workload.total_length / (makespan_ns * 1e-9)


def memory_limit(problem: Problem) -> float:
    """M_eff = (1 - eps_rt) M_GPU [bytes]."""
    return (1 - problem.hardware.runtime_reserve) * problem.hardware.memory_bytes


def memory_penalty(max_peak_bytes: int, limit_bytes: float) -> float:
    """Factor exp(-beta_oom max(0, peak / M_eff - 1)) by which an infeasible plan's score is reduced."""
    return math.exp(-BETA_OOM * max(0.0, max_peak_bytes / limit_bytes - 1))


def score(costed: Costed, timeline: Timeline) -> Score:
    """The figures of merit of a schedule (semantics: Schedule); rates are 0 where nothing takes time."""
    problem, nodes = costed.configuration.problem, costed.nodes
    workload, steps = problem.workload, problem.options.steps
    makespan = max(timeline.makespan, costed.processors_ns)
    both_ns = max(both_reserved_makespan(nodes, timeline.order), costed.processors_ns)
    max_peak_bytes = max((m.peak_bytes for m in costed.devices.values()), default=0)
    seconds = makespan * 1e-9
    limit = memory_limit(problem)
    value = raw_score(problem, makespan)
    mean = workload.mean_response_length
    counted = workload.response_length if problem.options.cost_model == "paper" else mean
    tokens = value * (workload.prompt_length + counted) / workload.total_length
    gpus = size(problem.device_space)
    busy = sum(n.time_ns * n.allocation.gpus for n in nodes if n.allocation is not None)
    operators = sum(n.time_ns for n in nodes if n.kind == "Op")
    return Score(
        makespan_ns=makespan,
        makespan_both_reserved_ns=both_ns,
        score_tokens_per_s=value,
        score_pen=value * memory_penalty(max_peak_bytes, limit),
        utilisation=busy / (gpus * makespan) if makespan else 0.0,
        P_eff=operators / makespan if makespan else 0.0,
        memory_feasible=max_peak_bytes <= limit,
        max_peak_bytes=max_peak_bytes,
        memory_limit_bytes=math.floor(limit),
        step_time_s=seconds / steps,
        tokens_per_s=tokens,
        tokens_per_s_per_gpu=tokens / gpus,
        gpu_hours_per_step=gpus * seconds / steps / 3600,
        mean_response_length=mean,
    )


def schedule(costed: Costed) -> Scheduled:
    """Start times, critical path and score of a costed graph."""
    problem = costed.configuration.problem
    nodes = costed.nodes
    timeline = list_schedule(nodes, Analysis(problem))
    figures = score(costed, timeline)
    names = {n.allocation: tuple(n.allocation.device_names()) for n in nodes if n.allocation is not None}
    scheduled = tuple(
        ScheduledNode(
            **{f: getattr(n, f) for f in n.__struct_fields__},
            reserved=() if n.allocation is None else names[n.allocation],
            rank_ns=timeline.rank[n.id],
            start_ns=timeline.start[n.id],
            finish_ns=timeline.finish[n.id],
        )
        for n in nodes
    )
    return Scheduled(
        **{f: getattr(figures, f) for f in figures.__struct_fields__},
        configuration=costed.configuration,
        nodes=scheduled,
        placement_order=tuple(timeline.order),
        critical_path=tuple(critical_path(nodes, timeline)),
        devices=costed.devices,
        microtasks=costed.microtasks,
    )


@dataclass(frozen=True)
class Schedule(Pass[Costed, Scheduled]):
    """Costed graph to schedule."""

    name: ClassVar[str] = "schedule"
    summary: ClassVar[str] = "list-schedule the nodes and score the plan"
    source: ClassVar[type[Record]] = Costed
    target: ClassVar[type[Record]] = Scheduled

    def run(self, stage: Costed) -> Scheduled:
        """See `schedule`."""
        return schedule(stage)
