import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from passes.cost.lengths import decode_phases, microbatch_lengths, response_quantile
from tests.passes.cost.ppo import QUANTILES, WORKLOAD, replace

PLAIN = replace(WORKLOAD, length_quantiles=())


def test_quantiles_are_linear_between_breakpoints():
    assert [response_quantile(WORKLOAD, f) for f in (0.0, 0.25, 0.5, 0.675, 0.85, 1.0)] == pytest.approx(
        [0, 128, 256, 384, 512, 1024]
    )
    assert response_quantile(PLAIN, 0.1) == 1024


@given(st.integers(1, 200), st.floats(0, 0.5), st.floats(0.5, 1))
def test_microbatches_are_padded_to_their_longest(microbatches, low, high):
    lengths = microbatch_lengths(WORKLOAD, microbatches, low, high)
    assert len(lengths) == microbatches
    assert list(lengths) == sorted(lengths)
    assert lengths[-1] == response_quantile(WORKLOAD, high)
    middle = [
        response_quantile(WORKLOAD, low + (high - low) * (i + 0.5) / microbatches)
        for i in range(microbatches)
    ]
    assert all(x >= y - 1e-9 for x, y in zip(lengths, middle, strict=True))


def test_many_microbatches_approach_the_integral():
    # Mean of the piecewise-linear function, and of its square: sum of w (a^2 + ab + b^2) / 3.
    lengths = microbatch_lengths(WORKLOAD, 100_000)
    points = [(0.0, 0), *QUANTILES]
    mean = sum((f1 - f0) * (t0 + t1) / 2 for (f0, t0), (f1, t1) in pairwise(points))
    square = sum((f1 - f0) * (t0 * t0 + t0 * t1 + t1 * t1) / 3 for (f0, t0), (f1, t1) in pairwise(points))
    assert np.mean(lengths) == pytest.approx(mean, rel=1e-4)
    assert np.mean(lengths**2) == pytest.approx(square, rel=1e-4)


def test_decode_phases_run_the_sequences_still_alive():
    phases = decode_phases(WORKLOAD)
    assert [p.alive for p in phases] == [1.0, 0.5, pytest.approx(0.15)]
    assert [p.steps for p in phases] == [255, 256, 512]
    assert sum(p.steps for p in phases) == WORKLOAD.response_length - 1
    # A sequence's first token comes from the prefill; the mean is that of the workload.
    made = 1 + math.fsum(p.alive * p.steps for p in phases)
    assert made == pytest.approx(WORKLOAD.mean_response_length)
    (whole,) = decode_phases(PLAIN)
    assert (whole.alive, whole.steps) == (1.0, 1023)


def test_one_token_needs_no_decode_step():
    assert [p.steps for p in decode_phases(replace(PLAIN, response_length=1))] == [0]
