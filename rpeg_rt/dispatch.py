"""Completion-driven dispatch of a template over any number of steps (semantics: Runtime).

Pure: no clock, no processes. What may start depends on the completions alone, so the same sequence of
completions always gives the same sequence of starts; the verifier replays a trace through this class.

Invariants: a node starts when its predecessors are complete and none of its devices is reserved; from the
start of a generation chain's first phase to the end of its last, its devices take no other Op. An instance
exists only between the completion of its first predecessor and its own, so memory does not grow with steps.

A run may begin at a later step, everything before which counts as complete, and no step from `boundary` on is
begun until that is moved. Edges never lead back in steps, so all steps before a boundary can be completed.
"""

import heapq
from bisect import insort
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from ir_schema.stages import TemplateNode


class Instance(NamedTuple):
    """Template node `node` (its id) at RL step `step`."""

    node: int
    step: int


class Stuck(Exception):
    """The template cannot be executed: its nodes wait for each other."""


def topological_order(template: Sequence[TemplateNode]) -> list[int]:
    """Ids in Kahn's order of the edges inside a step, smallest id first. Raises Stuck on a cycle."""
    remaining = {n.id: sum(e.distance == 0 for e in n.edges) for n in template}
    successors: dict[int, list[int]] = {n.id: [] for n in template}
    for n in template:
        for e in n.edges:
            if e.distance == 0:
                successors[e.source].append(n.id)
    heap = sorted(i for i, count in remaining.items() if count == 0)
    order = []
    while heap:
        order.append(heapq.heappop(heap))
        for i in successors[order[-1]]:
            remaining[i] -= 1
            if remaining[i] == 0:
                heapq.heappush(heap, i)
    if len(order) < len(template):
        cycle = sorted(set(remaining) - set(order))
        raise Stuck(f"template nodes {cycle} wait for each other inside one step")
    return order


