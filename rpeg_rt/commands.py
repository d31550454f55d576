"""What workers and verifiers are told for each node instance, and the rows that pass through the host."""

import numpy as np
import numpy.typing as npt

from rpeg_rt.dispatch import Instance
from rpeg_rt.host import Host
from rpeg_rt.logistics import Logistics
from rpeg_rt.pool import Verified
from rpeg_rt.protocol import Command, Done, RowsFrame, from_array, to_array
from rpeg_rt.realise import BoundNode, Realisation, given
from rpeg_rt.rows import Key, Ranges, intersection, needs_of, to_indices, to_ranges
from rpeg_rt.semantics import Verify

Rows = tuple[npt.NDArray[np.int64], npt.NDArray[np.generic]]


class _HostRows:
    """Rows in the controller's memory, until every node that reads them there has."""

    def __init__(self) -> None:
        self._rows: dict[Key, Rows] = {}
        self._readers: dict[Key, int] = {}

    def put(self, key: Key, parts: list[Rows], readers: int) -> None:
        if readers:
            indices = np.concatenate([i for i, _ in parts])
            order = np.argsort(indices)
            self._rows[key] = indices[order], np.concatenate([v for _, v in parts])[order]
            self._readers[key] = readers

    def take(self, keys: list[Key]) -> Rows:
        """The rows under all `keys` together, for one reader."""
        parts = []
        for key in keys:
            parts.append(self._rows[key])
            self._readers[key] -= 1
            if not self._readers[key]:
                del self._rows[key], self._readers[key]
        indices = np.concatenate([i for i, _ in parts])
        order = np.argsort(indices)
        return indices[order], np.concatenate([v for _, v in parts])[order]


class Commander:
    """Turns dispatches into commands, and completions into knowledge of where rows are."""

    def __init__(self, realisation: Realisation, host: Host) -> None:
        self.realisation, self.host = realisation, host
        self.logistics = Logistics(realisation)
        self._rows = _HostRows()

    def commands(self, x: Instance) -> dict[int, Command]:
        """The command of every worker of `x`."""
        bound = self.realisation.bound[x.node]
        moves = self.logistics.moves(x)
        self.logistics.release(x)
        rows = self._rows_for(x, bound)
        return {
            rank: Command(node=x.node, step=x.step, moves=tuple(moves[rank]), rows=rows.get(rank, {}))
            for rank in bound.ranks
        }

    def verify(self, x: Instance) -> None:
        """Give a host vertex its responses."""
        bound = self.realisation.bound[x.node]
        task = self.realisation.semantics.tasks[bound.node.vertex]
        assert isinstance(task, Verify)
        self.logistics.release(x)
        (tokens,) = bound.inputs
        indices, values = self._rows.take([Key(s, x.step, tokens.container) for s in tokens.sources])
        self.host.verify(x, bound.node.vertex, indices, values)

    def record(self, x: Instance, done: dict[int, Done]) -> None:
        """All workers of `x` have reported."""
        self.logistics.record(x, {rank: d.rows for rank, d in done.items()})
        for container in self.realisation.bound[x.node].outputs:
            readers = self.realisation.host_readers[x.node, container]
            if readers:
                frames = [d.host_rows[container] for d in done.values() if container in d.host_rows]
                parts = [(to_indices(f.rows), from_array(f.values)) for f in frames]
                self._rows.put(Key(x.node, x.step, container), parts, readers)

    def record_rewards(self, verified: Verified) -> dict[str, Ranges]:
        """A host vertex is complete; returns the rows that it leaves."""
        x = verified.x
        run = self.realisation.problem.run
        assert run is not None
        dtype = np.float64 if run.precision == "float64" else np.float32
        (container,) = self.realisation.bound[x.node].outputs
        readers = self.realisation.readers(x.node, container)
        self._rows.put(
            Key(x.node, x.step, container), [(verified.indices, verified.rewards.astype(dtype))], readers
        )
        return {container: to_ranges(verified.indices.tolist())}

    def _rows_for(self, x: Instance, bound: BoundNode) -> dict[int, dict[str, RowsFrame]]:
        """Rows that go to workers with the command: prompts or pairs, and what host vertices have made."""
        found: dict[int, dict[str, RowsFrame]] = {rank: {} for rank in bound.ranks}
        if bound.node.kind != "Op":
            return found
        w = self.realisation.problem.workload
        placement = self.realisation.plan[bound.vertices[0]]

        def deal(
            container: str, indices: npt.NDArray[np.int64], values: npt.NDArray[np.generic], per: int
        ) -> None:
            """Rows by worker; `per` sequences stand behind one row."""
            everything: Ranges = ((0, w.sequences),)
            for rank, share in needs_of(everything, w, bound.ranks, placement.layout).items():
                mine = tuple((a // per, b // per) for a, b in share)
                mine = intersection(mine, to_ranges(indices.tolist()))
                at = np.searchsorted(indices, to_indices(mine))
                found[rank][container] = RowsFrame(mine, to_array(values[at]))

        for container in given(self.realisation, bound.node):
            if self.realisation.semantics.meaning[container] == "prompts":
                deal(container, np.arange(w.prompts), self.host.prompt_matrix(x.step), w.rollouts)
            else:
                deal(container, np.arange(w.sequences), self.host.pair_matrix(x.step), 1)
        for i in bound.inputs:
            if self.realisation.bound[i.sources[0]].on_host:
                indices, values = self._rows.take([Key(s, x.step, i.container) for s in i.sources])
                deal(i.container, indices, values, 1)
        return found
