"""Where rows are and how they reach their readers: the controller's book of what workers hold.

The routes follow from what workers reported and from the plan alone, so the verifier, reading a trace
through this class, knows every message that should have been sent.
"""

from dataclasses import dataclass

from rpeg_rt.dispatch import Instance
from rpeg_rt.protocol import Move
from rpeg_rt.realise import BoundNode, Input, Realisation
from rpeg_rt.rows import Holding, Key, Message, Ranges, needs_of, route_rows, union


@dataclass
class _Book:
    """Who holds the rows under one key, and how many nodes have still to read them."""

    holdings: tuple[Holding, ...]
    readers: int


class Logistics:
    """Rows held by workers during a run; entries end with their last reader."""

    def __init__(self, realisation: Realisation) -> None:
        self.realisation = realisation
        self.workload = realisation.problem.workload
        self._books: dict[Key, _Book] = {}

    def __len__(self) -> int:
        return len(self._books)

    def record(self, x: Instance, rows: dict[int, dict[str, Ranges]]) -> None:
        """Node `x` is complete and its workers hold `rows` (by worker and container)."""
        for container in self.realisation.bound[x.node].outputs:
            readers = self.realisation.readers(x.node, container)
            holders: dict[Ranges, list[int]] = {}
            for rank in sorted(rows):
                held = rows[rank].get(container, ())
                if held:
                    holders.setdefault(held, []).append(rank)
            if readers:
                holdings = tuple(Holding(tuple(ranks), held) for held, ranks in holders.items())
                self._books[Key(x.node, x.step, container)] = _Book(holdings, readers)

    def messages(self, x: Instance) -> dict[str, tuple[Message, ...]]:
        """For each container that `x` reads from workers: who sends which rows to whom."""
        bound = self.realisation.bound[x.node]
        return {i.container: self._messages(bound, i, x.step) for i in self._from_workers(bound)}

    def needs(self, x: Instance, container: str) -> dict[int, Ranges]:
        """What each worker of `x` will hold of `container`, which it reads from workers or from outside."""
        bound = self.realisation.bound[x.node]
        if container in self.realisation.from_outside:
            return self._deal(bound, ((0, self.workload.sequences),))
        (found,) = (i for i in bound.inputs if i.container == container)
        return self._needs(bound, self._held(found, x.step))

    def rows(self, x: Instance) -> Ranges:
        """All sequences that workers hold of what host vertex `x` reads."""
        inputs = self._from_workers(self.realisation.bound[x.node])
        return union(*(h.rows for i in inputs for h in self._held(i, x.step)))

    def moves(self, x: Instance) -> dict[int, list[Move]]:
        """The instructions for every worker of `x`."""
        bound = self.realisation.bound[x.node]
        moves: dict[int, list[Move]] = {rank: [] for rank in bound.ranks}
        for i in self._from_workers(bound):
            messages = self._messages(bound, i, x.step)
            needs = self._needs(bound, self._held(i, x.step))
            for rank in bound.ranks:
                local = [m.rows for m in messages if m.source == m.destination == rank]
                sends = [(m.destination, m.rows) for m in messages if m.source == rank != m.destination]
                receives = [(m.source, m.rows) for m in messages if m.destination == rank != m.source]
                moves[rank].append(
                    Move(
                        container=i.container,
                        sources=i.sources,
                        need=needs.get(rank, ()),
                        local=union(*local),
                        sends=_by_peer(sends),
                        receives=_by_peer(receives),
                    )
                )
        return moves

    def release(self, x: Instance) -> None:
        """`x` has read its inputs."""
        for i in self._from_workers(self.realisation.bound[x.node]):
            for source in i.sources:
                key = Key(source, x.step, i.container)
                self._books[key].readers -= 1
                if not self._books[key].readers:
                    del self._books[key]

    def _from_workers(self, bound: BoundNode) -> list[Input]:
        return [i for i in bound.inputs if not self.realisation.bound[i.sources[0]].on_host]

    def _held(self, i: Input, step: int) -> tuple[Holding, ...]:
        return tuple(h for source in i.sources for h in self._books[Key(source, step, i.container)].holdings)

    def _needs(self, bound: BoundNode, held: tuple[Holding, ...]) -> dict[int, Ranges]:
        return self._deal(bound, union(*(h.rows for h in held)))

    def _deal(self, bound: BoundNode, rows: Ranges) -> dict[int, Ranges]:
        """A worker needs what any operator that it runs on these rows deals to it."""
        found: dict[int, Ranges] = {}
        for vertex in bound.consumers or bound.vertices:
            placement = self.realisation.plan[vertex]
            ranks = self.realisation.ranks(placement.allocation)
            for rank, share in needs_of(rows, self.workload, ranks, placement.layout).items():
                found[rank] = union(found.get(rank, ()), share)
        return found

    def _messages(self, bound: BoundNode, i: Input, step: int) -> tuple[Message, ...]:
        held = self._held(i, step)
        return route_rows(held, tuple(sorted(self._needs(bound, held).items())))


def _by_peer(parts: list[tuple[int, Ranges]]) -> tuple[tuple[int, Ranges], ...]:
    """Rows by peer: at most one message between two workers."""
    peers = sorted({peer for peer, _ in parts})
    return tuple((peer, union(*(rows for p, rows in parts if p == peer))) for peer in peers)