class Dispatcher:
    """Decides which node instance starts next.

    `reservations` gives R(x), the devices of each template node by id; `generation` names the vertices
    whose phases hold their devices. The run begins at step `first`. If it `continues` some day after its last
    step, it also carries out what only later steps need (nodes with a lookahead).
    """

    def __init__(
        self,
        template: Sequence[TemplateNode],
        steps: int,
        reservations: Mapping[int, frozenset[str]],
        generation: frozenset[str],
        *,
        first: int = 0,
        continues: bool = False,
    ) -> None:
        self.nodes = {n.id: n for n in template}
        self.first, self.steps, self.continues = first, steps, continues
        self.boundary = steps
        self.begun = first
        self.reservations = reservations
        self.running: set[Instance] = set()
        self.completed = 0
        self.total = self.instances(steps)
        self._chains = {n.id for n in template if n.kind == "Op" and n.phases > 1 and n.vertex in generation}
        self._position = {i: p for p, i in enumerate(topological_order(template))}
        self._successors: dict[int, list[tuple[int, int]]] = {n.id: [] for n in template}
        for n in template:
            for source, distance in sorted({(e.source, e.distance) for e in n.edges}):
                self._successors[source].append((n.id, distance))
        self._remaining: dict[Instance, int] = {}
        self._ready: list[tuple[int, int, int, Instance]] = []
        self._busy: set[str] = set()
        self._held: dict[str, tuple[str, int]] = {}
        for n in template:
            for step in sorted(set(self._early_steps(n))):
                if self.exists(n.id, step) and not any(self.predecessors(Instance(n.id, step))):
                    self._make_ready(Instance(n.id, step))

    @property
    def finished(self) -> bool:
        """Whether every instance of the run has completed."""
        return self.completed == self.total

    @property
    def drained(self) -> bool:
        """Whether every instance before the boundary has completed."""
        return self.completed == self.instances(self.boundary)

    @property
    def live(self) -> int:
        """Instances in memory: touched, ready or running."""
        return len(self._remaining) + len(self._ready) + len(self.running)

    def exists(self, node: int, step: int) -> bool:
        """Whether template node `node` has an instance at `step`."""
        return step in self._lifetime(self.nodes[node])

    def instances(self, before: int) -> int:
        """How many instances the run has at steps before `before`."""
        return sum(
            len(range(span.start, min(span.stop, before)))
            for span in map(self._lifetime, self.nodes.values())
        )

    def _lifetime(self, n: TemplateNode) -> range:
        """The steps of the run at which a template node has an instance."""
        last = self.steps - (0 if self.continues else n.lookahead)
        return range(max(self.first, n.first_step), max(self.first, n.first_step, last))

    def predecessors(self, x: Instance) -> Iterator[Instance]:
        """The instances that must complete before `x` starts, each once."""
        seen = set()
        for e in self.nodes[x.node].edges:
            source = Instance(e.source, x.step - e.distance)
            if x.step >= e.first_step and source not in seen and self.exists(*source):
                seen.add(source)
                yield source

    def next(self) -> Instance | None:
        """Start the first ready instance whose devices are free; None if there is none."""
        for i, (_, _, _, x) in enumerate(self._ready):
            if not self._blocked(x):
                del self._ready[i]
                self._start(x)
                return x
        return None

    def startable(self) -> Instance | None:
        """What `next` would start, without starting it."""
        return next((x for *_, x in self._ready if not self._blocked(x)), None)

    def complete(self, x: Instance) -> None:
        """Record the completion of a running instance: release its devices, make successors ready."""
        self.running.remove(x)
        self.completed += 1
        self._busy -= self.reservations[x.node]
        n = self.nodes[x.node]
        if x.node in self._chains and n.phase == n.phases:
            for device in self.reservations[x.node]:
                self._held.pop(device, None)
        for node, distance in self._successors[x.node]:
            y = Instance(node, x.step + distance)
            if not self.exists(*y) or x not in self.predecessors(y):
                continue
            if y not in self._remaining:
                self._remaining[y] = sum(1 for _ in self.predecessors(y))
            self._remaining[y] -= 1
            if self._remaining[y] == 0:
                del self._remaining[y]
                self._make_ready(y)

    def waiting(self) -> list[Instance]:
        """Ready instances whose devices are taken, in dispatch order."""
        return [x for *_, x in self._ready]

    def _early_steps(self, n: TemplateNode) -> Iterator[int]:
        """The steps at which `n` might have no predecessor: the first of the template and of the run, and the
        last if sources end.

        A template node without any edge is seeded one step at a time, when its previous instance starts.
        """
        if not n.edges:
            yield max(self.first, n.first_step)
            return
        reach = max(max(e.first_step, e.distance + self.nodes[e.source].first_step) for e in n.edges)
        tail = max(0, *(self.nodes[e.source].lookahead - e.distance for e in n.edges))
        yield from range(self.first, min(self.first + reach, self.steps))
        yield from range(max(self.first, self.steps - tail), self.steps)

    def _make_ready(self, x: Instance) -> None:
        rank = 1 if self.nodes[x.node].kind == "Op" else 0
        insort(self._ready, (x.step, rank, self._position[x.node], x))

    def _blocked(self, x: Instance) -> bool:
        devices = self.reservations[x.node]
        if x.step >= self.boundary or devices & self._busy:
            return True
        n = self.nodes[x.node]
        if n.kind != "Op":
            return False
        mine = (n.vertex, x.step)
        return any(self._held.get(device, mine) != mine for device in devices)

    def _start(self, x: Instance) -> None:
        n = self.nodes[x.node]
        self.running.add(x)
        self.begun = max(self.begun, x.step + 1)
        self._busy |= self.reservations[x.node]
        if x.node in self._chains and n.phase == 1:
            self._held.update(dict.fromkeys(self.reservations[x.node], (n.vertex, x.step)))
        if not n.edges and self.exists(x.node, x.step + 1):
            self._make_ready(Instance(x.node, x.step + 1))
