"""What no machine measures: sweeps in which size does not matter, values that no machine has, by themselves
or together, and repetitions that have little in common."""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from calib.fitting import Array
from calib.hardware import TRANSFERS
from ir_schema.base import TIERS
from ir_schema.diagnostics import Diagnostic
from ir_schema.hardware import AlphaBeta, Hardware
from ir_schema.samples import Samples
from rpegc.calibration.draft import BETWEEN, Change, percent, warning
from rpegc.calibration.samples import typical
from rpegc.table import duration

_WIDE, _RISE = 64.0, 1.2
"""In a sweep over so wide a range of sizes, the largest third takes at least so many times the smallest."""
_UNSTEADY = 0.5
"""Spread of repetitions (quartiles) over their median, in the median sample, from which on it is told."""
_FEWEST = 3
"""Repetitions of which a median says something."""
_FASTER, _SLOWER = 1.5, 10.0
"""Whole layers over products alone, and products over layers: more cannot be."""
_ALIKE = 4.0
"""Bandwidths of two collectives over the same links differ by less, even if a switch reduces."""
_UNFUSED = 10.0
"""Traffic of norms and sums over that of copies, and on processors the other way round."""
_UNITS = "look at units and columns: times are in seconds, sizes in bytes"

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
    """W942 where times have nothing to do with sizes: neither the largest third nor the largest takes longer
    than the smallest third."""
    if len(size) < 3 or size.max() < _WIDE * size.min():
        return
    third = -(-len(size) // 3)
    ordered = seconds[np.argsort(size)]
    small = float(np.median(ordered[:third]))
    large = max(float(np.median(ordered[-third:])), float(np.median(seconds[size == size.max()])))
    if large < _RISE * small:
        text = (
            f"{what} do not take longer where they are larger: {duration(large)} where largest, "
            f"{duration(small)} where smallest"
        )
        yield warning("W942", text, "something else took that time: look at units and columns, measure again")


def contradictions(hardware: Hardware, changes: Iterable[Change]) -> Iterator[Diagnostic]:
    """W942 for every measured value that no machine has, and for two that no machine has together."""
    fitted = {}
    for change in changes:
        if isinstance(change.after, AlphaBeta) and change.residual is None:
            continue  # as another tier, of which it is said
        fitted[change.parameter] = change.after
        if text := implausible(change.parameter, change.after):
            yield warning("W942", text, _UNITS)
    if {"peak_flops", "product_flops"} <= fitted.keys():
        whole, products = hardware.peak_flops, hardware.product_flops
        if not products / _SLOWER <= whole <= products * _FASTER:
            text = f"whole layers run at {whole:.3g} FLOP/s and their products alone at {products:.3g}"
            yield warning("W942", text, _UNITS)
    for tier in TIERS:
        reduced = fitted.get(f"collective.{tier}")
        for field in TRANSFERS:
            link = fitted.get(f"{field}.{tier}")
            if not isinstance(link, AlphaBeta):
                continue
            if 1 / link.beta > hardware.memory_bandwidth:
                text = (
                    f"`{field}.{tier}` carries {1 / link.beta:.3g} bytes/s, and memory only "
                    f"{hardware.memory_bandwidth:.3g}"
                )
                yield warning("W942", text, _UNITS)
            if field not in ("all_gather", "reduce_scatter") or not isinstance(reduced, AlphaBeta):
                continue
            if not 1 / _ALIKE <= link.beta / reduced.beta <= _ALIKE:
                text = (
                    f"`{field}.{tier}` carries {1 / link.beta:.3g} bytes/s and `collective.{tier}` "
                    f"{1 / reduced.beta:.3g} over the same links"
                )
                help = "bytes are those of the gathered buffer, or of the one that is scattered, in bytes"
                yield warning("W942", text, help)


def disturbances(samples: Samples, hardware: Hardware) -> Iterator[Diagnostic]:
    """W942 for processes that are smaller than what they hold, and norms that memory cannot feed; W944 where
    repetitions differ too much, or are too few to tell."""
    small = [o for o in samples.operators if o.process_bytes is not None and o.process_bytes < o.tensor_bytes]
    if small:
        text = (
            f"{len(small)} of {len(samples.operators)} operators occupied less memory than their tensors: "
            f"{small[0].process_bytes} bytes, of which {small[0].tensor_bytes} in tensors"
        )
        yield warning("W942", text, _UNITS)
    for rest in samples.layers[:1] if samples.copies else ():
        moved = BETWEEN * rest.width * rest.hidden * rest.sequences * rest.tokens
        rate = moved / typical(rest.seconds)
        least = _UNFUSED if samples.environment.accelerator is None else 10 * _UNFUSED
        if not 1 / least <= rate / hardware.memory_bandwidth <= _UNFUSED:
            text = (
                f"norms and sums of a layer move {rate:.3g} bytes/s, and copies "
                f"{hardware.memory_bandwidth:.3g}"
            )
            yield warning("W942", text, _UNITS)
    for kind in ("products", "copies", "layers", "transfers", "operators"):
        found = getattr(samples, kind)
        if not found:
            continue
        spread = float(np.median([_spread(s.seconds) for s in found]))
        if spread > _UNSTEADY:
            text = f"half of the {len(found)} {kind} spread by more than {percent(spread)} of their median"
            yield warning("W944", text, "stop what else runs on the machine, and measure again")
        repetitions = int(np.median([len(s.seconds) for s in found]))
        if repetitions < _FEWEST:
            text = f"half of the {len(found)} {kind} have {repetitions} repetitions or fewer"
            yield warning("W944", text, f"{_FEWEST} or more tell a disturbance from the machine")


def _spread(seconds: Sequence[float]) -> float:
    """Distance of the quartiles over the median."""
    low, middle, high = np.quantile(seconds, (0.25, 0.5, 0.75))
    return float((high - low) / middle)
