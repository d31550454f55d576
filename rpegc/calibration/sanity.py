"""What no machine measures: sweeps in which size does not matter, and values that no machine has."""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from calib.fitting import Array
from ir_schema.diagnostics import Diagnostic
from ir_schema.hardware import AlphaBeta, Hardware
from ir_schema.samples import Samples
from rpegc.calibration.draft import Change, warning

_WIDE, _RISE = 64.0, 1.2
"""In a sweep over so wide a range of sizes, the largest third takes at least so many times the smallest."""
_UNSTEADY = 0.5
"""Spread of repetitions (quartiles) over their median, in the median sample, from which on it is told."""
_FASTER = 1.5
"""Whole layers over products alone: more cannot be."""

PLAUSIBLE: dict[str, tuple[float, float]] = {
    "product_flops": (1e9, 1e16),
    "peak_flops": (1e9, 1e16),
    "memory_bandwidth": (5e8, 1e14),
    "gamma_M": (0.0, 1e5),
    "gamma_K": (0.0, 1e6),
    "startup_seconds": (0.0, 1e-3),
    "nongemm_seconds": (1e-8, 1.0),
    "contention": (0.0, 4.0),
    "message_work": (0.0, 3.0),
    "score_bytes": (0.0, 1e4),
    "wakeup_seconds": (0.0, 5e-2),
    "dispatch.decoding": (0.0, 2e-3),
    "dispatch.forward": (0.0, 2e-3),
    "dispatch.training": (0.0, 2e-3),
    "memory_bytes": (1e8, 1e13),
    "runtime_reserve": (0.0, 0.9),
}
"""Between which values a parameter of a GPU or of a worker on processors lies, whatever the machine."""
_LATENCY, _PER_BYTE = (1e-7, 5e-2), (1e-13, 1e-6)


def implausible(parameter: str, value: float | AlphaBeta) -> str | None:
    """What is wrong with a measured value, if no machine has it."""
    if isinstance(value, AlphaBeta):
        if value.alpha < _LATENCY[0]:
            return f"`{parameter}` has no latency that is positive"
        if value.alpha > _LATENCY[1]:
            return f"`{parameter}` has a latency of {value.alpha:.3g} s"
        if not _PER_BYTE[0] <= value.beta <= _PER_BYTE[1]:
            return f"`{parameter}` carries {1 / value.beta:.3g} bytes/s"
        return None
    least, most = PLAUSIBLE.get(parameter, (0.0, float("inf")))
    if not least <= value <= most:
        return f"`{parameter}` is {value:.4g}: it lies between {least:g} and {most:g} in SI units and bytes"
    return None


def sweep_faults(what: str, size: Array, seconds: Array) -> Iterator[Diagnostic]:
    """W942 where times have nothing to do with sizes."""
    if len(size) < 3 or size.max() < _WIDE * size.min():
        return
    third = -(-len(size) // 3)
    ordered = seconds[np.argsort(size)]
    if np.median(ordered[-third:]) < _RISE * np.median(ordered[:third]):
        yield warning("W942", f"{what} do not take longer where they are larger")


def faults(samples: Samples, hardware: Hardware, changes: Iterable[Change]) -> Iterator[Diagnostic]:
    """W942 for every measured value that no machine has, W944 where repetitions differ too much."""
    fitted = set()
    for change in changes:
        fitted.add(change.parameter)
        if text := implausible(change.parameter, change.after):
            yield warning("W942", text)
    if {"peak_flops", "product_flops"} <= fitted and hardware.peak_flops > _FASTER * hardware.product_flops:
        yield warning(
            "W942",
            f"whole layers run at {hardware.peak_flops:.3g} FLOP/s and their products alone at "
            f"{hardware.product_flops:.3g}",
        )
    for kind in ("products", "transfers", "operators"):
        spreads = [_spread(s.seconds) for s in getattr(samples, kind)]
        if spreads and float(np.median(spreads)) > _UNSTEADY:
            share = 100 * float(np.median(spreads))
            text = f"half of the {len(spreads)} {kind} spread by more than {share:.0f} % of their median"
            yield warning("W944", text)


def _spread(seconds: Sequence[float]) -> float:
    """Distance of the quartiles over the median."""
    low, middle, high = np.quantile(seconds, (0.25, 0.5, 0.75))
    return float((high - low) / middle)
