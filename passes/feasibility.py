"""Saying which device is over its memory, and what fills it."""

from collections.abc import Mapping

from ir_schema.diagnostics import Diagnostic, error
from ir_schema.stages import DeviceMemory

GIB = 2**30


def memory_table(memory: DeviceMemory) -> list[str]:
    """One line per part of a device's peak, largest first."""
    parts = [(x, f"{model}: {part}") for model, held in memory.persistent.items() for part, x in held.items()]
    worst = memory.transient_worst
    if worst is not None:
        parts += [(x, f"{worst}: {part}, while it runs") for part, x in memory.transient[worst].items()]
    return [f"{x / GIB:8.2f} GiB  {what}" for x, what in sorted(parts, reverse=True) if x > 0]


def out_of_memory(devices: Mapping[str, DeviceMemory], limit_bytes: float) -> Diagnostic:
    """E420: the fullest device, its parts, and what would relieve it."""
    name, memory = max(devices.items(), key=lambda item: item[1].peak_bytes)
    return error(
        "E420",
        f"GPU {name} needs {memory.peak_bytes / GIB:.2f} GiB but has {limit_bytes / GIB:.2f} GiB",
        "plan" if memory.transient_worst is None else f"plan.{memory.transient_worst.partition('+')[0]}",
        help="spread its operators over more GPUs, raise pipeline or tensor parallelism, use more "
        "microbatches, or shorten the responses",
        notes=memory_table(memory),
    )
