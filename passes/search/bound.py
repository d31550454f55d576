"""A proven lower bound on the makespan of every plan of a structure that fits (`docs/bound.md`).

Plans are chosen vertex by vertex, a shape and a block of GPUs each, best first by the bound of what is chosen
so far; the smallest bound of those not yet looked into holds for all plans, whenever one stops.
"""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ir_schema.device import size
from passes.search.bound_blocks import EMPTY, Blocks, Tree
from passes.search.bound_choices import GPUS, LEVEL, LOAD, Choices, Ints
from passes.search.bound_times import Bools, Times
from passes.search.space import Space

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


def lower_bound(space: Space, partial_plans: int = PARTIAL_PLANS) -> Bound | None:
    """The bound of one structure; None where it is proven that no plan fits.

    It holds for every plan made of the space's candidates, with any number of waves between those of
    candidates of the same layout, and for every schedule that obeys precedence and exclusivity.
    """
    return _Search(space).run(partial_plans)


class _Search:
    """Best-first branch and bound over shapes and blocks."""

    def __init__(self, space: Space) -> None:
        evaluator, graph = space.evaluator, space.problem.graph
        gpus = size(space.problem.device_space)
        self.blocks = Blocks(gpus, {n for c in space.candidates.values() for n in c.sizes})
        reader = Choices(evaluator)
        self.choices: list[Ints] = []
        for v in graph.vertices:
            if v.model is None:
                self.choices.append(reader.of_host(v))
                continue
            candidates = space.candidates[v.name]
            levels = {n: self.blocks.level(n, candidates.starts[n]) for n in candidates.sizes}
            self.choices.append(reader.of(v, candidates, levels))
        self.times = Times(evaluator.analysis, self.choices, self.blocks.sizes, splits=reader.splits)
        self.order = self._order()

    def _order(self) -> list[int]:
        """Generations first, as all else waits for them; then training, which fills memory; each by work."""
        rank = {"generation": 0, "training": 1, "inference": 2}
        work = [int((c[:, GPUS] * c[:, LOAD]).min()) for c in self.choices]
        return sorted(self.times.placed, key=lambda v: (rank[self.times.roles[v]], -work[v], v))

    def run(self, partial_plans: int) -> Bound | None:
        """See `lower_bound`."""
        least = np.stack([c.min(axis=0) for c in self.choices])
        root = self._bounds(least[None], [EMPTY], 0)[0]
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
        fitting = np.flatnonzero(self.times.fits(choices, self._kinds(trees)[0])).tolist()
        if not fitting:
            return
        trees, choices = [trees[i] for i in fitting], choices[fitting]
        bounds = np.maximum(self._bounds(choices, trees, depth + 1), np.array(floors)[fitting])
        yield from zip(bounds.tolist(), trees, choices, strict=True)

    def _kinds(self, trees: list[Tree]) -> tuple[Bools, Ints]:
        """Which vertices meet on each kind of GPUs, (N, P, V), and the number of those GPUs, (N, P)."""
        known: dict[Tree, dict[int, int]] = {}
        found = []
        for tree in trees:
            if tree not in known:
                known[tree] = self.blocks.kinds(tree)
            found.append(known[tree])
        width = max(len(kinds) for kinds in found)
        users = np.zeros((len(trees), width), dtype=np.int64)
        count = np.zeros((len(trees), width), dtype=np.int64)
        for i, kinds in enumerate(found):
            users[i, : len(kinds)] = list(kinds)
            count[i, : len(kinds)] = list(kinds.values())
        return (users[:, :, None] >> np.arange(len(self.choices)) & 1).astype(bool), count

    def _bounds(self, choices: Ints, trees: list[Tree], depth: int) -> Ints:
        return self.times.bounds(choices, *self._kinds(trees), self.order[depth:])
