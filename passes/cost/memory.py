"""Assembly of per-device peaks: peak(d) = sum of persistent parts + the largest transient (`03-cost`).

GPUs that host the same vertices have the same peak, so everything is computed once per region: the
device space cut along the borders of all allocations.
"""

from collections.abc import Iterable, Mapping
from itertools import pairwise

from ir_schema.device import Allocation, DeviceSpace
from ir_schema.problem import Placement
from ir_schema.stages import DeviceMemory


def regions(space: DeviceSpace, plan: Mapping[str, Placement]) -> list[tuple[Allocation, tuple[str, ...]]]:
    """Boxes that cover the device space, each with the vertices (in plan order) placed on all of it."""
    cuts = []
    for axis in range(3):
        borders = {0, space[axis]}
        for p in plan.values():
            borders |= {p.origin[axis], p.origin[axis] + p.extent[axis]}
        ordered = sorted(b for b in borders if 0 <= b <= space[axis])
        cuts.append(list(pairwise(ordered)))
    boxes = []
    for r0, r1 in cuts[0]:
        for n0, n1 in cuts[1]:
            for g0, g1 in cuts[2]:
                box = Allocation(origin=(r0, n0, g0), extent=(r1 - r0, n1 - n0, g1 - g0))
                users = tuple(v for v, p in plan.items() if p.allocation.overlap(box))
                boxes.append((box, users))
    return boxes


def device_memory(
    persistent: Mapping[str, Mapping[str, float]], transient: Mapping[str, Mapping[str, float]]
) -> DeviceMemory:
    """Peak of a device from persistent bytes by (model, part) and transient bytes by (operator, part).

    Ties between transients go to the operator that comes first.
    """
    held = sum(x for parts in persistent.values() for x in parts.values())
    worst, most = None, 0.0
    for name, parts in transient.items():
        total = sum(parts.values())
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


def _rounded(parts: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, int]]:
    return {name: {k: round(x) for k, x in inner.items()} for name, inner in parts.items()}


def by_device(boxes: Iterable[tuple[Allocation, DeviceMemory]]) -> dict[str, DeviceMemory]:
    """Peaks by device name."""
    return {name: memory for box, memory in boxes for name in box.device_names()}
