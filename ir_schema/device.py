"""The device space and allocations in it (semantics: D = racks x nodes x GPUs per node)."""

from collections.abc import Iterator

from ir_schema.base import Record, Tier

Coordinate = tuple[int, int, int]
DeviceSpace = tuple[int, int, int]


def size(space: DeviceSpace) -> int:
    """Number of GPUs |D|."""
    return space[0] * space[1] * space[2]


def device_name(coordinate: Coordinate) -> str:
    """`"rack.node.gpu"`, the spelling of a GPU in every file."""
    return f"{coordinate[0]}.{coordinate[1]}.{coordinate[2]}"


def all_devices(space: DeviceSpace) -> list[str]:
    """Names of all GPUs in flattened order (GPU fastest, rack slowest)."""
    return Allocation(origin=(0, 0, 0), extent=space).device_names()


class Allocation(Record, frozen=True, kw_only=True):
    """A contiguous hyper-rectangle D(o, delta) of the device space."""

    origin: Coordinate
    extent: Coordinate

    @property
    def gpus(self) -> int:
        """|D(o, delta)|."""
        return self.extent[0] * self.extent[1] * self.extent[2]

    def coordinates(self) -> Iterator[Coordinate]:
        """All GPUs of the allocation in flattened order (sorted)."""
        (r0, n0, g0), (dr, dn, dg) = self.origin, self.extent
        for r in range(r0, r0 + dr):
            for n in range(n0, n0 + dn):
                for g in range(g0, g0 + dg):
                    yield (r, n, g)

    def device_names(self) -> list[str]:
        """Names of all GPUs of the allocation in flattened order."""
        return [device_name(c) for c in self.coordinates()]

    def overlap(self, other: "Allocation") -> int:
        """Number of GPUs in both allocations."""
        n = 1
        for o1, e1, o2, e2 in zip(self.origin, self.extent, other.origin, other.extent, strict=True):
            n *= max(0, min(o1 + e1, o2 + e2) - max(o1, o2))
        return n

    def fits(self, space: DeviceSpace) -> bool:
        """Whether the allocation is non-empty and lies inside `space`."""
        return all(
            o >= 0 and e >= 1 and o + e <= s for o, e, s in zip(self.origin, self.extent, space, strict=True)
        )

    @property
    def tier(self) -> Tier:
        """The slowest network tier the allocation spans."""
        if self.extent[0] > 1:
            return "rack"
        return "inter" if self.extent[1] > 1 else "intra"


def joint_tier(a: Allocation, b: Allocation) -> Tier:
    """The slowest network tier spanned by the union of two allocations."""

    def spans(axis: int) -> bool:
        return a.extent[axis] > 1 or b.extent[axis] > 1 or a.origin[axis] != b.origin[axis]

    if spans(0):
        return "rack"
    return "inter" if spans(1) else "intra"
