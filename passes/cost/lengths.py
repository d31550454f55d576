"""Lengths of the sequences of one step and of its microbatches (`docs/cost-megatron.md`).

The quantile function of the response lengths is piecewise linear through (0, 0) and the breakpoints; it is
the constant L_r without breakpoints. Microbatches are made of sequences sorted by length and padded to the
longest of each.
"""

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ir_schema.problem import Workload

Lengths = NDArray[np.float64]


class DecodePhase(NamedTuple):
    """Decode steps between two breakpoints: `alive` is the fraction of sequences that take part in `steps`
    one-token steps, whose mean response position is `position`; `first` and `last` bound the position."""

    alive: float
    steps: int
    first: int
    last: int

    @property
    def position(self) -> float:
        """Mean number of response tokens that are already there."""
        return (self.first + self.last) / 2


def response_quantile(workload: Workload, fraction: float) -> float:
    """Q(f): the length that a fraction f of the responses does not exceed."""
    if not workload.length_quantiles:
        return float(workload.response_length)
    f0, t0 = 0.0, 0
    for f1, t1 in workload.length_quantiles:
        if fraction <= f1:
            return t0 + (t1 - t0) * max(0.0, fraction - f0) / (f1 - f0)
        f0, t0 = f1, t1
    return float(t0)


@lru_cache(maxsize=4096)
def microbatch_lengths(workload: Workload, microbatches: int, low: float = 0.0, high: float = 1.0) -> Lengths:
    """Padded response lengths of `microbatches` equal shares of the sequences between quantiles `low` and
    `high`, shortest first. The array is shared: do not write to it."""
    if not workload.length_quantiles:
        return np.array([float(workload.response_length)])
    step = (high - low) / microbatches
    lengths = [response_quantile(workload, low + step * i) for i in range(1, microbatches)]
    return np.array([*lengths, response_quantile(workload, high)])


@lru_cache(maxsize=64)
def decode_phases(workload: Workload) -> tuple[DecodePhase, ...]:
    """The decode phases of a generation, one without breakpoints. The first token comes from the prefill."""
    points = workload.length_quantiles or ((1.0, workload.response_length),)
    phases, f0, t0 = [], 0.0, 0
    for f1, t1 in points:
        start = max(t0, 1)
        phases.append(DecodePhase(1.0 - f0, t1 - start, start, t1))
        f0, t0 = f1, t1
    return tuple(phases)
