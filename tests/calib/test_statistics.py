"""Agreement of predictions with measurements, by hand."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calib.statistics import agreement, bands, best_scale, mape, ordered, spearman

pairs = st.lists(st.tuples(st.integers(1, 1000), st.integers(1, 1000)), min_size=2, max_size=8)


def test_errors_are_relative_to_what_was_measured():
    assert mape([1.0, 2.0, 4.0], [1.1, 1.0, 4.0]) == pytest.approx((0.1 + 0.5) / 3)


def test_ranks_with_ties():
    # Ranks 1, 2.5, 2.5, 4 and 1, 2, 3, 4.
    assert spearman([1, 2, 2, 3], [10, 20, 30, 40]) == pytest.approx(4.5 / math.sqrt(4.5 * 5))
    assert spearman([1, 2, 3], [1, 10, 100]) == pytest.approx(1.0)
    assert spearman([1, 2, 3], [3, 2, 1]) == pytest.approx(-1.0)
    assert math.isnan(spearman([1, 1], [1, 2]))


def test_pairs_with_equal_measurements_have_no_order():
    # Of the five pairs with different measurements, three are predicted in order.
    assert ordered([1, 2, 2, 3], [1, 3, 2, 2]) == pytest.approx(3 / 5)
    assert math.isnan(ordered([1, 1], [1, 2]))


@settings(deadline=None)
@given(pairs)
def test_no_other_factor_is_better_than_the_best(pairs):
    measured, base = zip(*pairs, strict=True)
    best = best_scale(measured, base)
    least = mape(measured, [best * b for b in base])
    for other in (m / b for m, b in zip(measured, base, strict=True)):
        assert least <= mape(measured, [other * b for b in base]) + 1e-9


def test_numbers_must_match():
    with pytest.raises(ValueError, match="2 measured and 1 predicted"):
        agreement([1.0, 2.0], [1.0])
    with pytest.raises(ValueError, match="0 measured"):
        agreement([], [])


def test_bands_begin_where_the_last_one_cannot_reach():
    assert bands([9.0, 1.0, 4.0, 4.1, 16.4, 100.0], 4.0) == [[1, 2], [3, 0, 4], [5]]
    assert bands([], 4.0) == []


@settings(deadline=None)
@given(st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=20), st.floats(1.0, 8.0))
def test_every_value_is_in_one_band_that_is_as_wide_as_allowed(values, factor):
    found = bands(values, factor)
    assert sorted(i for members in found for i in members) == list(range(len(values)))
    for members, after in zip(found, [*found[1:], []], strict=True):
        inside = [values[i] for i in members]
        assert max(inside) <= factor * min(inside)
        assert all(values[i] > factor * min(inside) for i in after)
