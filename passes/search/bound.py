"""A proven lower bound on the makespan of every plan of a structure that fits (`docs/bound.md`).

Plans are chosen vertex by vertex, a shape and a block of GPUs each, best first by the bound of what is chosen
so far; the smallest bound of those not yet looked into holds for all plans, whenever one stops.
"""

import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from ir_schema.device import size
from ir_schema.problem import Placement
from passes.search.bound_blocks import EMPTY, Blocks, Footprint, Tree
from passes.search.bound_choices import GPUS, LOAD, PLACE, Choices, Ints
from passes.search.bound_times import Bools, Times
from passes.search.space import Space
from passes.structure import Plan

PARTIAL_PLANS = 5_000
"""After so many partial plans the search for a better bound ends."""

AT_ONCE = 512
"""About so many partial plans are made and bounded at once."""

PLANS = 6
"""So many partial plans are completed to plans."""

_Partial = tuple[int, int, int, Tree, Ints]
"""Bound, minus the number of placed vertices, serial number, blocks, choices (V, COLUMNS)."""


@dataclass(frozen=True)
class Bound:
    """No plan that fits has a smaller makespan than `makespan_ns`; `argument` says why, in words.

    `plans` are near the relaxed plans that come closest to the bound, the closest first. Whether they fit is
    not known; they are good starts of a search.
    """

    makespan_ns: int
    argument: str
    plans: tuple[Plan, ...] = ()


def lower_bound(
    space: Space,
    starts: Sequence[Plan] = (),
    *,
    partial_plans: int = PARTIAL_PLANS,
    stop: Callable[[], bool] = lambda: False,
) -> Bound | None:
    """The bound of one structure; None where it is proven that no plan fits.

    It holds for every plan made of the space's candidates and of the placements in `starts`, wherever they
    stand among legal origins, with any number of waves from the fewest to the most of either in the same
    layout; and for every schedule that obeys precedence and exclusivity. `partial_plans` limits the effort,
    and so does `stop`, which is asked now and then.
    """
    return _Search(space, starts).run(partial_plans, stop)


