"""Fits find the constants from which samples were made."""

import numpy as np
import pytest

from calib.fits import products, transfer
from calib.fitting import fit


def test_an_outlier_does_not_move_a_fit():
    x = np.arange(1.0, 40.0)
    y = 2.0 + 3.0 * x
    y[7] *= 30
    result = fit(lambda p: p[0] + p[1] * x, y, (1.0, 1.0))
    assert result.values == pytest.approx((2.0, 3.0), rel=0.01)
    assert result.n == 39


def test_a_parameter_that_is_not_there_vanishes():
    x = np.arange(1.0, 40.0)
    alpha, beta = fit(lambda p: p[0] + p[1] * x, 3.0 * x, (1.0, 1.0)).values
    assert beta == pytest.approx(3.0, rel=0.01)
    assert 0 < alpha < 0.05


def test_too_few_or_impossible_measurements():
    with pytest.raises(ValueError, match="1 positive measurements wanted for 2"):
        fit(lambda p: p, np.array([1.0]), (1.0, 1.0))
    with pytest.raises(ValueError, match="positive"):
        fit(lambda p: p[:1] * np.ones(2), np.array([1.0, -1.0]), (1.0,))


def test_measurements_out_of_all_proportion_have_no_fit():
    x = np.array([1.0, 2.0])
    with pytest.raises(ValueError, match="no finite parameters"):
        fit(lambda p: p[0] * x, np.array([1e-323, 1e300]), (1.0,))
    with pytest.raises(ValueError, match="no finite parameters"):
        fit(lambda p: p[0] * x, x, (-1.0,))


def test_products_of_a_machine_that_is_known():
    shapes = np.array([(m, n, k) for m in (1, 16, 128, 1024, 8192) for n in (256, 1024, 8192)
                       for k in (256, 2048, 8192)], float)  # fmt: skip
    m, n, k = shapes.T
    startup, rate, gamma_m, gamma_k, bandwidth = 4e-6, 500e12, 90.0, 150.0, 2e12
    seconds = []
    for rows, columns, inner in shapes:
        narrow = min(columns, inner)
        speed = rate * rows / (rows + gamma_m) * narrow / (narrow + gamma_k)
        traffic = 2 * (rows * inner + inner * columns + rows * columns) / bandwidth
        seconds.append(startup + max(2 * rows * columns * inner / speed, traffic))
    found = products(m, n, k, 2, np.array(seconds))
    assert found.residual < 1e-3
    assert found.values == pytest.approx(
        {"product_flops": rate, "gamma_M": gamma_m, "gamma_K": gamma_k, "memory_bandwidth": bandwidth,
         "startup_seconds": startup}, rel=0.01,
    )  # fmt: skip


def test_a_transfer_has_the_bandwidth_of_its_largest_and_a_latency():
    p = np.repeat([2.0, 4.0, 8.0], 6)
    moved = np.tile(10.0 ** np.arange(3, 9), 3)
    seconds = (p - 1) * 3e-6 + moved / 200e9
    found = transfer(p, p - 1, moved, seconds)
    assert found.values["alpha"] == pytest.approx(3e-6, rel=0.02)
    assert 1 / found.values["beta"] == pytest.approx(200e9, rel=0.02)
    assert found.residual < 0.01
