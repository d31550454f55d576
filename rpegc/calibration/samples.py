"""Sample files as `rpeg-calib` reads them."""

import hashlib
import math
from collections.abc import Iterable, Iterator, Sequence
from statistics import median

from ir_schema.base import Record
from ir_schema.diagnostics import DiagnosticError, error
from ir_schema.envelope import canonical
from ir_schema.model import ModelSpec
from ir_schema.samples import Samples, SamplesError, decode_samples
from rpegc.calibration.operators import impossible_case
from rpegc.stagefiles import read_bytes

_MOST = 2**60
_COUNTS: dict[str, tuple[str, ...]] = {
    "products": ("rows", "columns", "inner", "width", "workers"),
    "copies": ("nbytes", "workers"),
    "layers": ("hidden", "width", "sequences", "tokens", "workers"),
    "transfers": ("participants", "per_node", "nbytes"),
    "operators": ("tensor_bytes",),
}
"""Fields by part of a sample file that are counts, and as such at least 1."""


def load_samples(name: str) -> Samples:
    """The sample file `name`, `-` being standard input.

    Raises UsageFailure E911 (unreadable) or DiagnosticError E951 (no sample file, or it has a time, a count
    or an operator that cannot be).
    """
    data = read_bytes(name)
    try:
        samples = decode_samples(data)
    except SamplesError as exc:
        raise DiagnosticError(
            [error("E951", f"`{name}`: {exc}", help="`rpeg-rt bench` writes sample files")]
        ) from exc
    found = list(impossible(samples))
    if found:
        more = f", and {len(found) - 1} more of such kind" if len(found) > 1 else ""
        help = "times are positive, counts at least 1, and operators fit their workers"
        raise DiagnosticError([error("E951", f"`{name}`: {found[0]}{more}", help=help)])
    return samples


def impossible(samples: Samples) -> Iterator[str]:
    """What of the samples cannot be, whatever the machine: where it stands, and what it says."""
    e, memory = samples.environment, samples.memory
    yield from _counted("environment", e, ("processors", "threads"))
    if not e.workers or len(e.workers) != len(e.machines) or min(e.workers) < 1:
        yield f"environment has workers {list(e.workers)} on {len(e.machines)} machines"
    if memory is not None:
        yield from _counted("memory", memory, ("total_bytes",))
        if memory.idle_bytes < 0:
            yield f"memory has idle_bytes = {memory.idle_bytes}"
    for kind, fields in _COUNTS.items():
        for i, sample in enumerate(getattr(samples, kind)):
            yield from _counted(f"{kind}[{i}]", sample, fields)
            if not sample.seconds or not all(0 < s < math.inf for s in sample.seconds):
                yield f"{kind}[{i}] has seconds {list(sample.seconds)}"
    for i, t in enumerate(samples.transfers):
        pair = t.primitive == "point_to_point"
        if not t.per_node <= t.participants or t.participants < 2 or (pair and t.participants != 2):
            yield f"transfers[{i}] is a {t.primitive} of {t.participants} workers, {t.per_node} of a node"
    for i, o in enumerate(samples.operators):
        if o.process_bytes is not None and o.process_bytes < 1:
            yield f"operators[{i}] has process_bytes = {o.process_bytes}"
        for reason in impossible_case(o.case):
            yield f"operators[{i}]: {reason}"
        needed, there = o.case.placement.layout.gpus, o.case.placement.allocation.gpus
        if needed != there:
            yield f"operators[{i}]: a layout of {needed} workers on an allocation of {there}"


def _counted(where: str, record: Record, fields: Iterable[str]) -> Iterator[str]:
    for field in fields:
        if not 1 <= getattr(record, field) <= _MOST:
            yield f"{where} has {field} = {getattr(record, field)}"


def typical(seconds: Sequence[float]) -> float:
    """What a sample's repetitions say: their median, which single interruptions do not move."""
    return median(seconds)


def model_id(spec: ModelSpec) -> str:
    """By what a calibrating model is known: twelve digits of the SHA-256 of its canonical bytes."""
    return hashlib.sha256(canonical(spec)).hexdigest()[:12]
