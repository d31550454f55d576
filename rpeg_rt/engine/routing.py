"""Which fragments of which tensors move when weights go from one layout to another.

Pure: every rank computes the same list and finds its own sends and receives in it.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from ir_schema.model import ModelSpec
from ir_schema.problem import Layout
from rpeg_rt.engine.sharding import ShardSpec, Slices, position_of, shard_map


class Fragment(NamedTuple):
    """A slice of canonical tensor `name` that `source` sends to `destination` (equal: a local copy)."""

    name: str
    source: int
    destination: int
    slices: Slices

    @property
    def elements(self) -> int:
        """Number of elements of the fragment."""
        count = 1
        for s in self.slices:
            count *= s.stop - s.start
        return count


Placed = tuple[Sequence[int], Layout]


def route(spec: ModelSpec, source: Placed, destination: Placed) -> list[Fragment]:
    """Fragments that fill all shards of `destination` from those of `source`, each (ranks, layout).

    Each element a destination rank holds is in exactly one fragment for that rank. A rank that holds
    the element itself is its own source, so that no byte moves needlessly; otherwise the holder that
    has sent least so far sends it (ties: the one nearest by rank, then the lower rank).
    """
    held = holders(spec, source)
    sent: dict[int, int] = defaultdict(int)
    fragments = []
    for rank, shard in _placed_shards(spec, destination):
        for slices, ranks in held[shard.name]:
            common = intersection(slices, shard.slices)
            if common is None:
                continue
            sender = rank if rank in ranks else min(ranks, key=lambda r: (sent[r], abs(r - rank), r))
            fragment = Fragment(shard.name, sender, rank, common)
            if sender != rank:
                sent[sender] += fragment.elements
            fragments.append(fragment)
    return fragments


def holders(spec: ModelSpec, source: Placed) -> dict[str, list[tuple[Slices, list[int]]]]:
    """Per tensor, the distinct slices it is cut into in a placed layout and the ranks that hold each."""
    found: dict[str, list[tuple[Slices, list[int]]]] = defaultdict(list)
    for rank, shard in _placed_shards(spec, source):
        for slices, ranks in found[shard.name]:
            if slices == shard.slices:
                if rank not in ranks:
                    ranks.append(rank)
                break
        else:
            found[shard.name].append((shard.slices, [rank]))
    return found


def _placed_shards(spec: ModelSpec, placed: Placed) -> list[tuple[int, ShardSpec]]:
    ranks, layout = placed
    return [(r, s) for i, r in enumerate(ranks) for s in shard_map(spec, layout, position_of(i, layout))]


def intersection(a: Slices, b: Slices) -> Slices | None:
    """What two slices of one tensor have in common; None for nothing."""
    common = tuple(slice(max(x.start, y.start), min(x.stop, y.stop)) for x, y in zip(a, b, strict=True))
    return common if all(s.start < s.stop for s in common) else None
