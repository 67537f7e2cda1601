"""Where the warm-up ends, on synthetic series of steps whose answer is known."""

from __future__ import annotations

import numpy as np
import pytest
from ddp_ladder.records.warmup import Warmup, find_warmup
from numpy.typing import NDArray

SEEDS = range(40)


def noisy(count: int, noise: float, seed: int) -> NDArray[np.float64]:
    """Steps of 0.1 s with a lognormal noise."""
    return 0.1 * np.exp(np.random.default_rng(seed).normal(0, noise, count))


def find(step_time_s: NDArray[np.float64], minimum: int = 10, keep: int = 30) -> Warmup:
    return find_warmup(step_time_s, minimum, keep)


def test_equal_steps_need_no_more_than_the_minimum() -> None:
    for minimum in (0, 3, 10, 20):
        assert find(np.full(200, 0.1), minimum) == Warmup(minimum, True)


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
