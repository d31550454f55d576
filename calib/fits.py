"""The parameters of a hardware file from sweeps of products, collectives and messages.

Each fit takes what was done and how long it took [s], wherever that comes from, and says how far the fitted
formula is off. The formulas are those with which the cost models predict.
"""

from typing import NamedTuple

import numpy as np

from calib.fitting import Array, Fit, fit


class Found(NamedTuple):
    """Values by parameter of the hardware file, the mean relative error, and how many samples it is over."""

    values: dict[str, float]
    residual: float
    n: int


def products(rows: Array, columns: Array, inner: Array, width: int, seconds: Array) -> Found:
    """Matrix products [rows, inner] times [inner, columns] of elements of `width` bytes: a start-up, then the
    longer of 2 rows columns inner / (F rows/(rows + gamma_M) w/(w + gamma_K)), w = min(columns, inner), and
    of the traffic at the memory's bandwidth."""
    narrow = np.minimum(columns, inner)
    flops = 2.0 * rows * columns * inner
    nbytes = width * (rows * columns + columns * inner + rows * inner)

    def predict(x: Array) -> Array:
        rate, gamma_m, gamma_k, bandwidth, startup = x
        arithmetic = flops * (1 + gamma_m / rows) * (1 + gamma_k / narrow) / rate
        predicted: Array = startup + np.maximum(arithmetic, nbytes / bandwidth)
        return predicted

    start = (
        float((flops / seconds).max()), 100.0, 100.0, float((nbytes / seconds).max()), float(seconds.min())
    )  # fmt: skip
    names = ("product_flops", "gamma_M", "gamma_K", "memory_bandwidth", "startup_seconds")
    return _found(names, fit(predict, seconds, start))


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
    alpha = fit(lambda x: x[0] * steps + moved * beta, seconds, [float((seconds / steps).min())])
    return Found({"alpha": alpha.values[0], "beta": beta}, alpha.residual, alpha.n)


def _found(names: tuple[str, ...], result: Fit) -> Found:
    return Found(dict(zip(names, result.values, strict=True)), result.residual, result.n)
