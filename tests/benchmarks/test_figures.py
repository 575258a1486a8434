"""Figures: the median and the spread of repeated measurements."""

import math

import pytest

from benchmarks.figures import median, percentile, ratios, spread
from benchmarks.scaling import _MAX_STEEPNESS, Curve

DOUBLINGS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


def test_a_ratio_is_of_one_round():
    assert ratios([2.0, 30.0], [1.0, 10.0]) == [2.0, 3.0]


def test_a_spread_names_the_median_and_both_ends():
    assert spread([1.0, 3.0, 2000.0], 1) == "3.0 (1.0 to 2,000.0)"


def test_of_nothing_there_is_no_figure():
    assert math.isnan(median([]))
    assert percentile([], 0.99) == 0.0


@pytest.mark.parametrize(
    ("cost", "is_worse"),
    [
        (lambda x: 20 + 0.5 * x, False),
        (lambda x: max(20, 0.5 * x), False),
        (lambda x: 20 + 0.01 * x * x, True),
        (lambda x: 20 + 0.1 * x + 0.01 * x * x, True),
    ],
    ids=["a line", "a floor and a line", "a square", "a line and a square"],
)
def test_a_curve_that_is_worse_than_linear_is_told(cost, is_worse):
    curve = Curve("step", "requests", {x: [cost(x)] for x in DOUBLINGS})

    assert (curve.steepness() > _MAX_STEEPNESS) is is_worse


def test_the_line_through_points_on_a_line_is_that_line():
    curve = Curve("step", "requests", {x: [3 + 2 * x] * 5 for x in DOUBLINGS})

    assert curve.line() == pytest.approx((3, 2))
