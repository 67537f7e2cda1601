"""Intervals over repeats and jobs: how often they hold the truth."""

from __future__ import annotations

import math

import numpy as np
import pytest
from ddp_ladder.gates import interval
from ddp_ladder.gates.interval import LogMean, half_width_percent

LADDERS, BLOCKS = 2000, 15
RATE, RATIO = 1000.0, 0.8


def measured(generator: np.random.Generator, repeats: int, between: float, within: float, rate: float) -> np.ndarray:
    """Figures of LADDERS ladders, shape (LADDERS, repeats): medians of blocks; between, within: relative noise."""
    runs = rate * generator.lognormal(0, between, (LADDERS, repeats, 1))
    figures: np.ndarray = np.median(runs * generator.lognormal(0, within, (LADDERS, repeats, BLOCKS)), axis=-1)
    return figures


@pytest.mark.parametrize(
    ("repeats", "between", "within"), [(3, 0.0, 0.03), (3, 0.01, 0.03), (3, 0.05, 0.01), (10, 0.05, 0.01)]
)
def test_intervals_of_one_job_hold_its_truth_as_often_as_they_say(repeats: int, between: float, within: float) -> None:
    generator = np.random.default_rng(11)
    rates = measured(generator, repeats, between, within, RATIO * RATE)
    # A baseline that several scales share, and whose repeats may differ less or more.
    baselines = measured(generator, repeats, between / 2, within, RATE)
    rate = ratio = 0
    for here, base in zip(rates, baselines, strict=True):
        figure, below = LogMean.of(here), LogMean.of(base)
        rate += holds(RATIO * RATE, figure.interval(float(np.median(here))))
        ratio += holds(RATIO, figure.over(below).interval(float(np.median(here) / np.median(base))))
    assert 0.93 <= rate / LADDERS <= 0.97
    assert 0.93 <= ratio / LADDERS <= 0.97


def holds(truth: float, ends: interval.Ends) -> bool:
    low, high = ends
    return low is None or high is None or low <= truth <= high


def ladder(generator: np.random.Generator, jobs: int, repeats: int, differ: float) -> LogMean:
    """The log of a ratio whose truth is RATIO: each side of some jobs, each of some repeats with 1 % of noise."""
    sides = [
        [truth * math.exp(job + noise) for job in generator.normal(0, differ, jobs) for noise in of_job]
        for truth, of_job in zip((RATIO, 1.0), generator.normal(0, 0.01, (2, repeats)), strict=True)
    ]
    here, baseline = (LogMean.of(figures, [k // repeats for k in range(jobs * repeats)]) for figures in sides)
    return here.over(baseline)


@pytest.mark.parametrize("repeats", [2, 10])
@pytest.mark.parametrize(("jobs", "differ", "least"), [(1, 0.02, 0.93), (2, 0.05, 0.86), (3, 0.05, 0.88)])
def test_what_jobs_differ_by_is_in_the_interval_that_decides(
    jobs: int, differ: float, least: float, repeats: int
) -> None:
    """With 2 % between jobs, the repeats of one job alone hold the truth in 58 % (3 repeats) and 26 % (10) of cases."""
    generator = np.random.default_rng(5)
    logs = [ladder(generator, jobs, repeats, differ) for _ in range(500)]
    assert np.mean([holds(RATIO, log.interval_of_any_job(RATIO)) for log in logs]) >= least
    shown = np.mean([abs(log.mean - math.log(RATIO)) <= log.shown.half_width for log in logs if log.shown])
    assert shown >= least if jobs > 1 else shown < 0.9


def test_several_jobs_show_what_they_differ_by() -> None:
    """Two jobs that are 10 % apart; their repeats agree."""
    figures, jobs = [1000, 1001, 999, 900, 901, 899], ["a"] * 3 + ["b"] * 3
    one, both = LogMean.of(figures), LogMean.of(figures, jobs)
    assert both.jobs == 2
    low, high = both.interval(950.0)
    assert low < 899 < 1001 < high
    assert half_width_percent(both) < 0.2 < 5 < half_width_percent(one)


def test_a_single_repeat_has_no_interval() -> None:
    alone = LogMean.of([1000.0])
    assert alone.interval(1000.0) == alone.interval_of_any_job(1000.0) == (None, None)
    assert alone.over(LogMean.of([499.0, 500.0, 501.0])).interval(2.0) == (None, None)
    assert half_width_percent(alone) is None
    assert LogMean.of([1000.0, 1010.0], ["a", "b"]).interval(1005.0)[0] is not None
