"""A proven lower bound on the makespan of every plan of a structure that fits (`docs/bound.md`).

Plans are chosen vertex by vertex, a shape and a block of GPUs each, best first by the bound of what is chosen
so far; the smallest bound of those not yet looked into holds for all plans, whenever one stops.
"""

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ir_schema.device import size
from ir_schema.problem import Placement
from passes.search.bound_blocks import EMPTY, Blocks, Tree
from passes.search.bound_choices import GPUS, LEVEL, LOAD, Choices, Ints
from passes.search.bound_times import Bools, Times
from passes.search.candidates import Candidates
from passes.search.space import Space
from passes.structure import Plan

PARTIAL_PLANS = 5_000
"""After so many partial plans the search for a better bound ends."""

AT_ONCE = 512
"""About so many partial plans are made and bounded at once."""

_Partial = tuple[int, int, int, Tree, Ints]
"""Bound, minus the number of placed vertices, serial number, blocks, choices (V, COLUMNS)."""


@dataclass(frozen=True)
class Bound:
    """No plan that fits has a smaller makespan than `makespan_ns`; `argument` says why, in words."""

    makespan_ns: int
    argument: str


def lower_bound(
    space: Space, starts: Sequence[Plan] = (), *, partial_plans: int = PARTIAL_PLANS
) -> Bound | None:
    """The bound of one structure; None where it is proven that no plan fits.

    It holds for every plan made of the space's candidates and of the placements in `starts`, wherever they
    stand among legal origins, with any number of waves from the fewest to the most of either in the same
    layout; and for every schedule that obeys precedence and exclusivity. `partial_plans` limits the effort.
    """
    return _Search(space, starts).run(partial_plans)


class _Search:
    """Best-first branch and bound over shapes and blocks."""

    def __init__(self, space: Space, starts: Sequence[Plan]) -> None:
        evaluator, graph = space.evaluator, space.problem.graph
        also = {v: [plan[v] for plan in starts] for v in space.vertices}
        sizes = {n for c in space.candidates.values() for n in c.sizes}
        sizes |= {p.allocation.gpus for placements in also.values() for p in placements}
        self.blocks = Blocks(size(space.problem.device_space), sizes)
        reader = Choices(evaluator)
        self.choices: list[Ints] = []
        for v in graph.vertices:
            if v.model is None:
                self.choices.append(reader.of_host(v))
                continue
            candidates = space.candidates[v.name]
            levels = self._levels(space, candidates, also[v.name])
            self.choices.append(reader.of(v, candidates, levels, also[v.name]))
        self.times = Times(evaluator.analysis, self.choices, self.blocks.sizes, splits=reader.splits)
        self.order = self._order()

    def _levels(self, space: Space, candidates: Candidates, also: list[Placement]) -> dict[int, int]:
        """The level of the block that every allocation contains, by its number of GPUs."""
        _, nodes, per_node = space.problem.device_space
        first = {n: set(starts.tolist()) for n, starts in candidates.starts.items()}
        for p in also:
            rack, node, gpu = p.origin
            first.setdefault(p.allocation.gpus, set()).add((rack * nodes + node) * per_node + gpu)
        return {n: self.blocks.level(n, np.array(sorted(starts))) for n, starts in first.items()}

    def _order(self) -> list[int]:
        """Generations first, as all else waits for them; then training, which fills memory; each by work."""
        rank = {"generation": 0, "training": 1, "inference": 2}
        work = [int((c[:, GPUS] * c[:, LOAD]).min()) for c in self.choices]
        return sorted(self.times.placed, key=lambda v: (rank[self.times.roles[v]], -work[v], v))

    def run(self, partial_plans: int) -> Bound | None:
        """See `lower_bound`."""
        least = np.stack([c.min(axis=0) for c in self.choices])
        root = self.times.bounds(least[None], *self._kinds([EMPTY]), self.order)[0]
        heap: list[_Partial] = [(int(root), 0, 0, EMPTY, least)]
        made = 1
        while heap:
            bound, depth = heap[0][0], -heap[0][1]
            if depth == len(self.order):
                return Bound(bound, f"each of {made} partial plans leads to no faster one")
            if made >= partial_plans:
                return Bound(bound, f"none of {made} partial plans leads to a faster one")
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
        levels = [(int(n), np.flatnonzero(options[:, LEVEL] == n)) for n in np.unique(options[:, LEVEL])]
        trees: list[Tree] = []
        made = []
        floors = []
        for bound, _, _, tree, choice in batch:
            for level, numbers in levels:
                for placed in self.blocks.placed(tree, vertex, level):
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
