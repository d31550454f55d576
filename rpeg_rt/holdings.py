"""The rows that one worker holds, and its part in bringing them to where they are read."""

import torch

from rpeg_rt.engine.transfer import exchange
from rpeg_rt.precision import number_type
from rpeg_rt.protocol import Command, Move, RowsFrame, from_array, to_array
from rpeg_rt.realise import BoundNode, Realisation
from rpeg_rt.rows import Key, count, replica_ranks, to_indices
from rpeg_rt.store import Rows, Store, gather


class Ledger:
    """Bytes that this worker sent and received while carrying out one command, by peer."""

    def __init__(self) -> None:
        self.sent: dict[int, int] = {}
        self.received: dict[int, int] = {}

    def add(self, sent: dict[int, int], received: dict[int, int]) -> None:
        """Count what was sent to and received from peers."""
        for total, more in ((self.sent, sent), (self.received, received)):
            for peer, size in more.items():
                total[peer] = total.get(peer, 0) + size


class Holdings:
    """The rows of worker `rank` from step to step, each until its last reader has had it."""

    def __init__(self, realisation: Realisation, rank: int) -> None:
        self._realisation, self._rank, self._store = realisation, rank, Store()

    def bring(self, command: Command, ledger: Ledger) -> dict[str, Rows]:
        """The rows that a command's node reads here, by container: from the host, and from workers."""
        held = {name: _from_host(frame) for name, frame in command.rows.items()}
        return held | {move.container: self._move(move, command.step, ledger) for move in command.moves}

    def keep(self, bound: BoundNode, step: int, left: dict[str, Rows]) -> None:
        """Keep the rows that a node leaves for those that will read them."""
        readers = self._realisation.worker_readers
        for name, rows in left.items():
            self._store.put(Key(bound.node.id, step, name), rows, readers[bound.node.id, name])

    def for_host(self, bound: BoundNode, left: dict[str, Rows]) -> dict[str, RowsFrame]:
        """The rows that a host vertex reads, from the first worker of each replica."""
        wanted = [a for a in left if self._realisation.host_readers[bound.node.id, a]]
        if not wanted:
            return {}
        placement = self._realisation.plan[bound.node.vertex]
        first = {replica_ranks(bound.ranks, placement.layout, d)[0] for d in range(placement.data_parallel)}
        if self._rank not in first:
            return {}
        return {a: RowsFrame(left[a].ranges, to_array(left[a].values.cpu().numpy())) for a in wanted}

    def _move(self, move: Move, step: int, ledger: Ledger) -> Rows:
        """Bring the needed rows of a container together: from the own store, and from other workers."""
        taken = [self._store.take(Key(source, step, move.container)) for source in move.sources]
        parts = [rows for rows in taken if rows is not None]
        mine = gather(parts) if parts else None
        kept: list[Rows] = []
        if count(move.local):
            assert mine is not None
            kept.append(Rows(torch.from_numpy(to_indices(move.local)), mine.select(move.local)))
        sends = {}
        for peer, rows in move.sends:
            assert mine is not None
            sends[peer] = mine.select(rows).contiguous()
        receives = {peer: self._empty(move.container, count(rows)) for peer, rows in move.receives}
        if sends or receives:
            exchange(sends, receives)
        ledger.add({p: t.nbytes for p, t in sends.items()}, {p: t.nbytes for p, t in receives.items()})
        kept += [Rows(torch.from_numpy(to_indices(rows)), receives[peer]) for peer, rows in move.receives]
        return gather(kept or [Rows(torch.empty(0, dtype=torch.int64), self._empty(move.container, 0))])

    def _empty(self, container: str, rows: int) -> torch.Tensor:
        semantics, problem = self._realisation.semantics, self._realisation.problem
        assert problem.run is not None, "preflight refuses a plan without a run"
        width = semantics.width(container, problem)
        name = "int32" if semantics.meaning[container] == "tokens" else number_type(problem.run.precision)
        return torch.empty((rows,) if width is None else (rows, width), dtype=getattr(torch, name))


def _from_host(frame: RowsFrame) -> Rows:
    return Rows(torch.from_numpy(to_indices(frame.rows)), torch.from_numpy(from_array(frame.values)))
