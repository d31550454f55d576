"""The concurrent plan: independent vertices side by side, level after level (semantics: Search).

Levels are the longest-path layering of (V, E_data). A level's members get disjoint candidates such that
the slowest of them is as fast as possible; if there is no such choice they run one after another on all
GPUs. The estimated step time is the sum over levels. Plans are looked at in order of that sum until one
fits in memory, at most `MOST_PLANS` of them.
"""

import heapq
import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from ir_schema.problem import Problem
from passes.search.candidates import Candidates
from passes.search.evaluator import Row
from passes.search.greedy import widest
from passes.search.space import Space

MOST_PLANS = 1000
AT_ONCE = 32

Place = tuple[int, int]
"""A vertex's entry in a row: shape number and first GPU."""

Choice = tuple[int, tuple[Place, ...]]


def levels(problem: Problem) -> list[list[str]]:
    """Names of the vertices by longest distance from a source along data edges, each level by index."""
    depth = dict.fromkeys((v.name for v in problem.graph.vertices), 0)
    for _ in depth:
        for e in problem.graph.data_edges:
            depth[e.target] = max(depth[e.target], depth[e.source] + 1)
    return [[v for v in depth if depth[v] == d] for d in range(max(depth.values(), default=-1) + 1)]


class _Member:
    """One vertex's candidates with their times and GPUs (bit masks), in candidate order."""

    def __init__(self, candidates: Candidates) -> None:
        masks = {
            n: [(((1 << n) - 1) << start, start) for start in candidates.starts[n].tolist()]
            for n in candidates.sizes
        }
        self.options: list[tuple[int, int, Place]] = []
        for shape, number in zip(candidates.shapes, candidates.numbers.tolist(), strict=True):
            self.options += [(shape.time_ns, mask, (number, start)) for mask, start in masks[shape.gpus]]
        fastest: dict[int, int] = {}
        for time_ns, mask, _ in self.options:
            fastest.setdefault(mask, time_ns)
        self.by_mask = sorted(fastest.items(), key=lambda item: (item[0].bit_count(), item[1]))
        self.times = {time_ns for time_ns, _, _ in self.options}


class _Level:
    """All ways of giving the members of a level disjoint candidates."""

    def __init__(self, members: Sequence[_Member], gpus: int) -> None:
        self.members = members
        self.gpus = gpus
        self._packable: dict[tuple[int, int, int], bool] = {}

    def packable(self, i: int, within: int, used: int) -> bool:
        """Whether members i.. find disjoint GPUs outside `used`, all with times of at most `within`."""
        if i == len(self.members):
            return True
        key = (i, within, used)
        known = self._packable.get(key)
        if known is None:
            known = self._packable[key] = self._pack(i, within, used)
        return known

    def _pack(self, i: int, within: int, used: int) -> bool:
        needed = 0
        for member in self.members[i:]:
            smallest = next((m.bit_count() for m, t in member.by_mask if t <= within), None)
            if smallest is None:
                return False
            needed += smallest
        if needed > self.gpus - used.bit_count():
            return False
        return any(
            self.packable(i + 1, within, used | mask)
            for mask, t in self.members[i].by_mask
            if t <= within and not mask & used
        )

    def choices(self) -> Iterator[Choice]:
        """(largest T_op, places) by largest T_op, then lexicographically in candidate order."""
        times = sorted(set().union(*(m.times for m in self.members)))
        low, high = 0, len(times)
        while low < high:
            middle = (low + high) // 2
            if self.packable(0, times[middle], 0):
                high = middle
            else:
                low = middle + 1
        for slowest in times[low:]:
            for places in self._within(0, slowest, 0, reached=False):
                yield slowest, places

    def _within(self, i: int, slowest: int, used: int, *, reached: bool) -> Iterator[tuple[Place, ...]]:
        """Places of members i.. with no time above `slowest`, and one equal to it unless `reached`."""
        if i == len(self.members):
            if reached:
                yield ()
            return
        if not reached and not any(slowest in m.times for m in self.members[i:]):
            return
        for time_ns, mask, place in self.members[i].options:
            if time_ns > slowest:
                break
            if mask & used or not self.packable(i + 1, slowest, used | mask):
                continue
            rest = self._within(i + 1, slowest, used | mask, reached=reached or time_ns == slowest)
            for others in rest:
                yield (place, *others)


class _Listed:
    """A lazily extended list of choices."""

    def __init__(self, choices: Iterator[Choice]) -> None:
        self._choices = choices
        self._found: list[Choice] = []

    def get(self, i: int) -> Choice | None:
        """Choice `i`, None beyond the last."""
        self._found.extend(itertools.islice(self._choices, max(0, i + 1 - len(self._found))))
        return self._found[i] if i < len(self._found) else None


def by_sum(lists: Sequence[_Listed]) -> Iterator[tuple[int, list[Choice]]]:
    """Combinations of one choice per list, smallest sum of times first, ties lexicographic in positions."""
    start = [x.get(0) for x in lists]
    if any(c is None for c in start):
        return
    heap = [(sum(c[0] for c in start if c is not None), (0,) * len(lists))]
    seen = {heap[0][1]}
    while heap:
        total, at = heapq.heappop(heap)
        found = [x.get(i) for x, i in zip(lists, at, strict=True)]
        chosen = [c for c in found if c is not None]
        yield total, chosen
        for j in range(len(lists)):
            following = (*at[:j], at[j] + 1, *at[j + 1 :])
            choice = lists[j].get(at[j] + 1)
            if choice is not None and following not in seen:
                seen.add(following)
                heapq.heappush(heap, (total - chosen[j][0] + choice[0], following))


def _level_choices(space: Space, names: Sequence[str]) -> Iterator[Choice]:
    level = _Level([_Member(space.candidates[v]) for v in names], space.evaluator.gpus)
    disjoint = level.choices()
    first = next(disjoint, None)
    if first is not None:
        yield first
        yield from disjoint
        return
    in_turn = [_Listed(_each(widest(space.candidates[v]))) for v in names]
    for total, choices in by_sum(in_turn):
        yield total, tuple(place for _, places in choices for place in places)


def _each(candidates: Candidates) -> Iterator[Choice]:
    for shape, number in zip(candidates.shapes, candidates.numbers.tolist(), strict=True):
        for start in candidates.starts[shape.gpus].tolist():
            yield shape.time_ns, ((number, start),)


def _plans(space: Space) -> Iterator[Row]:
    """Plans by estimated step time."""
    number = {v: i for i, v in enumerate(space.vertices)}
    rows = [[v for v in row if v in number] for row in levels(space.problem)]
    rows = [row for row in rows if row]
    for _, choices in by_sum([_Listed(_level_choices(space, row)) for row in rows]):
        found = np.empty((len(number), 2), dtype=np.int64)
        for row, (_, places) in zip(rows, choices, strict=True):
            found[[number[v] for v in row]] = places
        yield found


def concurrent(space: Space) -> tuple[Row, bool]:
    """The first plan that fits in memory, and True; the fastest, and False, if none was found that does."""
    plans = itertools.islice(_plans(space), MOST_PLANS)
    first: Row | None = None
    for count in itertools.chain((1,), itertools.repeat(AT_ONCE)):
        rows = list(itertools.islice(plans, count))
        if not rows:
            break
        first = rows[0] if first is None else first
        peaks = space.evaluator.evaluate_rows(np.array(rows)).peak_bytes
        fitting = np.flatnonzero(peaks <= space.evaluator.limit_bytes)
        if len(fitting):
            return rows[fitting[0]], True
    assert first is not None, "every vertex has candidates"
    return first, False
