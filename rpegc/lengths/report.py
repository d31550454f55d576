"""What `rpegc lengths` says: the lines to paste, how well they fit, and the lengths as a histogram."""

import numpy as np
from numpy.typing import NDArray

from ir_schema.base import Record
from ir_schema.envelope import pretty
from rpegc.lengths.fit import Breakpoints, fit_quantiles, quantile_error
from rpegc.table import table

BINS = 12
BAR = 40


class Bin(Record, frozen=True, kw_only=True):
    """`count` lengths from `first` to `last` tokens, both included."""

    first: int
    last: int
    count: int


class LengthReport(Record, frozen=True, kw_only=True):
    """What `rpegc lengths --json` prints.

    Lengths above `response_length` (L_r) count as L_r: `over_limit` of the `count` were. Means and `error`
    (E of `rpegc.lengths.fit`) are in tokens. `fitted_mean` is the mean of the fitted distribution, the
    integral of its quantile function; `mean_response_length` is what plans report for it, the sum of
    (f_q - f_{q-1}) t_q, in which every response of a phase decodes to the phase's end.
    """

    source: str
    field: str | None
    count: int
    over_limit: int
    shortest: int
    median: float
    mean: float
    response_length: int
    length_quantiles: tuple[tuple[float, int], ...]
    error: float
    fitted_mean: float
    mean_response_length: float
    histogram: tuple[Bin, ...]


def report(
    source: str, field: str | None, lengths: NDArray[np.float64], breakpoints: int, limit: int | None = None
) -> LengthReport:
    """Fit at most `breakpoints` quantiles to `lengths`, cut at `limit` (default: the longest, at least 1)."""
    longest = limit if limit is not None else max(1, int(lengths.max()))
    cut = np.minimum(lengths, longest)
    quantiles = fit_quantiles(cut, breakpoints, longest)
    linear, upper = _means(quantiles, longest)
    return LengthReport(
        source=source,
        field=field,
        count=len(lengths),
        over_limit=int((lengths > longest).sum()),
        shortest=int(cut.min()),
        median=float(np.median(cut)),
        mean=float(cut.mean()),
        response_length=longest,
        length_quantiles=quantiles,
        error=quantile_error(cut, quantiles, longest),
        fitted_mean=linear,
        mean_response_length=upper,
        histogram=histogram(cut),
    )


def _means(quantiles: Breakpoints, limit: int) -> tuple[float, float]:
    """Mean of the linear quantile function, and the upper sum."""
    if not quantiles:
        return float(limit), float(limit)
    linear = upper = f0 = t0 = 0.0
    for f, t in quantiles:
        linear += (f - f0) * (t0 + t) / 2
        upper += (f - f0) * t
        f0, t0 = f, t
    return linear, upper


def histogram(lengths: NDArray[np.float64]) -> tuple[Bin, ...]:
    """Counts in at most `BINS` bins whose bounds grow geometrically, the longest length in a bin of its own.

    Lengths of reasoning models have tails ten times their median, which even bins would not show.
    """
    low, high = max(1, int(lengths.min())), int(lengths.max())
    edges = {round(float(e)) for e in np.geomspace(low, max(low, high), BINS)}
    firsts = sorted({int(lengths.min()), high, *edges})
    found = []
    for first, after in zip(firsts, [*firsts[1:], high + 1], strict=True):
        found.append(
            Bin(first=first, last=after - 1, count=int(((lengths >= first) & (lengths < after)).sum()))
        )
    return tuple(found)


def lines_to_paste(found: LengthReport) -> bytes:
    """The entries of a `workload` block."""
    lines = [f"response_length = {found.response_length}"]
    if found.length_quantiles:
        points = ", ".join(f"[{f!r}, {t}]" for f, t in found.length_quantiles)
        lines.append(f"length_quantiles = [{points}]")
    return "".join(f"{line}\n" for line in lines).encode()


def as_text(found: LengthReport) -> str:
    """Everything but the lines to paste, for people."""
    of = f" of field `{found.field}`" if found.field else ""
    longest = max(b.count for b in found.histogram)
    rows = [
        (
            f"{b.first}-{b.last}" if b.first < b.last else f"{b.first}",
            b.count,
            f"{100 * b.count / found.count:.1f} %",
            "#" * -(-BAR * b.count // longest),
        )
        for b in found.histogram
    ]
    points = len(found.length_quantiles)
    fit = f"{points} breakpoint{'s' if points != 1 else ''}" if points else "constant, no breakpoints"
    lines = [
        f"{found.source}: {found.count} lengths{of}",
        "",
        table(("tokens", "count", "share", ""), rows, right=(0, 1, 2)),
        "",
        f"median {found.median:g}, mean {found.mean:.1f}, longest {found.response_length} tokens",
        f"fit: {fit}; RMS error {found.error:.1f} tokens over the quantile function",
        f"     mean {found.fitted_mean:.1f} (plans report {found.mean_response_length:.1f}: "
        "each phase decodes to its end)",
    ]
    if found.over_limit:
        lines.append(f"{found.over_limit} lengths exceed the limit and count as {found.response_length}")
    return "\n".join(lines)


def as_json(found: LengthReport) -> bytes:
    """The report as one JSON object."""
    return pretty(found)
