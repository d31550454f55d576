"""Which sequences a worker holds, which it needs, and which messages bring the one to the other.

Pure, on global sequence indices (prompt * R + rollout). A set of indices is a tuple of half-open ranges,
ascending and apart; it is hashable, so that the routes of a steady run are computed once.
"""

import math
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ir_schema.problem import Layout, Workload
from rpeg_rt.engine.sharding import position_of

Ranges = tuple[tuple[int, int], ...]


class Key(NamedTuple):
    """Rows of `container` that template node `node` left at `step`."""

    node: int
    step: int
    container: str


class Holding(NamedTuple):
    """Sequences `rows` that each of `ranks` holds a copy of."""

    ranks: tuple[int, ...]
    rows: Ranges


class Message(NamedTuple):
    """`rows` go from worker `source` to worker `destination`; equal: they are already there."""

    source: int
    destination: int
    rows: Ranges


class MissingRowsError(Exception):
    """A worker needs rows that nobody holds."""


def to_ranges(indices: Iterable[int]) -> Ranges:
    """Ranges of ascending, distinct indices."""
    ranges: list[tuple[int, int]] = []
    for i in map(int, indices):
        if ranges and ranges[-1][1] == i:
            ranges[-1] = (ranges[-1][0], i + 1)
        else:
            ranges.append((i, i + 1))
    return tuple(ranges)


def to_indices(rows: Ranges) -> npt.NDArray[np.int64]:
    """The indices in `rows`, ascending."""
    return np.concatenate([np.arange(a, b, dtype=np.int64) for a, b in rows] or [np.empty(0, np.int64)])


def count(rows: Ranges) -> int:
    """Number of indices."""
    return sum(b - a for a, b in rows)


def intersection(x: Ranges, y: Ranges) -> Ranges:
    """Indices in both."""
    found = []
    i = j = 0
    while i < len(x) and j < len(y):
        low, high = max(x[i][0], y[j][0]), min(x[i][1], y[j][1])
        if low < high:
            found.append((low, high))
        if x[i][1] < y[j][1]:
            i += 1
        else:
            j += 1
    return tuple(found)


def union(*sets: Ranges) -> Ranges:
    """Indices in any."""
    merged: list[tuple[int, int]] = []
    for a, b in sorted(r for s in sets for r in s):
        if merged and a <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], b))
        else:
            merged.append((a, b))
    return tuple(merged)


def block(workload: Workload, replicas: int, replica: int) -> Ranges:
    """The sequences of a replica: a contiguous block of prompts with all their rollouts."""
    first, last = (workload.prompts * d // replicas for d in (replica, replica + 1))
    return ((first * workload.rollouts, last * workload.rollouts),) if first < last else ()


def minibatch_rows(workload: Workload, replicas: int, replica: int) -> list[int]:
    """Sequences that a replica has in each of a step's E * M minibatches, which hold prompts p modulo M."""
    first, last = (workload.prompts * d // replicas for d in (replica, replica + 1))
    of = [sum(p % workload.minibatches == m for p in range(first, last)) for m in range(workload.minibatches)]
    return [prompts * workload.rollouts for prompts in of] * workload.epochs


def phase_count(workload: Workload, replicas: int, phase: int) -> int:
    """Sequences of one replica that have left after `phase` (from 1) of a split generation.

    floor(f_q * B * R / P_d).
    """
    fraction, _ = workload.length_quantiles[phase - 1]
    return math.floor(fraction * workload.sequences / replicas)


def replica_ranks(ranks: Sequence[int], layout: Layout, replica: int) -> tuple[int, ...]:
    """The workers of one data-parallel replica."""
    return tuple(r for i, r in enumerate(ranks) if position_of(i, layout).data == replica)


def needs_of(rows: Ranges, workload: Workload, ranks: Sequence[int], layout: Layout) -> dict[int, Ranges]:
    """What each worker of an operator needs of `rows`: its replica's block."""
    found = {}
    for d in range(layout.data_parallel):
        share = intersection(rows, block(workload, layout.data_parallel, d))
        found.update(dict.fromkeys(replica_ranks(ranks, layout, d), share))
    return found


@lru_cache(maxsize=4096)
def route_rows(holdings: tuple[Holding, ...], needs: tuple[tuple[int, Ranges], ...]) -> tuple[Message, ...]:
    """Messages that give every worker what it needs, each row once.

    A worker that holds a row keeps it; else the holders of one copy share the sending by destination.
    Raises MissingRowsError if a needed row is held by nobody.
    """
    messages = []
    for destination, needed in needs:
        missing = needed
        for h in sorted(holdings, key=lambda h: (destination not in h.ranks, h)):
            rows = intersection(missing, h.rows)
            if rows:
                here = destination in h.ranks
                source = destination if here else h.ranks[destination % len(h.ranks)]
                messages.append(Message(source, destination, rows))
                missing = difference(missing, rows)
        if missing:
            raise MissingRowsError(f"worker {destination} needs sequences {missing}, which nobody holds")
    return tuple(messages)


def difference(x: Ranges, y: Ranges) -> Ranges:
    """Indices in `x` and not in `y`."""
    found = []
    for low, high in x:
        at = low
        for a, b in y:
            if b <= at or a >= high:
                continue
            if a > at:
                found.append((at, a))
            at = max(at, b)
        if at < high:
            found.append((at, high))
    return tuple(found)
