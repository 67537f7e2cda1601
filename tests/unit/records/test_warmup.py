"""Where the warm-up ends, on synthetic series of steps whose answer is known."""

from __future__ import annotations

import numpy as np
import pytest
from ddp_ladder.records.statistic import Warmup, find_warmup
from numpy.typing import NDArray

SEEDS = range(40)


def noisy(count: int, noise: float, seed: int) -> NDArray[np.float64]:
    """Steps of 0.1 s with a lognormal noise."""
    return 0.1 * np.exp(np.random.default_rng(seed).normal(0, noise, count))


def find(step_time_s: NDArray[np.float64], minimum: int = 10, keep: int = 30) -> Warmup:
    return find_warmup(step_time_s, minimum, keep)


@pytest.mark.parametrize("noise", [0.0, 0.01, 0.05])
@pytest.mark.parametrize("slow", [15, 40, 63, 100])
def test_slow_first_steps_are_left_out(slow: int, noise: float) -> None:
    """They fall from three times the later step time to twice: none is measured, and few of the others are lost."""
    lost = []
    for seed in SEEDS:
        times = noisy(400, noise, seed)
        times[:slow] *= np.linspace(3, 2, slow) * (1 + 0.2 * (np.arange(slow) // 5 % 2))
        found = find(times)
        assert found.stable
        assert found.steps > slow - 5  # to a window
        lost.append(found.steps - slow)
    assert np.median(lost) <= 5
    assert max(lost) <= 60


@pytest.mark.parametrize("noise", [0.02, 0.1, 0.3])
def test_noise_is_no_warm_up(noise: float) -> None:
    found = [find(noisy(500, noise, seed)) for seed in SEEDS]
    assert np.median([warmup.steps for warmup in found]) <= 20
    assert max(warmup.steps for warmup in found) <= 100
    assert all(warmup.stable for warmup in found)


@pytest.mark.parametrize("growth", [0.8, 1.25, 2.0])
def test_a_drift_is_no_warm_up(growth: float) -> None:
    """It would otherwise be hidden: the first steps would be left out as if they were another phase."""
    assert find(np.geomspace(0.1, 0.1 * growth, 1000)) == Warmup(10, True)


def test_outliers_are_no_warm_up() -> None:
    times = noisy(400, 0.01, 1)
    times[::37] *= 8
    assert find(times).steps == 10


def late(count: int) -> NDArray[np.float64]:
    """Steady only when more than half of the run is over."""
    times = np.geomspace(100, 1, count)
    times[int(0.7 * count) :] = 1.0
    return times


@pytest.mark.parametrize(("slow", "steps"), [(25, 60), (40, 100), (60, 400), (13, 60), (100, 1000)])
@pytest.mark.parametrize("noise", [0.0, 0.05])
def test_a_slow_plateau_at_the_start_is_left_out(slow: int, steps: int, noise: float) -> None:
    """Compilation, autotuning, a cold epoch: its steps are as even as those that count, which come later."""
    for seed in SEEDS:
        times = noisy(steps, noise, seed)
        times[:slow] *= 5
        found = find(times)
        assert found.stable
        assert slow <= found.steps <= slow + 5
        assert found.slower is not None
        assert 2.5 < found.slower < 6


def test_two_plateaus_are_left_out() -> None:
    times = np.concatenate([[300.0], np.full(39, 3.0), np.full(20, 1.5), np.ones(140)])
    found = find(times)
    assert (found.steps, found.stable, found.slower) == (60, True, pytest.approx((30 * 3 + 20 * 1.5) / 50))


@pytest.mark.parametrize("slow", [55, 80])
def test_a_slow_plateau_of_most_of_the_run_is_not_steady(slow: int) -> None:
    """It may be the training, and what is later a change of something else."""
    times = noisy(100, 0.02, 1)
    times[:slow] *= 5
    assert (find(times).steps, find(times).stable) == (50, False)


def test_what_recurs_is_no_warm_up() -> None:
    """Checkpoints, the first steps of each epoch, steps in pairs: all are the training."""
    for period, slow in ((2, 1), (3, 1), (16, 1), (50, 3), (50, 12)):
        times = noisy(300, 0.02, period)
        for first in range(0, 300, period):
            times[first : first + slow] *= 4
        assert find(times) == Warmup(10, True)
        assert find(times, 0).steps <= 5  # a compiled first step may be left out


def test_a_late_slowdown_is_no_warm_up() -> None:
    for first in (100, 200, 280):
        times = noisy(300, 0.02, first)
        times[first:] *= 2
        assert find(times) == Warmup(10, True)


def test_enough_steps_are_kept() -> None:
    for count in range(1, 200):
        assert 10 <= find(late(count)).steps <= max(10, min(count // 2, count - 30))
    assert find(late(150)) == Warmup(75, False)


def test_too_few_steps_to_tell() -> None:
    assert find(np.full(19, 0.1)) == Warmup(10, False)


@pytest.mark.parametrize("unit", [1e-6, 1.0, 3600.0])
def test_the_unit_does_not_matter(unit: float) -> None:
    for seed in SEEDS:
        assert find(unit * noisy(300, 0.1, seed)) == find(noisy(300, 0.1, seed))
