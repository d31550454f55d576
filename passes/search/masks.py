"""Sets of GPUs as bit masks over the flattened device space."""

from ir_schema.device import Allocation, DeviceSpace


def gpu_mask(space: DeviceSpace, allocation: Allocation) -> int:
    """The allocation's GPUs as a bit mask over the flattened device space."""
    (_, nodes, gpus), row = space, (1 << allocation.extent[2]) - 1
    mask = 0
    for r in range(allocation.origin[0], allocation.origin[0] + allocation.extent[0]):
        for n in range(allocation.origin[1], allocation.origin[1] + allocation.extent[1]):
            mask |= row << ((r * nodes + n) * gpus + allocation.origin[2])
    return mask
