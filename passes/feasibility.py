"""Saying which device is over its memory, and what fills it."""

from collections.abc import Mapping

from ir_schema.diagnostics import Diagnostic, error
from ir_schema.stages import DeviceMemory

GIB, MIB = 2**30, 2**20


def amount(nbytes: float) -> str:
    """`12.30 GiB`, or MiB where that would say little."""
    return f"{nbytes / GIB:.2f} GiB" if nbytes >= GIB / 10 else f"{nbytes / MIB:.2f} MiB"


def memory_table(memory: DeviceMemory) -> list[str]:
    """One line per part of a device's peak (of 0.1 % at least), largest first, then what the other operators
    need there."""
    parts = [(x, f"{model}: {part}") for model, held in memory.persistent.items() for part, x in held.items()]
    worst = memory.transient_worst
    if worst is not None:
        parts += [(x, f"{worst}: {part}, while it runs") for part, x in memory.transient[worst].items()]
    lines = [
        f"{amount(x):>12}  {what}" for x, what in sorted(parts, reverse=True) if 1000 * x >= memory.peak_bytes
    ]
    others = [(sum(held.values()), name) for name, held in memory.transient.items() if name != worst]
    lines += [f"({amount(x):>11}  {name}, at another time)" for x, name in sorted(others, reverse=True)]
    return lines


def fullest(devices: Mapping[str, DeviceMemory]) -> tuple[str, DeviceMemory]:
    """The first GPU with the largest peak."""
    return max(devices.items(), key=lambda item: item[1].peak_bytes)


def out_of_memory(devices: Mapping[str, DeviceMemory], limit_bytes: float) -> Diagnostic:
    """E420: the fullest device, its parts, and what would relieve it."""
    name, memory = fullest(devices)
    return error(
        "E420",
        f"GPU {name} needs {amount(memory.peak_bytes)} but has {amount(limit_bytes)}",
        "plan" if memory.transient_worst is None else f"plan.{memory.transient_worst.partition('+')[0]}",
        help="spread its operators over more GPUs, raise pipeline or tensor parallelism, use more "
        "microbatches, or shorten the responses",
        notes=memory_table(memory),
    )
