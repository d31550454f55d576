"""A worker's pieces into a file, and any slice of a tensor out of the files of all workers.

A piece is called `KIND:TENSOR[a:b,c:d]`, where KIND is `weights.VERSION`, `master`, `exp_avg` or `exp_avg_sq`
and the slice is that of the canonical tensor.
"""

import hashlib
import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path

import torch
from torch import Tensor

from rpeg_rt.checkpoints.safetensors import Stored, header, read_header
from rpeg_rt.engine.engine import Shard
from rpeg_rt.engine.routing import intersection
from rpeg_rt.engine.sharding import Slices
from rpeg_rt.failure import FileError
from rpeg_rt.snapshots.manifest import Piece

_NAME = re.compile(r"(?P<kind>[^:]+):(?P<tensor>[^\[]+)\[(?P<slices>[\d:,]+)\]")


def weights_of(version: int) -> str:
    """The kind of the pieces of a version's weights."""
    return f"weights.{version}"


def write_pieces(path: Path, pieces: Iterable[tuple[str, Shard]]) -> Piece:
    """Write the pieces (kind and slice) into a new file that is on the disk when this returns. Raises
    OSError."""
    named = {_name(kind, shard): shard.tensor for kind, shard in pieces}
    types = {name: (str(t.dtype).removeprefix("torch."), tuple(t.shape)) for name, t in named.items()}
    digest, size = hashlib.sha256(), 0
    with path.open("xb") as file:

        def write(data: memoryview | bytes) -> None:
            nonlocal size
            digest.update(data)
            size += len(data)
            file.write(data)

        write(header(types))
        for tensor in named.values():
            values = tensor.detach().cpu().contiguous()
            write(values.view(-1).view(torch.uint8).numpy().data)
        file.flush()
        os.fsync(file.fileno())
    return Piece(bytes=size, sha256=digest.hexdigest())


def _name(kind: str, shard: Shard) -> str:
    return f"{kind}:{shard.name}[{','.join(f'{s.start}:{s.stop}' for s in shard.slices)}]"


class Pieces:
    """The tensors in the files of one model. Raises FileError where one is no file of pieces."""

    def __init__(self, files: Iterable[Path]) -> None:
        self._found: dict[tuple[str, str], list[tuple[Slices, Stored]]] = {}
        for path in files:
            for name, stored in read_header(path).items():
                match = _NAME.fullmatch(name)
                if match is None:
                    raise FileError(f"{path} is damaged: `{name}` is no piece of a tensor")
                bounds = [pair.split(":") for pair in match["slices"].split(",")]
                slices = tuple(slice(int(a), int(b)) for a, b in bounds)
                self._found.setdefault((match["kind"], match["tensor"]), []).append((slices, stored))

    def read(self, kind: str, name: str, slices: Slices) -> Tensor:
        """The values of a slice. Raises FileError where pieces do not make it up."""
        found: Tensor | None = None
        left = torch.ones([s.stop - s.start for s in slices], dtype=torch.bool)
        for theirs, stored in self._found.get((kind, name), ()):
            common = intersection(theirs, slices)
            if common is None:
                continue
            to = _within(common, slices)
            if not left[to].any():
                continue
            values = torch.from_numpy(stored.mapped()[_within(common, theirs)].copy())
            values = values.view(torch.bfloat16) if stored.dtype == "BF16" else values
            if found is None:
                found = torch.empty(left.shape, dtype=values.dtype)
            found[to] = values
            left[to] = False
        if found is None or bool(left.any()):
            raise FileError(f"the snapshot has not all of `{kind}` of tensor `{name}`")
        return found

    def canonical(self, kind: str) -> Callable[[str, tuple[int, ...]], "Whole"]:
        """The tensors of a kind, as an engine asks for them."""
        return lambda name, shape: Whole(self, kind, name, shape)


class Whole:
    """A canonical tensor of a snapshot, of which the slices are read that are asked for."""

    def __init__(self, pieces: Pieces, kind: str, name: str, shape: tuple[int, ...]) -> None:
        self._pieces, self._kind, self._name, self.shape = pieces, kind, name, shape

    def __getitem__(self, slices: Slices) -> Tensor:
        """The values of a slice. Raises FileError where the snapshot has not all of it."""
        return self._pieces.read(self._kind, self._name, slices)


def _within(inner: Slices, outer: Slices) -> Slices:
    return tuple(slice(i.start - o.start, i.stop - o.start) for i, o in zip(inner, outer, strict=True))
