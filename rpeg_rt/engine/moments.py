"""The state of a model's optimizer as slices of canonical tensors, each a view of what this rank holds.

Megatron shards it over replicas as ranges of flattened local parameters, whatever their shapes. A range of a
matrix is taken apart into whole rows and the parts of rows before and after, so that the state has the form
of weights and can be read under any layout.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from torch import Tensor

from rpeg_rt.engine.routing import intersection
from rpeg_rt.engine.sharding import ShardSpec, Slices


class Flat(NamedTuple):
    """Elements `start` onward of flattened local `parameter` of `shape`, in the one-dimensional `tensor`."""

    parameter: str
    shape: tuple[int, ...]
    start: int
    tensor: Tensor


def sliced(flat: Flat, specs: Sequence[ShardSpec]) -> Iterator[tuple[ShardSpec, Slices, Tensor]]:
    """The canonical slices in `flat`, each with the shard that it lies in and a view of its values.

    Rows that pad the vocabulary are in no shard, and in no slice.
    """
    for box, values in _boxes(flat):
        for spec in specs:
            if spec.parameter != flat.parameter:
                continue
            here = tuple(
                slice(spec.start, spec.start + n) if axis == spec.axis else slice(0, n)
                for axis, n in enumerate(spec.shape)
            )
            common = intersection(box, here)
            if common is not None:
                yield spec, _moved(common, here, spec.slices), values[_moved(common, box)]


def _boxes(flat: Flat) -> Iterator[tuple[Slices, Tensor]]:
    """The range as boxes of the local parameter."""
    at, end = flat.start, flat.start + flat.tensor.numel()
    if len(flat.shape) == 1:
        yield (slice(at, end),), flat.tensor
        return
    _, columns = flat.shape
    while at < end:
        row, column = divmod(at, columns)
        rows = (end - at) // columns if column == 0 else 0
        count = rows * columns or min(end - at, columns - column)
        box = (slice(row, row + max(1, rows)), slice(column, column + count // max(1, rows)))
        yield box, flat.tensor[at - flat.start : at - flat.start + count].view(max(1, rows), -1)
        at += count


def _moved(inner: Slices, outer: Slices, to: Slices | None = None) -> Slices:
    """`inner` as seen from the beginning of `outer`, or as it lies where `to` is in place of `outer`."""
    origins = [0] * len(outer) if to is None else [s.start for s in to]
    return tuple(
        slice(i.start - o.start + first, i.stop - o.start + first)
        for i, o, first in zip(inner, outer, origins, strict=True)
    )