class _Search:
    """Best-first branch and bound over shapes and blocks."""

    def __init__(self, space: Space, starts: Sequence[Plan]) -> None:
        evaluator, graph = space.evaluator, space.problem.graph
        also = {v: [plan[v] for plan in starts] for v in space.vertices}
        sizes = {n for c in space.candidates.values() for n in c.sizes}
        sizes |= {p.allocation.gpus for placements in also.values() for p in placements}
        gpus = size(space.problem.device_space)
        self.blocks = Blocks(gpus, sizes)
        self.footprints: list[Footprint] = [()]
        reader = Choices(evaluator)
        self.choices: list[Ints] = []
        self.placements: list[list[Placement]] = []
        self.first: list[dict[int, list[int]]] = []
        self.space = space
        for v in graph.vertices:
            first: dict[int, list[int]] = {}
            placements: list[Placement] = []
            if v.model is None:
                choices = reader.of_host(v)
            else:
                first = self._first(v.name, also[v.name])
                places = {n: self._place(n, starts) for n, starts in first.items()}
                choices, placements = reader.of(v, space.candidates[v.name], places, also[v.name])
            self.choices.append(choices)
            self.placements.append(placements)
            self.first.append(first)
        covered = [self.blocks.covered(footprint) for footprint in self.footprints]
        self.times = Times(evaluator.analysis, self.choices, covered, gpus, splits=reader.splits)
        self.order = self._order()

    def _first(self, vertex: str, also: list[Placement]) -> dict[int, list[int]]:
        """The first GPUs of all allocations of `vertex`, ascending, by their number of GPUs."""
        _, nodes, per_node = self.space.problem.device_space
        first = {n: set(starts.tolist()) for n, starts in self.space.candidates[vertex].starts.items()}
        for p in also:
            rack, node, gpu = p.origin
            first.setdefault(p.allocation.gpus, set()).add((rack * nodes + node) * per_node + gpu)
        return {n: sorted(starts) for n, starts in first.items()}

    def _place(self, gpus: int, starts: list[int]) -> int:
        """The number of the footprint of allocations; that of host vertices is 0."""
        footprint = self.blocks.footprint(gpus, np.array(starts))
        if footprint not in self.footprints:
            self.footprints.append(footprint)
        return self.footprints.index(footprint)

    def _order(self) -> list[int]:
        """Generations first, as all else waits for them; then training, which fills memory; each by work."""
        rank = {"generation": 0, "training": 1, "inference": 2}
        work = [int((c[:, GPUS] * c[:, LOAD]).min()) for c in self.choices]
        return sorted(self.times.placed, key=lambda v: (rank[self.times.roles[v]], -work[v], v))

    def run(self, partial_plans: int, stop: Callable[[], bool]) -> Bound | None:
        """See `lower_bound`."""
        least = np.stack([c.min(axis=0) for c in self.choices])
        root = self.times.bounds(least[None], *self._kinds([EMPTY]), self.order)[0]
        heap: list[_Partial] = [(int(root), 0, 0, EMPTY, least)]
        made = 1
        while heap:
            bound, depth = heap[0][0], -heap[0][1]
            if depth == len(self.order) or made >= partial_plans or stop():
                which = "each" if depth == len(self.order) else "none"
                argument = f"{which} of {made} partial plans leads to a plan of a smaller bound"
                return Bound(bound, argument, self._plans(heap, made))
            batch = [heapq.heappop(heap)]
            most = AT_ONCE // len(self.choices[self.order[depth]])
            while heap and len(batch) < most and -heap[0][1] == depth:
                batch.append(heapq.heappop(heap))
            for child in self._children(batch, depth):
                made += 1
                heapq.heappush(heap, (child[0], -(depth + 1), made, *child[1:]))
        return None

    def _children(self, batch: list[_Partial], depth: int) -> Iterator[tuple[int, Tree, Ints]]:
        """Bound, tree and choices of every way to place the next vertex where it fits."""
        vertex = self.order[depth]
        options = self.choices[vertex]
        places = [(int(n), np.flatnonzero(options[:, PLACE] == n)) for n in np.unique(options[:, PLACE])]
        trees: list[Tree] = []
        made = []
        floors = []
        for bound, _, _, tree, choice in batch:
            for place, numbers in places:
                for placed in self.blocks.placed(tree, vertex, self.footprints[place]):
                    trees += [placed] * len(numbers)
                    floors += [bound] * len(numbers)
                    choices = np.repeat(choice[None], len(numbers), axis=0)
                    choices[:, vertex] = options[numbers]
                    made.append(choices)
        choices = np.concatenate(made)
        kinds, count = self._kinds(trees)
        fitting = np.flatnonzero(self.times.fits(choices, kinds))
        if not len(fitting):
            return
        choices = choices[fitting]
        bounds = self.times.bounds(choices, kinds[fitting], count[fitting], self.order[depth + 1 :])
        bounds = np.maximum(bounds, np.array(floors)[fitting])
        yield from zip(bounds.tolist(), (trees[i] for i in fitting.tolist()), choices, strict=True)

    def _plans(self, heap: list[_Partial], made: int) -> tuple[Plan, ...]:
        """The partial plans of smallest bounds completed, few at a time, as plans."""
        kept = heapq.nsmallest(PLANS, heap)
        for depth in range(len(self.order)):
            batch = [partial for partial in kept if -partial[1] == depth]
            if batch:
                kept = [partial for partial in kept if -partial[1] != depth]
                for child in self._children(batch, depth):
                    made += 1
                    kept.append((child[0], -(depth + 1), made, *child[1:]))
                kept = heapq.nsmallest(PLANS, kept)
        return tuple(self._plan(tree, choice) for *_, tree, choice in kept)

    def _plan(self, tree: Tree, choice: Ints) -> Plan:
        """The plan of these choices, every allocation standing closest to its block."""
        _, nodes, per_node = self.space.problem.device_space
        names = [v.name for v in self.space.problem.graph.vertices]
        plan = {}
        for v, (start, n) in sorted(self.blocks.first(tree).items()):
            number = int(np.flatnonzero((self.choices[v] == choice[v]).all(axis=1))[0])
            placement = self.placements[v][number]
            gpus = placement.layout.gpus
            missed = [abs(s - start) + abs(s + gpus - start - n) for s in self.first[v][gpus]]
            node, gpu = divmod(self.first[v][gpus][missed.index(min(missed))], per_node)
            plan[names[v]] = msgspec.structs.replace(placement, origin=(*divmod(node, nodes), gpu))
        return plan

    def _kinds(self, trees: list[Tree]) -> tuple[Bools, Ints]:
        """Which vertices meet on each kind of GPUs, (N, P, V), and the number of those GPUs, (N, P)."""
        number: dict[Tree, int] = {}
        each = [number.setdefault(tree, len(number)) for tree in trees]
        found = [self.blocks.kinds(tree) for tree in number]
        users, count = np.zeros((2, len(found), max(map(len, found))), dtype=np.int64)
        for i, kinds in enumerate(found):
            users[i, : len(kinds)] = list(kinds)
            count[i, : len(kinds)] = list(kinds.values())
        meeting = (users[:, :, None] >> np.arange(len(self.choices)) & 1).astype(bool)
        return meeting[each], count[each]
