"""Sample files as `rpeg-calib` reads them."""

import hashlib
import math
from collections.abc import Sequence
from statistics import median

from ir_schema.diagnostics import DiagnosticError, error
from ir_schema.envelope import canonical
from ir_schema.model import ModelSpec
from ir_schema.samples import Samples, SamplesError, decode_samples
from rpegc.stagefiles import read_bytes


def load_samples(name: str) -> Samples:
    """The sample file `name`, `-` being standard input.

    Raises UsageFailure E911 (unreadable) or DiagnosticError E951 (no sample file, or a time that is no
    positive number).
    """
    data = read_bytes(name)
    try:
        samples = decode_samples(data)
    except SamplesError as exc:
        raise DiagnosticError(
            [error("E951", f"`{name}`: {exc}", help="`rpeg-rt bench` writes sample files")]
        ) from exc
    for kind in ("products", "copies", "layers", "transfers", "operators"):
        for i, sample in enumerate(getattr(samples, kind)):
            if not sample.seconds or not all(0 < s < math.inf for s in sample.seconds):
                said = f"`{name}`: {kind}[{i}] has seconds {list(sample.seconds)}"
                raise DiagnosticError([error("E951", said, help="every repetition takes a positive time")])
    return samples


def typical(seconds: Sequence[float]) -> float:
    """What a sample's repetitions say: their median, which single interruptions do not move."""
    return median(seconds)


def model_id(spec: ModelSpec) -> str:
    """By what a calibrating model is known: twelve digits of the SHA-256 of its canonical bytes."""
    return hashlib.sha256(canonical(spec)).hexdigest()[:12]
