"""The parameters of a hardware file from sweeps of products, collectives and messages.

Each fit takes what was done and how long it took [s], wherever that comes from, and says how far the fitted
formula is off. The formulas are those with which the cost models predict.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from calib.fitting import Array, Fit, fit


class Found(NamedTuple):
    """Values by parameter of the hardware file, the mean relative error, how many samples it is over, and
    the parameters that these do not tell."""

    values: dict[str, float]
    residual: float
    n: int
    untold: tuple[str, ...] = ()


RISE = 4.0
"""Transfers tell a bandwidth if the longest takes so many times the shortest: else all is latency."""
SHARE = 0.1
"""They tell a latency if it is so much of the shortest."""


def products(rows: Array, columns: Array, inner: Array, width: Array, seconds: Array) -> Found:
    """Matrix products [rows, inner] times [inner, columns] of elements of `width` bytes: a start-up, then the
    longer of 2 rows columns inner / (F rows/(rows + gamma_M) w/(w + gamma_K)), w = min(columns, inner), and
    of the traffic at the memory's bandwidth."""
    names = ("product_flops", "gamma_M", "gamma_K", "memory_bandwidth", "startup_seconds")
    if len(seconds) <= len(names):
        raise ValueError(f"{len(seconds)} products, and more than {len(names)} are wanted")
    narrow = np.minimum(columns, inner)
    with np.errstate(over="ignore"):
        flops = 2.0 * rows * columns * inner
        nbytes = width * (rows * columns + columns * inner + rows * inner)

    def predict(x: Array) -> Array:
        rate, gamma_m, gamma_k, bandwidth, startup = x
        arithmetic = flops * (1 + gamma_m / rows) * (1 + gamma_k / narrow) / rate
        predicted: Array = startup + np.maximum(arithmetic, nbytes / bandwidth)
        return predicted

    with np.errstate(over="ignore"):
        rate, bandwidth = (float((what / seconds).max()) for what in (flops, nbytes))
    start = (rate, 100.0, 100.0, bandwidth, float(seconds.min()))
    return named(names, fit(predict, seconds, start))


def transfer(group: Array, steps: Array, moved: Array, seconds: Array) -> Found:
    """`alpha` and `beta` of a transfer in `steps` (2(p-1) of an all-reduce, p-1 of a gather or scatter, 1 of
    a message) that moves `moved` bytes over each GPU's link (2(p-1)/p M, (p-1)/p M, M).

    beta is what the largest transfer of each `group` size reaches, in the median; alpha then fits all
    samples. Libraries change protocols with the size, so that no pair of constants fits every size: large
    transfers are what training waits for.
    """
    best = []
    for p in np.unique(group):
        mine = group == p
        largest = mine & (moved == moved[mine].max())
        best.append(float(np.median((seconds / moved)[largest])))
    beta = float(np.median(best))
    latency = fit(lambda x: x[0] * steps + moved * beta, seconds, [float((seconds / steps).min())])
    alpha = latency.values[0]
    untold = []
    if float(np.max(alpha * steps / seconds)) < SHARE:
        untold.append("alpha")
    if max(float(np.ptp(np.log(seconds[group == p]))) for p in np.unique(group)) < np.log(RISE):
        untold.append("beta")
    return Found({"alpha": alpha, "beta": beta}, latency.residual, latency.n, tuple(untold))


def named(names: Sequence[str], result: Fit) -> Found:
    """What was found, by the names of the parameters."""
    values = dict(zip(names, result.values, strict=True))
    return Found(values, result.residual, result.n, tuple(names[i] for i in result.untold))
