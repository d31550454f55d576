"""Repetitions that begin together on several workers."""

import math
import time
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.distributed as dist

from rpeg_rt.bench.jobs import Effort
from rpeg_rt.engine.shim import device

SPAN_SECONDS = 2e-3
"""A repetition of something shorter consists of several calls: clocks and barriers must not be seen."""


class Times(NamedTuple):
    """Seconds of a call on this worker, by repetition, and processor seconds of its process meanwhile."""

    seconds: tuple[float, ...]
    busy_seconds: tuple[float, ...]


def repeated(call: Callable[[], object], group: dist.ProcessGroup, effort: Effort) -> Times:
    """Times of `call` on this worker of `group`. Collective: all of them make the same number of calls."""
    call()  # makes connections and buffers
    first = _timed(call, group, 1)
    once = _slowest(first[0], group)
    calls = math.ceil(SPAN_SECONDS / max(once, 1e-9))
    if calls > 1:
        # A single call of something short is mostly the waking up of its workers.
        first = _timed(call, group, calls)
        once = _slowest(first[0], group)
        calls = math.ceil(SPAN_SECONDS / max(once, 1e-9))
    count = max(effort.least, min(effort.most, round(effort.seconds / (once * calls))))
    times = [first, *(_timed(call, group, calls) for _ in range(count - 1))]
    return Times(tuple(t[0] for t in times), tuple(t[1] for t in times))


def synchronize() -> None:
    """Wait until the GPU, if there is one, has done what it was told."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _timed(call: Callable[[], object], group: dist.ProcessGroup, calls: int) -> tuple[float, float]:
    synchronize()
    dist.barrier(group)
    busy, begun = time.process_time(), time.perf_counter()
    for _ in range(calls):
        call()
    synchronize()
    return (time.perf_counter() - begun) / calls, (time.process_time() - busy) / calls


def _slowest(seconds: float, group: dist.ProcessGroup) -> float:
    value = torch.tensor([seconds], dtype=torch.float64, device=device())
    dist.all_reduce(value, op=dist.ReduceOp.MAX, group=group)
    return float(value)
