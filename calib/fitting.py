"""Fitting positive parameters to positive measurements by relative error.

The parameters that are found have the least sum of |log(predicted / measured)|: an outlier pulls no harder
than any other value, and a parameter that vanishes drops below any bound instead of turning negative.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from calib.statistics import mape

Array = NDArray[np.float64]
STEP = 1e-4
"""Of the logarithm of a parameter, for derivatives."""
CLOSE = 0.02
"""Relative error below which all errors count alike: a bend that least squares can pass."""
APART, UNLIKELY, WORSE = 3.0, 3.0, 1.02
"""Measurements tell a parameter if so many times its value is by e^-UNLIKELY less likely, errors of
logarithms being Laplace's, and if their mean, at least half of `CLOSE`, grows by this factor."""

_NOTHING = 1e-3
_HOPELESS = 3.0
"""So much beyond what counts as about the same, where errors are taken as linear, nothing is tried."""


class Fit(NamedTuple):
    """Fitted values, the mean relative error that is left, of how many measurements, and the positions of
    the parameters that these do not tell: `APART` times as much fits about as well, or it is of a size that
    matters and less of it changes nothing."""

    values: tuple[float, ...]
    residual: float
    n: int
    untold: tuple[int, ...]


def fit(
    predict: Callable[[Array], Array], measured: Array, start: Sequence[float], *, rounds: int = 40
) -> Fit:
    """The parameters with which `predict` comes closest to `measured`, found from `start`.

    Levenberg-Marquardt on logarithms, every residual weighted by one over its size in the last round. Raises
    ValueError where there are fewer measurements than parameters or one is not positive, and where none of
    the values that were tried comes finitely close to all of them.

    A parameter that vanishes is told if the value in `start` would be worse; so that is to be one that
    matters.
    """
    if len(measured) < len(start) or not (np.asarray(measured) > 0).all():
        raise ValueError(f"{len(measured)} positive measurements wanted for {len(start)} parameters")
    with np.errstate(all="ignore"):
        logs, begin = np.log(measured), np.log(np.asarray(start, float))

        def errors(x: Array) -> Array:
            return np.log(predict(np.exp(x))) - logs

        x = _closest(errors, begin, rounds)
        residual = mape(measured, predict(np.exp(x)))
        if not np.isfinite([*np.exp(x), residual]).all():
            raise ValueError("measurements that no finite parameters come near")
        untold = _untold(errors, x, begin, rounds // 5)
    return Fit(tuple(map(float, np.exp(x))), residual, len(measured), untold)


def _closest(errors: Callable[[Array], Array], start: Array, rounds: int) -> Array:
    """Logarithms of the parameters with the least errors, from where to start."""
    x, damping = start, 1e-2
    if not len(x):
        return x
    now = errors(x)
    for _ in range(rounds):
        weight = 1.0 / np.maximum(np.abs(now), CLOSE)
        slope = _slope(errors, x, now)
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


def _slope(errors: Callable[[Array], Array], x: Array, now: Array) -> Array:
    """Derivatives of the errors (rows), which are `now`, by the parameters (columns)."""
    return np.stack([(errors(x + e) - now) / STEP for e in np.eye(len(x)) * STEP], axis=1)


def _untold(errors: Callable[[Array], Array], x: Array, matters: Array, rounds: int) -> tuple[int, ...]:
    """The parameters of which more, at least as much as `matters`, has about the same errors, all others
    making up for it in some `rounds`; and those that are as large and act nowhere."""
    now = errors(x)
    factor = max(float(np.exp(UNLIKELY / len(now))), WORSE)
    bound = factor * max(float(np.abs(now).mean()), CLOSE / 2)
    slope, found = _slope(errors, x, now), []
    for i in range(len(x)):
        others, along = np.delete(x, i), np.delete(slope, i, axis=1)

        def rest(others: Array, value: float, i: int = i) -> Array:
            return errors(np.insert(others, i, value))

        less = x[i] - np.log(APART)
        if less > matters[i] - 2 * np.log(APART) and np.abs(rest(others, less) - now).mean() < _NOTHING:
            found.append(i)
            continue
        raised = partial(rest, value=max(x[i] + np.log(APART), matters[i]))
        off = raised(others)
        if np.isfinite(off).all() and np.isfinite(along).all():
            left = off - along @ np.linalg.lstsq(along, off, rcond=1e-6)[0]
            if np.abs(left).mean() > _HOPELESS * bound:
                continue
        if np.abs(raised(_closest(raised, others, rounds))).mean() <= bound:
            found.append(i)
    return tuple(found)
