"""Fitting positive parameters to positive measurements by relative error.

The parameters that are found have the least sum of |log(predicted / measured)|: an outlier pulls no harder
than any other value, and a parameter that vanishes drops below any bound instead of turning negative.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from calib.statistics import mape

Array = NDArray[np.float64]
STEP = 1e-4
"""Of the logarithm of a parameter, for derivatives."""
CLOSE = 0.02
"""Relative error below which all errors count alike: a bend that least squares can pass."""


class Fit(NamedTuple):
    """Fitted values, the mean relative error that is left, and of how many measurements."""

    values: tuple[float, ...]
    residual: float
    n: int


def fit(
    predict: Callable[[Array], Array], measured: Array, start: Sequence[float], *, rounds: int = 40
) -> Fit:
    """The parameters with which `predict` comes closest to `measured`, found from `start`.

    Levenberg-Marquardt on logarithms, every residual weighted by one over its size in the last round. Raises
    ValueError where there are fewer measurements than parameters or one is not positive, and where none of
    the values that were tried comes finitely close to all of them.
    """
    if len(measured) < len(start) or not (np.asarray(measured) > 0).all():
        raise ValueError(f"{len(measured)} positive measurements wanted for {len(start)} parameters")
    with np.errstate(all="ignore"):
        found = np.exp(_closest(predict, np.log(measured), np.log(np.asarray(start, float)), rounds))
        residual = mape(measured, predict(found))
    if not np.isfinite([*found, residual]).all():
        raise ValueError("measurements that no finite parameters come near")
    return Fit(tuple(map(float, found)), residual, len(measured))


def _closest(predict: Callable[[Array], Array], logs: Array, start: Array, rounds: int) -> Array:
    """Logarithms of the parameters, from those of measurements and of where to start."""

    def errors(x: Array) -> Array:
        return np.log(predict(np.exp(x))) - logs

    x, damping = start, 1e-2
    now = errors(x)
    for _ in range(rounds):
        weight = 1.0 / np.maximum(np.abs(now), CLOSE)
        slope = np.stack([(errors(x + e) - now) / STEP for e in np.eye(len(x)) * STEP], axis=1)
        curve = slope.T @ (weight[:, None] * slope)
        down = -slope.T @ (weight * now)
        cost, moved = float(np.abs(now).sum()), False
        while damping < 1e8:
            step = np.linalg.solve(curve + damping * np.diag(np.diag(curve) + 1e-9), down).clip(-1.0, 1.0)
            tried = errors(x + step)
            if float(np.abs(tried).sum()) < cost:
                x, now, moved, damping = x + step, tried, True, max(damping / 4, 1e-8)
                break
            damping *= 4
        if not moved or float(np.abs(step).max()) < 1e-6:
            break
    return x
