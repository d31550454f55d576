"""Assembly of per-device peaks: peak(d) = sum of persistent parts + the largest transient (semantics: Cost).

GPUs that host the same vertices have the same peak, so everything is computed once per region: the
device space cut along the borders of all allocations.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import pairwise

from ir_schema.device import Allocation, DeviceSpace
from ir_schema.problem import Placement
from ir_schema.stages import DeviceMemory


def regions(space: DeviceSpace, plan: Mapping[str, Placement]) -> list[tuple[Allocation, tuple[str, ...]]]:
    """Boxes that cover the device space, each with the vertices (in plan order) placed on all of it."""
    names = tuple(plan)
    slabs = [list(_slabs(space[axis], axis, plan.values())) for axis in range(3)]
    known: dict[int, tuple[str, ...]] = {}
    boxes = []
    for r0, r1, on_racks in slabs[0]:
        for n0, n1, on_nodes in slabs[1]:
            for g0, g1, on_gpus in slabs[2]:
                mask = on_racks & on_nodes & on_gpus
                users = known.get(mask)
                if users is None:
                    users = known[mask] = tuple(v for i, v in enumerate(names) if mask >> i & 1)
                box = Allocation(origin=(r0, n0, g0), extent=(r1 - r0, n1 - n0, g1 - g0))
                boxes.append((box, users))
    return boxes


def _slabs(length: int, axis: int, placements: Iterable[Placement]) -> Iterator[tuple[int, int, int]]:
    """The axis cut along all borders: each stretch with the set (a bit mask) of placements across it."""
    spans = [(p.origin[axis], p.origin[axis] + p.extent[axis]) for p in placements]
    borders = {0, length} | {b for span in spans for b in span if 0 <= b <= length}
    for low, high in pairwise(sorted(borders)):
        yield low, high, sum(1 << i for i, (start, stop) in enumerate(spans) if start <= low < stop)


def per_region(
    space: DeviceSpace, plan: Mapping[str, Placement], describe: Callable[[tuple[str, ...]], DeviceMemory]
) -> list[tuple[Allocation, DeviceMemory]]:
    """Peaks by region; `describe` is asked once for each set of vertices that meet on a GPU."""
    known: dict[tuple[str, ...], DeviceMemory] = {}
    peaks = []
    for box, users in regions(space, plan):
        if users not in known:
            known[users] = describe(users)
        peaks.append((box, known[users]))
    return peaks


def device_memory(
    persistent: Mapping[str, Mapping[str, float]], transient: Mapping[str, Mapping[str, float]]
) -> DeviceMemory:
    """Peak of a device from persistent bytes by (model, part) and transient bytes by (operator, part).

    Ties between transients go to the operator that comes first.
    """
    held = _total(x for parts in persistent.values() for x in parts.values())
    worst, most = None, 0.0
    for name, parts in transient.items():
        total = _total(parts.values())
        if worst is None or total > most:
            worst, most = name, total
    return DeviceMemory(
        peak_bytes=round(held + most),
        persistent_bytes=round(held),
        transient_bytes=round(most),
        transient_worst=worst,
        persistent=_rounded(persistent),
        transient=_rounded(transient),
    )


def _total(values: Iterable[float]) -> float:
    """The sum, added one by one: what `sum` does depends on the version of Python."""
    total = 0.0
    for x in values:
        total += x
    return total


def _rounded(parts: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, int]]:
    return {name: {k: round(x) for k, x in inner.items()} for name, inner in parts.items()}


def by_device(boxes: Iterable[tuple[Allocation, DeviceMemory]]) -> dict[str, DeviceMemory]:
    """Peaks by device name."""
    return {name: memory for box, memory in boxes for name in box.device_names()}
