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
    result = fit(lambda p: p[0] + p[1] * x, 3.0 * x, (1.0, 1.0))
    alpha, beta = result.values
    assert beta == pytest.approx(3.0, rel=0.01)
    assert 0 < alpha < 0.05
    assert result.untold == ()  # 1 would be too much


def test_parameters_that_stand_for_each_other_are_not_told():
    x = np.arange(1.0, 40.0)
    result = fit(lambda p: p[0] * p[1] * x + p[2], 3.0 * x + 5.0, (1.0, 1.0, 1.0))
    assert result.residual < 1e-3
    assert result.untold == (0, 1)


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


PLANTED = {
    "product_flops": 500e12, "gamma_M": 90.0, "gamma_K": 150.0, "memory_bandwidth": 2e12,
    "startup_seconds": 4e-6,
}  # fmt: skip


def fitted(rows, columns, inner, noise=0.0):
    """What products of all combinations of sides say of the machine `PLANTED`."""
    shapes = np.array([(m, n, k) for m in rows for n in columns for k in inner], float)
    m, n, k = shapes.T
    narrow = np.minimum(n, k)
    speed = PLANTED["product_flops"] * m / (m + PLANTED["gamma_M"]) * narrow / (narrow + PLANTED["gamma_K"])
    traffic = 2 * (m * k + k * n + m * n) / PLANTED["memory_bandwidth"]
    seconds = PLANTED["startup_seconds"] + np.maximum(2 * m * n * k / speed, traffic)
    seconds = seconds * np.exp(noise * np.random.default_rng(0).standard_normal(len(m)))
    return products(m, n, k, np.full(len(m), 2.0), seconds)


def test_products_of_a_machine_that_is_known():
    found = fitted((1, 16, 128, 1024, 8192), (256, 1024, 8192), (256, 2048, 8192))
    assert found.residual < 1e-3
    assert found.values == pytest.approx(PLANTED, rel=0.01)
    assert found.untold == ()


@pytest.mark.parametrize(
    ("rows", "sides", "untold"),
    [
        ((1, 16, 128, 1024, 8192), (256, 1024, 8192), set()),
        ((1, 2, 4, 8), (256, 1024, 8192), {"product_flops", "gamma_M"}),
        ((1, 4, 16, 64, 128, 256, 512, 1024, 8192), (8192,), {"gamma_K"}),
        ((4096,), (256, 1024, 8192), {"gamma_M"}),
        ((1024, 4096), (1024, 2048, 8192), {"memory_bandwidth"}),
    ],
)
@pytest.mark.parametrize("noise", [0.0, 0.05])
def test_what_products_do_not_tell_is_known(rows, sides, untold, noise):
    found = fitted(rows, sides, sides, noise)
    assert bool(untold & set(found.untold)) == bool(untold)
    assert untold or not found.untold


def test_a_transfer_has_the_bandwidth_of_its_largest_and_a_latency():
    p = np.repeat([2.0, 4.0, 8.0], 6)
    moved = np.tile(10.0 ** np.arange(3, 9), 3)
    seconds = (p - 1) * 3e-6 + moved / 200e9
    found = transfer(p, p - 1, moved, seconds)
    assert found.values["alpha"] == pytest.approx(3e-6, rel=0.02)
    assert 1 / found.values["beta"] == pytest.approx(200e9, rel=0.02)
    assert found.residual < 0.01
    assert found.untold == ()


@pytest.mark.parametrize(
    ("sizes", "untold"),
    [
        ((1e3, 2e3, 4e3), ("beta",)),  # all latency
        ((1e8, 3e8, 1e9), ("alpha",)),
        ((1e6,), ("alpha", "beta")),
        ((1e3, 1e5, 1e7), ()),
    ],
)
def test_what_transfers_do_not_tell_is_known(sizes, untold):
    moved = np.array(sizes * 3)
    ones = np.ones(len(moved))
    assert transfer(2 * ones, ones, moved, 3e-6 + moved / 200e9).untold == untold
