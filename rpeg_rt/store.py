"""What a worker keeps between commands: rows of containers, freed when their last reader has taken them."""

from dataclasses import dataclass

import torch
from torch import Tensor

from rpeg_rt.rows import Key, Ranges, to_indices, to_ranges


@dataclass(frozen=True)
class Rows:
    """Rows `values` [n, ...] of a container, with global sequence indices `indices` int64 [n] ascending."""

    indices: Tensor
    values: Tensor

    @property
    def ranges(self) -> Ranges:
        """The indices as ranges."""
        return to_ranges(self.indices.tolist())

    def select(self, rows: Ranges) -> Tensor:
        """Values of `rows`, which must all be here."""
        wanted = torch.from_numpy(to_indices(rows))
        at = torch.searchsorted(self.indices, wanted)
        if len(wanted) and (int(at[-1]) >= len(self.indices) or not torch.equal(self.indices[at], wanted)):
            raise KeyError(f"sequences {rows} are not all among {self.ranges}")
        return self.values[at]


def gather(parts: list[Rows]) -> Rows:
    """The rows of all parts in ascending order of index, each once."""
    indices = torch.cat([p.indices for p in parts])
    values = torch.cat([p.values for p in parts])
    order = torch.argsort(indices, stable=True)
    indices = indices[order]
    first = torch.ones(len(indices), dtype=torch.bool)
    first[1:] = indices[1:] != indices[:-1]
    return Rows(indices[first], values[order][first])


class Store:
    """Rows by key, each with the number of nodes that have still to read it."""

    def __init__(self) -> None:
        self._rows: dict[Key, Rows] = {}
        self._readers: dict[Key, int] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def put(self, key: Key, rows: Rows, readers: int) -> None:
        """Keep `rows` until they have been taken `readers` times (0: not at all)."""
        if readers:
            self._rows[key], self._readers[key] = rows, readers

    def take(self, key: Key) -> Rows | None:
        """The rows under `key` for one reader; None where this worker holds none of them."""
        if key not in self._rows:
            return None
        self._readers[key] -= 1
        if self._readers[key]:
            return self._rows[key]
        del self._readers[key]
        return self._rows.pop(key)
