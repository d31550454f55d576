"""Fitting: the least error that any increasing chain of candidates has, and always legal quantiles."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpegc.lengths import fit, fit_quantiles, quantile_error
from rpegc.lengths.report import report

samples = st.lists(st.integers(0, 40), min_size=1, max_size=9)
margins = st.sampled_from([0, 1, 13])
counts = st.integers(1, 5)


def limit_of(lengths: list[int], margin: int) -> int:
    return max(1, max(lengths) + margin)


def increases(chain: tuple[tuple[float, int], ...]) -> bool:
    return all(f0 < f1 and t0 < t1 for (f0, t0), (f1, t1) in itertools.pairwise([(0.0, 0), *chain]))


def error_by_hand(lengths: list[int], chain: tuple[tuple[float, int], ...], limit: int) -> float:
    """The error's definition, summed over fine cells by Simpson's rule, which is exact for parabolas."""
    n, points = len(lengths), [(0.0, 0), *chain]
    edges = sorted({i / n for i in range(n + 1)} | {f for f, _ in chain})
    total = 0.0

    def line(f: float) -> float:
        for (f0, t0), (f1, t1) in itertools.pairwise(points):
            if f <= f1:
                return t0 + (t1 - t0) * (f - f0) / (f1 - f0)
        return float(limit)

    for low, high in itertools.pairwise(edges):
        middle = (low + high) / 2
        x = sorted(lengths)[min(n - 1, math.floor(middle * n))]
        squares = [(line(f) - x) ** 2 for f in (low, middle, high)]
        total += (high - low) * (squares[0] + 4 * squares[1] + squares[2]) / 6
    return math.sqrt(total)


@given(samples, margins, counts)
def test_no_chain_of_candidates_is_better(lengths: list[int], margin: int, count: int) -> None:
    limit = limit_of(lengths, margin)
    found = fit_quantiles(np.array(lengths, float), count, limit)
    points = fit.candidates(np.sort(np.array(lengths, float)), limit)
    chains = [()] + [
        (*chain, points[-1])
        for size in range(count)
        for chain in itertools.combinations(points[:-1], size)
        if increases((*chain, points[-1]))
    ]
    best = min(error_by_hand(lengths, chain, limit) for chain in chains)
    assert error_by_hand(lengths, found, limit) == pytest.approx(best, rel=1e-6, abs=1e-6)


@given(samples, margins, counts)
def test_the_error_is_its_definition(lengths: list[int], margin: int, count: int) -> None:
    limit = limit_of(lengths, margin)
    found = fit_quantiles(np.array(lengths, float), count, limit)
    error = quantile_error(np.array(lengths, float), found, limit)
    assert error == pytest.approx(error_by_hand(lengths, found, limit), rel=1e-9, abs=1e-9)


@given(st.lists(st.integers(0, 4096), min_size=1, max_size=200), margins, st.integers(1, 12))
def test_quantiles_are_legal_and_more_are_never_worse(lengths: list[int], margin: int, count: int) -> None:
    x, limit = np.array(lengths, float), limit_of(lengths, margin)
    found = fit_quantiles(x, count, limit)
    assert len(found) <= count
    assert increases(found)
    assert not found or found[-1] == (1.0, limit)
    more = quantile_error(x, fit_quantiles(x, count + 1, limit), limit)
    assert more <= quantile_error(x, found, limit) * (1 + 1e-9)


def test_a_distribution_of_breakpoints_is_found_again() -> None:
    true = ((0.5, 96), (0.85, 192), (1.0, 384))
    fractions = np.arange(1, 2001) / 2000
    lengths = np.round(np.interp(fractions, [0, 0.5, 0.85, 1.0], [0, 96, 192, 384]))
    found = fit_quantiles(lengths, 3, 384)
    assert found[-1] == true[-1]
    for got, want in zip(found, true, strict=True):
        assert got == pytest.approx(want, abs=1.5)
    assert quantile_error(lengths, found, 384) < 0.5


def test_a_heap_at_the_limit_stays_there() -> None:
    lengths = np.array([*range(1, 61), *[1000] * 40], float)
    found = fit_quantiles(lengths, 3, 1000)
    assert found[1:] == ((0.61, 999), (1.0, 1000))
    assert quantile_error(lengths, found, 1000) < 60


def test_one_length_needs_no_breakpoints_unless_the_limit_is_higher() -> None:
    assert fit_quantiles(np.full(7, 50.0), 3, 50) == ()
    assert quantile_error(np.full(7, 50.0), (), 50) == 0
    high = fit_quantiles(np.full(1000, 50.0), 3, 80)
    assert high == ((0.001, 49), (0.999, 50), (1.0, 80))
    assert fit_quantiles(np.array([50.0]), 3, 80) == ((1.0, 80),)


def test_more_breakpoints_than_lengths() -> None:
    found = fit_quantiles(np.array([10.0, 20.0, 20.0, 30.0]), 50, 30)
    assert increases(found)
    assert found[-1] == (1.0, 30)


def test_many_distinct_lengths_are_thinned_but_fitted() -> None:
    lengths = np.arange(1.0, 20001.0)
    assert len(fit.candidates(lengths, 20000)) == fit.MAX_CANDIDATES
    assert quantile_error(lengths, fit_quantiles(lengths, 1, 20000), 20000) < 1
    assert fit.candidates(lengths, 20000)[-1] == (1.0, 20000)


@pytest.mark.parametrize(("lengths", "limit"), [([], 5), ([6.0], 5), ([-1.0], 5)])
def test_what_cannot_be_fitted_is_refused(lengths: list[float], limit: int) -> None:
    with pytest.raises(ValueError, match="lengths"):
        fit_quantiles(np.array(lengths), 3, limit)


@given(samples, st.sampled_from([None, 1, 5, 60]))
def test_a_report_counts_every_length_once(lengths: list[int], limit: int | None) -> None:
    found = report("x", None, np.array(lengths, float), 3, limit)
    assert sum(b.count for b in found.histogram) == found.count == len(lengths)
    assert all(a.last + 1 == b.first for a, b in itertools.pairwise(found.histogram))
    assert found.over_limit == sum(x > found.response_length for x in lengths)
    assert found.mean == pytest.approx(np.minimum(lengths, found.response_length).mean())
    fine = (np.arange(100_000) + 0.5) / 100_000
    points = [(0.0, 0), *found.length_quantiles]
    if found.length_quantiles:
        values = np.interp(fine, [f for f, _ in points], [t for _, t in points])
        assert found.fitted_mean == pytest.approx(values.mean(), rel=1e-3, abs=1e-3)
