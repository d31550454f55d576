"""How much memory something holds: of tensors, and as a process."""

import ctypes
import gc
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch.autograd import profiler

_RESET_PEAK = "5"
_MARK = "rpeg-rt bench: watched"


def peak_tensor_bytes(prepare: Callable[[], Callable[[], object]]) -> int:
    """The most bytes of live tensors at once during the second call of what `prepare` makes, with all that
    `prepare` and the first call left behind, above what was there before.

    On CPU they are what the allocator tells the profiler, temporaries inside kernels included. It does not
    tell what threads of communication return: that is noticed when an address is given out again.
    """
    gc.collect()
    if torch.cuda.is_available():
        before = torch.cuda.memory_allocated()
        call = prepare()
        call()
        gc.collect()
        torch.cuda.reset_peak_memory_stats()
        call()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    with profiler.profile(use_device=None, profile_memory=True) as profile:
        call = prepare()
        call()
        gc.collect()  # What preparation has left behind in circles is not the operator's.
        with profiler.record_function(_MARK):
            call()
    changes, watched = [], None
    for event in _events(profile.kineto_results.experimental_event_tree()):
        if event.name == "[memory]":
            told = event.extra_fields
            changes.append((event.start_time_ns, told.ptr, told.alloc_size))
        elif event.name == _MARK:
            watched = (event.start_time_ns, event.end_time_ns)
    assert watched is not None, "the profiler has lost the mark"
    return highest(changes, *watched)


def _events(roots: Iterable[Any]) -> Iterator[Any]:
    """All events of the profiler's trees, in no order."""
    left = list(roots)
    while left:
        event = left.pop()
        yield event
        left += event.children


def highest(changes: Iterable[tuple[int, int, int]], begin: int, end: int) -> int:
    """The most bytes held at once at any time from `begin` to `end`, of (time, address, bytes): taken,
    or negative when returned. What was there before is not counted when it is returned."""
    held: dict[int, int] = {}
    level = most = 0
    for at, address, size in sorted(changes, key=lambda c: c[0]):
        if at > end:
            break
        level -= held.pop(address, 0)
        if size > 0:
            held[address] = size
            level += size
        most = level if at < begin else max(most, level)
    return most


def forget_peak() -> None:
    """Give unused memory back, and let `process_bytes` start anew."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text(_RESET_PEAK)


def process_bytes() -> int | None:
    """What is occupied of this worker's GPU now or, on CPU, the most that this process has occupied of memory
    since `forget_peak`; None where the system does not say."""
    if torch.cuda.is_available():
        free, total = torch.cuda.mem_get_info()
        return total - free
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return None


def total_bytes() -> int:
    """All memory of this worker's GPU or, on CPU, of its machine."""
    if torch.cuda.is_available():
        return torch.cuda.mem_get_info()[1]
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
