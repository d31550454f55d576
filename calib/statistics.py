"""How well predictions agree with measurements.

All functions take measured and predicted values of equal length, in one order, all positive.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Values = Sequence[float] | NDArray[np.float64]


class Agreement(NamedTuple):
    """Agreement of `n` predictions: mean absolute relative error, rank correlation (Spearman's rho, NaN below
    two distinct values) and the share of pairs with different measurements that are predicted in order."""

    n: int
    mape: float
    spearman: float
    ordered: float


def agreement(measured: Values, predicted: Values) -> Agreement:
    """All statistics at once. Raises ValueError without any value, or with numbers that do not match."""
    if len(measured) != len(predicted) or not len(measured):
        raise ValueError(f"{len(measured)} measured and {len(predicted)} predicted values")
    return Agreement(
        len(measured), mape(measured, predicted), spearman(measured, predicted), ordered(measured, predicted)
    )


def mape(measured: Values, predicted: Values) -> float:
    """Mean of |predicted - measured| / measured."""
    m, p = np.asarray(measured, float), np.asarray(predicted, float)
    return float(np.mean(np.abs(p - m) / m))


def spearman(measured: Values, predicted: Values) -> float:
    """Pearson's correlation of the ranks, ties at their mean rank; NaN where either side is constant."""
    a, b = _ranks(measured), _ranks(predicted)
    a, b = a - a.mean(), b - b.mean()
    scale = float(np.sqrt((a @ a) * (b @ b)))
    return float(a @ b) / scale if scale else float("nan")


def _ranks(values: Values) -> NDArray[np.float64]:
    _, inverse, counts = np.unique(np.asarray(values, float), return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (last - (counts - 1) / 2.0)[inverse]


def ordered(measured: Values, predicted: Values) -> float:
    """Share of the pairs with different measurements whose predictions differ the same way; NaN of none."""
    m, p = np.asarray(measured, float), np.asarray(predicted, float)
    first, second = np.triu_indices(len(m), 1)
    truth, said = np.sign(m[first] - m[second]), np.sign(p[first] - p[second])
    known = truth != 0
    return float(np.mean(truth[known] == said[known])) if known.any() else float("nan")


def bands(values: Values, factor: float) -> list[list[int]]:
    """Indices of `values` in bands in each of which the largest is at most `factor` times the smallest, each
    band beginning at the least value that no other contains; ascending."""
    v = np.asarray(values, float)
    found: list[list[int]] = []
    least = -1.0
    for i in map(int, np.argsort(v, kind="stable")):
        if not found or v[i] > factor * least:
            found.append([])
            least = float(v[i])
        found[-1].append(i)
    return found


def best_scale(measured: Values, base: Values) -> float:
    """The factor c with the least `mape` of c * base: the one-parameter baseline.

    The error is convex and piecewise linear in c, with its bends at measured / base: the least is at the
    median of these ratios, weighted with base / measured.
    """
    m, b = np.asarray(measured, float), np.asarray(base, float)
    ratio, weight = m / b, b / m
    order = np.argsort(ratio)
    reached = np.cumsum(weight[order])
    return float(ratio[order][np.searchsorted(reached, reached[-1] / 2.0)])
