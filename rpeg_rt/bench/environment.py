"""Where samples are taken, and with what: as the first node says, without torch."""

import os
import platform
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from ir_schema.samples import Environment
from rpeg_rt.bench.crew import Workers
from rpeg_rt.launch import Launch

THREADS = 1
"""With which a worker computes."""


def environment(workers: Workers, launch: Launch | None, load: float | None) -> Environment:
    """Of samples that are taken from now on; `load` is what `running` told before workers were started."""
    accelerator = _accelerator()
    return Environment(
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        machines=workers.machines,
        processor=_field(Path("/proc/cpuinfo"), "model name") or platform.processor() or platform.machine(),
        processors=processors(),
        accelerator=accelerator,
        backend="gloo" if accelerator is None else "nccl",
        launcher="" if launch is None else launch.launcher,
        workers=tuple(len(node) for node in workers.nodes),
        threads=THREADS,
        load=load,
        software=workers.software,
    )


def running() -> float | None:
    """How many processes have been running in the last minute; None where the system does not say."""
    with suppress(OSError, AttributeError):
        return round(os.getloadavg()[0], 2)
    return None


def processors() -> int:
    """Processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _accelerator() -> str | None:
    """What the first NVIDIA GPU is called; None without one."""
    for information in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")):
        if (name := _field(information, "Model")) is not None:
            return name
    return None


def _field(path: Path, name: str) -> str | None:
    """The first value of `name` in a file of lines `name : value`."""
    with suppress(OSError):
        for line in path.read_text().splitlines():
            key, colon, value = line.partition(":")
            if colon and key.strip() == name:
                return value.strip()
    return None
