"""Intervals over repeats: how often they hold the truth, and how many repeats make them narrower."""

from __future__ import annotations

import math

import numpy as np
import pytest
from ddp_ladder.gates.interval import LogMean, factor, repeats_for

RUNS, BLOCKS = 2000, 15
RATE, RATIO = 1000.0, 0.8


def measured(generator: np.random.Generator, repeats: int, between: float, within: float, rate: float) -> np.ndarray:
    """Figures of RUNS ladders, shape (RUNS, repeats): medians of blocks; between, within: relative noise."""
    runs = rate * generator.lognormal(0, between, (RUNS, repeats, 1))
    figures: np.ndarray = np.median(runs * generator.lognormal(0, within, (RUNS, repeats, BLOCKS)), axis=-1)
    return figures


@pytest.mark.parametrize("repeats", [3, 5, 10])
@pytest.mark.parametrize(("between", "within"), [(0.0, 0.03), (0.01, 0.03), (0.05, 0.01)])
def test_intervals_hold_the_truth_as_often_as_they_say(repeats: int, between: float, within: float) -> None:
    generator = np.random.default_rng(11)
    rates = measured(generator, repeats, between, within, RATIO * RATE)
    # A baseline that several scales share, and whose repeats may differ less or more.
    baselines = measured(generator, repeats, between / 2, within, RATE)
    rate = ratio = 0
    for here, base in zip(rates, baselines, strict=True):
        figure, below = LogMean.of(here), LogMean.of(base)
        low, high = figure.interval(float(np.median(here)))
        rate += low <= RATIO * RATE <= high
        low, high = figure.over(below).interval(float(np.median(here) / np.median(base)))
        ratio += low <= RATIO <= high
    assert 0.93 <= rate / RUNS <= 0.97
    assert 0.93 <= ratio / RUNS <= 0.97


def test_two_repeats_give_a_wide_interval_that_holds_the_truth() -> None:
    figures = measured(np.random.default_rng(12), 2, 0.02, 0.02, RATE)
    intervals = [LogMean.of(one).interval(float(np.median(one))) for one in figures]
    assert 0.93 <= np.mean([low <= RATE <= high for low, high in intervals]) <= 0.97
    assert np.median([high / low for low, high in intervals]) > 1.2  # of runs that differ by 3 %


def test_one_repeat_has_the_interval_of_its_blocks() -> None:
    alone = LogMean.of([1000.0], [0.01])
    assert alone.interval(1000.0) == (pytest.approx(980.6, abs=0.1), pytest.approx(1019.8, abs=0.1))
    low, high = alone.over(LogMean.of([499.0, 500.0, 501.0])).interval(2.0)
    assert (low, high) == (pytest.approx(1.96, abs=2e-3), pytest.approx(2.04, abs=2e-3))


def test_an_error_that_the_repeats_share_does_not_shrink_with_their_number() -> None:
    low, high = LogMean.of([1000.0] * 10, [0.01] * 10).interval(1000.0)
    assert (low, high) == (pytest.approx(980.6, abs=0.1), pytest.approx(1019.8, abs=0.1))


def test_equal_figures_have_no_width() -> None:
    same = LogMean.of([1000.0] * 3)
    assert same.interval(1000.0) == (1000.0, 1000.0)
    assert same.over(same).interval(1.0) == (1.0, 1.0)


def test_the_median_of_a_disturbed_repeat_is_in_the_interval() -> None:
    rates = [1000.0] * 9 + [500.0]
    low, high = LogMean.of(rates).interval(1000.0)
    assert low < 1000 <= high


@pytest.mark.parametrize(("freedom", "table"), [(1, 12.706), (2, 4.303), (9, 2.262), (math.inf, 1.960)])
def test_the_factor_is_that_of_the_tables(freedom: float, table: float) -> None:
    assert factor(freedom) == pytest.approx(table, abs=5e-4)


@pytest.mark.parametrize(
    ("repeats", "narrower", "needed"),
    [
        (3, 1.0, 4),  # always more than there are
        (3, 2.0, 5),  # two thirds of that from Student's t
        (5, 2.0, 13),
        (10, 2.0, 33),
        (1, 20.0, 22),  # as of two repeats
        (3, 50.0, None),
    ],
)
def test_how_many_repeats_make_it_narrower(repeats: int, narrower: float, needed: int | None) -> None:
    assert repeats_for(repeats, narrower, 100) == needed
