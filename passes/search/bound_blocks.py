"""Where allocations may stand, up to symmetry: nested aligned blocks of the flattened device space.

`sizes` is a chain of divisors, the last of them all GPUs; the blocks of a size start at its multiples, so
blocks are nested or disjoint. Every allocation is taken for disjoint blocks like those that it contains, but
these may stand anywhere. What a machine holds is a tree of blocks; trees that differ in the order of blocks
only are the same.
"""

from collections.abc import Iterable, Iterator

import numpy as np

Tree = tuple[int, tuple["Tree", ...]]
"""Bit mask of the vertices on the whole of a block; the blocks inside, sorted, none if nothing is there."""

EMPTY: Tree = (0, ())

Footprint = tuple[int, ...]
"""Levels of blocks, the largest first."""

MOST_BLOCKS = 2


class Blocks:
    """The blocks of a machine of `gpus` GPUs whose allocations have the numbers of GPUs `sizes`."""

    def __init__(self, gpus: int, sizes: Iterable[int]) -> None:
        self.sizes = _longest_chain({n for n in sizes if gpus % n == 0} | {1, gpus})
        self.top = len(self.sizes) - 1

    def footprint(self, gpus: int, starts: "np.ndarray[tuple[int], np.dtype[np.int64]]") -> Footprint:
        """Levels of disjoint blocks of which some lie in every allocation of `gpus` GPUs at one of `starts`,
        the largest there are."""
        levels: list[int] = []
        used = 0
        for level in range(self.top, -1, -1):
            n = self.sizes[level]
            inside = (starts + gpus) // n - -(-starts // n)
            count = min(int(inside.min()) - used // n, MOST_BLOCKS - len(levels))
            if count > 0:
                levels += [level] * count
                used += count * n
        return tuple(levels)

    def covered(self, footprint: Footprint) -> int:
        """GPUs of the blocks."""
        return sum(self.sizes[level] for level in footprint)

    def placed(self, tree: Tree, vertex: int, footprint: Footprint) -> list[Tree]:
        """The distinct trees that result when `vertex` is placed on disjoint blocks anywhere."""
        trees = {tree}
        for level in footprint:
            trees = {new for old in trees for new in self._placed(old, self.top, 1 << vertex, level)}
        return sorted(trees)

    def _placed(self, tree: Tree, at: int, vertex: int, level: int) -> Iterator[Tree]:
        users, inside = tree
        if users & vertex:
            return
        if at == level:
            if not any(_has(block, vertex) for block in inside):
                yield users | vertex, inside
            return
        inside = inside or (EMPTY,) * (self.sizes[at] // self.sizes[at - 1])
        for i, block in enumerate(inside):
            if i and block == inside[i - 1]:
                continue
            rest = inside[:i] + inside[i + 1 :]
            for changed in self._placed(block, at - 1, vertex, level):
                yield users, tuple(sorted((*rest, changed)))

    def kinds(self, tree: Tree) -> dict[int, int]:
        """Number of GPUs by the set (bit mask) of vertices that meet on them."""
        found: dict[int, int] = {}
        stack = [(tree, self.top, 0)]
        while stack:
            (users, inside), at, above = stack.pop()
            users |= above
            if inside:
                stack += [(block, at - 1, users) for block in inside]
            else:
                found[users] = found.get(users, 0) + self.sizes[at]
        return found

    def first(self, tree: Tree) -> dict[int, tuple[int, int]]:
        """First GPU and size of a largest block of every vertex in `tree`, blocks standing in its order."""
        found: dict[int, tuple[int, int]] = {}
        stack = [(tree, self.top, 0)]
        while stack:
            (users, inside), at, start = stack.pop()
            here = {v: (start, self.sizes[at]) for v in range(users.bit_length()) if users >> v & 1}
            found |= {v: max(found.get(v, (0, 0)), block, key=lambda x: x[1]) for v, block in here.items()}
            stack += [(block, at - 1, start + i * self.sizes[at - 1]) for i, block in enumerate(inside)]
        return found


def _has(tree: Tree, vertex: int) -> bool:
    return bool(tree[0] & vertex) or any(_has(block, vertex) for block in tree[1])


def _longest_chain(sizes: Iterable[int]) -> tuple[int, ...]:
    """The longest chain in which each size divides the next; of several that of the largest sizes. It begins
    with the smallest and ends with the largest of `sizes`, which divide all and are divided by all."""
    best: dict[int, tuple[int, ...]] = {}
    for n in sorted(sizes):
        below = [chain for m, chain in best.items() if n % m == 0]
        best[n] = (*max(below, key=lambda c: (len(c), c), default=()), n)
    return best[max(best)]
