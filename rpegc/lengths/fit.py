"""Length quantiles fitted to measured response lengths.

Breakpoints (f_1, t_1) … (f_Q, t_Q) stand for the quantile function q(f) that is linear between them and
starts at (0, 0) (semantics: Graph, Lower); no breakpoints stand for the constant L_r. The measured lengths
x_1 <= … <= x_n have the quantile function x(f) = x_i on ((i-1)/n, i/n]. The error of a fit is

    E = sqrt( integral over f from 0 to 1 of (q(f) - x(f))^2 )   [tokens],

the 2-Wasserstein distance between both distributions, computed in closed form.

Breakpoints are chosen among *candidates*: for every distinct length the point (share of responses that have
ended by then, length), and for a length that several responses share, such as the limit, also the point
(share of shorter responses plus 1/n, length - 1), without which a strictly increasing function could not
stay level. Fractions are multiples of 1/n rounded to `DIGITS` decimals. The last breakpoint is (1, L_r).
E^2 is a sum over segments, so dynamic programming finds the least E over all increasing chains of candidates.
"""

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Breakpoints = tuple[tuple[float, int], ...]

DIGITS = 6
MAX_CANDIDATES = 4096


def quantile_error(lengths: Array, breakpoints: Breakpoints, limit: int) -> float:
    """E of `breakpoints` [tokens] against `lengths`, in any order and at most `limit`."""
    x = np.sort(np.asarray(lengths, dtype=np.float64))
    f = np.array([0.0, *(f for f, _ in breakpoints)])
    t = np.array([0.0, *(float(t) for _, t in breakpoints)])
    edges = np.union1d(np.arange(len(x) + 1) / len(x), f)
    low, high = edges[:-1], edges[1:]
    measured = x[np.minimum(((low + high) / 2 * len(x)).astype(np.int64), len(x) - 1)]
    if not breakpoints:
        return float(np.sqrt(np.mean((limit - x) ** 2)))
    before, after = np.interp(low, f, t) - measured, np.interp(high, f, t) - measured
    return float(np.sqrt(np.sum((high - low) * (before**2 + before * after + after**2) / 3)))


def fit_quantiles(lengths: Array, count: int, limit: int) -> Breakpoints:
    """At most `count` breakpoints with the least error, the fewest among equals.

    `lengths` are in tokens, none above `limit` (L_r). The optimum is exact over the candidates; of more than
    `MAX_CANDIDATES` an evenly spread subset is used. The result is empty if the constant L_r is as good.
    """
    x = np.sort(np.asarray(lengths, dtype=np.float64))
    if len(x) == 0 or x[-1] > limit or x[0] < 0:
        raise ValueError("lengths must lie between 0 and the limit, and there must be some")
    best: Breakpoints = ()
    least = quantile_error(x, best, limit)
    for chain in _optimal_chains(x, candidates(x, limit), count):
        error = quantile_error(x, chain, limit)
        if error < least * (1 - 1e-9):
            best, least = chain, error
    return best


def candidates(lengths: Array, limit: int) -> list[tuple[float, int]]:
    """Candidate breakpoints by increasing f, then t, (1, L_r) last. `lengths` are sorted."""
    n = len(lengths)
    values, counts = np.unique(lengths, return_counts=True)
    until = np.cumsum(counts)
    found = set()
    for value, tied, upto in zip(values.tolist(), counts.tolist(), until.tolist(), strict=True):
        found.add((upto if upto < n else n - 1, int(value)))
        if tied > 1:
            found.add((upto - tied + 1, int(value) - 1))
    points = {(round(i / n, DIGITS), t) for i, t in found}
    inside = sorted((f, t) for f, t in points if 0 < f < 1 and 0 < t < limit)
    if len(inside) >= MAX_CANDIDATES:
        kept = np.linspace(0, len(inside) - 1, MAX_CANDIDATES - 1).round().astype(int)
        inside = [inside[i] for i in kept]
    return [*inside, (1.0, limit)]


def _optimal_chains(x: Array, points: list[tuple[float, int]], count: int) -> list[Breakpoints]:
    """For every Q up to `count`, the chain of Q points with the least E^2 that ends at the last point."""
    f, t = np.array([p[0] for p in points]), np.array([float(p[1]) for p in points])
    segments = _Segments(x, f, t)
    last, most = len(points) - 1, min(count, len(points))
    total = np.full((most, len(points)), np.inf)
    total[0] = segments.from_origin()
    previous = np.zeros((most, len(points)), dtype=np.int64)
    for j in range(1, len(points)):
        ways = total[:-1, :j] + segments.ending_at(j)
        previous[1:, j] = ways.argmin(axis=1)
        total[1:, j] = ways.min(axis=1)
    chains = []
    for q in range(most):
        if np.isfinite(total[q, last]):
            chain, j = [], last
            for k in range(q, -1, -1):
                chain.append(points[j])
                j = int(previous[k, j])
            chains.append(tuple(reversed(chain)))
    return chains


class _Segments:
    """E^2 of single segments between the candidates (f, t), by integrals of x, f x and x^2 up to each f."""

    def __init__(self, x: Array, f: Array, t: Array) -> None:
        self.f, self.t = f, t
        n, index = len(x), np.arange(len(x))
        place = f * n
        cell = np.minimum(place.astype(np.int64), n - 1)

        def integral(below: Array, partial: Array) -> Array:
            """Cells below the place as a whole, and the part of its own cell."""
            whole: Array = np.concatenate([[0.0], np.cumsum(below)])[cell] + partial
            return whole

        self.x = integral(x, x[cell] * (place - cell)) / n
        self.xx = integral(x**2, x[cell] ** 2 * (place - cell)) / n
        self.fx = integral(x * (2 * index + 1), x[cell] * (place**2 - cell**2)) / (2 * n * n)

    def from_origin(self) -> Array:
        """E^2 from (0, 0) to every candidate."""
        return self._error(0.0, 0.0, self.f, self.t, self.x, self.fx, self.xx)

    def ending_at(self, j: int) -> Array:
        """E^2 from every candidate before `j` to `j`; infinite where f or t would not increase."""
        f, t = self.f[:j], self.t[:j]
        rest = (s[j] - s[:j] for s in (self.x, self.fx, self.xx))
        with np.errstate(divide="ignore", invalid="ignore"):
            error = self._error(f, t, self.f[j], self.t[j], *rest)
        return np.where((f < self.f[j]) & (t < self.t[j]), error, np.inf)

    @staticmethod
    def _error(
        f0: Array | float, t0: Array | float, f1: Array, t1: Array, x: Array, fx: Array, xx: Array
    ) -> Array:
        """Integral of (q - x)^2 over a segment, given the integrals of x, f x and x^2 over it."""
        slope = (t1 - t0) / (f1 - f0)
        line = (f1 - f0) * (t0 * t0 + t0 * t1 + t1 * t1) / 3
        error: Array = line - 2 * (t0 * x + slope * (fx - f0 * x)) + xx
        return np.maximum(error, 0.0)
