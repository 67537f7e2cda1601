"""Which statistic a run's figure is, and where its warm-up ends: simulated trainings whose answer is known."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
from ddp_ladder.measuring.statistic import (
    PerBlock,
    Warmup,
    find_warmup,
    rates,
    recurring_error,
    statistic_of,
    step_times,
)
from ddp_ladder.measuring.timing import measure
from ddp_ladder.records.record import MEDIAN_OF_BLOCKS, SAMPLES_PER_TIME, Throughput, Timing
from ddp_ladder.records.steps import Steps
from numpy.typing import NDArray

Times = npt.NDArray[np.float64]
Draw = Callable[[np.random.Generator, int, float], tuple[Times, float]]  # step times, their mean in the long run
RUNS = 100
LENGTHS = [(100, 0.1), (100, 0.5), (300, 0.03), (64, 1.2), (1000, 0.1)]  # steps, seconds of an ordinary step
LONG = [(100, 0.5), (64, 1.2), (1000, 0.1)]  # blocks are shorter than the period of 16 steps, or there are many


def run_of(times_s: Times, samples: int = 8) -> tuple[Throughput, Timing]:
    count = len(times_s)
    steps = Steps(np.ones(count, int), np.full(count, samples), np.zeros(count), times_s, np.zeros(count))
    return measure([steps], Warmup(0, True), [], None, 9.0)


def normal(generator: np.random.Generator, steps: int, step_s: float) -> tuple[Times, float]:
    return step_s * np.maximum(0.1, generator.normal(1, 0.1, steps)), step_s


def lognormal(generator: np.random.Generator, steps: int, step_s: float) -> tuple[Times, float]:
    return step_s * generator.lognormal(0, 0.2, steps), step_s * np.exp(0.02)


def one_disturbance(generator: np.random.Generator, steps: int, step_s: float) -> tuple[Times, float]:
    times_s = step_s * generator.lognormal(0, 0.02, steps)
    times_s[generator.integers(steps)] *= 0.1 * steps
    return times_s, step_s


def drift(generator: np.random.Generator, steps: int, step_s: float) -> tuple[Times, float]:
    return step_s * generator.lognormal(0, 0.02, steps) * np.linspace(1, 1.3, steps), 1.15 * step_s


def every(period: int, factor: float) -> Draw:
    """One slow step in ``period``, the first of them anywhere in the first period."""

    def draw(generator: np.random.Generator, steps: int, step_s: float) -> tuple[Times, float]:
        times_s = step_s * generator.lognormal(0, 0.02, steps)
        times_s[generator.integers(period) :: period] *= factor
        return times_s, step_s * (period - 1 + factor) / period

    return draw


def simulated(draw: Draw, steps: int, step_s: float) -> tuple[float, float]:
    """Shares of runs with samples / time, and with the truth in the interval of the rate."""
    generator = np.random.default_rng(16)
    switched = held = 0
    for _ in range(RUNS):
        times_s, true_step_s = draw(generator, steps, step_s)
        throughput, _ = run_of(times_s)
        switched += throughput.statistic == SAMPLES_PER_TIME
        held += throughput.samples_per_s_low <= 8 / true_step_s <= throughput.samples_per_s_high
    return switched / RUNS, held / RUNS


@pytest.mark.parametrize(("steps", "step_s"), LENGTHS)
@pytest.mark.parametrize("draw", [normal, lognormal, one_disturbance, drift])
def test_scatter_drift_and_one_disturbance_leave_the_median(draw: Draw, steps: int, step_s: float) -> None:
    switched, _ = simulated(draw, steps, step_s)
    assert switched <= 0.01


@pytest.mark.parametrize(("steps", "step_s"), LONG)
@pytest.mark.parametrize("factor", [3.0, 10.0])
def test_one_slow_step_in_16_is_in_the_rate_and_its_interval(steps: int, step_s: float, factor: float) -> None:
    switched, held = simulated(every(16, factor), steps, step_s)
    assert switched == 1
    assert held > 0.95


def test_rate_and_step_time_are_sums_then() -> None:
    times_s = np.tile([*[1.0] * 15, 4.0], 4)
    throughput, timing = run_of(times_s)
    assert throughput.statistic == SAMPLES_PER_TIME
    assert throughput.samples_per_s == throughput.samples_per_s_total == pytest.approx(8 * 64 / 76)
    assert timing.step_time_s == pytest.approx(76 / 64)
    assert throughput.samples_per_s * timing.step_time_s == pytest.approx(8)
    assert run_of(times_s) == (throughput, timing)


def test_a_record_gives_back_its_samples_times_and_steps() -> None:
    generator = np.random.default_rng(4)
    throughput, timing = run_of(generator.uniform(0.01, 0.05, 233))
    assert sum(timing.blocks_steps) == 233
    rate, step = rates(throughput, timing), step_times(timing)
    assert rate.over.sum() == pytest.approx(8 * 233)
    assert step.over.sum() == rate.under.sum()
    assert float(rate.of(SAMPLES_PER_TIME)) == pytest.approx(throughput.samples_per_s_total)
    assert float(rate.of(MEDIAN_OF_BLOCKS)) == pytest.approx(throughput.samples_per_s)


def blocks(times_s: list[float]) -> PerBlock:
    return PerBlock(np.full(len(times_s), 8.0), np.array(times_s))


ONE_SLOW = [1.0, 1.01, 0.99, 3.0, 1.0, 1.0, 1.02, 0.98, 1.0, 1.0]


def test_what_recurs_in_each_repeat_counts_though_no_run_shows_it_twice() -> None:
    assert statistic_of([blocks(ONE_SLOW)]) == MEDIAN_OF_BLOCKS
    assert statistic_of([blocks(ONE_SLOW)] * 3) == SAMPLES_PER_TIME
    quiet = blocks([*ONE_SLOW[:3], 1.0, *ONE_SLOW[4:]])
    assert statistic_of([blocks(ONE_SLOW), quiet, quiet]) == MEDIAN_OF_BLOCKS


def errors_of_repeats(draw: Callable[[np.random.Generator], Times], repeats: int) -> float:
    """The median error that the repeats of a simulated training share, relative to that of its mean step."""
    generator = np.random.default_rng(4)
    found = []
    for _ in range(50):
        runs = [PerBlock(np.ones(200), draw(generator)) for _ in range(repeats)]
        found.append(recurring_error(runs))
    return float(np.median(found))


def test_the_error_of_slow_steps_that_repeats_share() -> None:
    """One step in 16 takes 5 times as long: 20 % of the time, and at random 5.5 % of error in 200 steps."""

    def at_random(generator: np.random.Generator) -> Times:
        return 1 + 4 * (generator.random(200) < 1 / 16)

    assert errors_of_repeats(at_random, 1) == pytest.approx(0.055, rel=0.15)
    assert errors_of_repeats(at_random, 10) < 0.012  # at other steps in each repeat: the repeats show it
    alike = at_random(np.random.default_rng(5))
    assert errors_of_repeats(lambda _: alike, 10) == pytest.approx(errors_of_repeats(lambda _: alike, 1))
    evenly = 1 + 4 * (np.arange(200) % 16 == 0)
    assert errors_of_repeats(lambda _: evenly, 3) < 0.02  # about one slow step of 12, which is 1.6 % of the time


# Where the warm-up ends, on series of steps


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


def test_what_recurs_is_no_warm_up() -> None:
    """Checkpoints, the first steps of each epoch, steps in pairs: all are the training."""
    for period, slow in ((2, 1), (3, 1), (16, 1), (50, 3), (50, 12)):
        times = noisy(300, 0.02, period)
        for first in range(0, 300, period):
            times[first : first + slow] *= 4
        assert find(times) == Warmup(10, True)
        assert find(times, 0).steps <= 5  # a compiled first step may be left out


def test_enough_steps_are_kept() -> None:
    for count in range(1, 200):
        assert 10 <= find(late(count)).steps <= max(10, min(count // 2, count - 30))
    assert find(late(150)) == Warmup(75, False)


def test_too_few_steps_to_tell() -> None:
    assert find(np.full(19, 0.1)) == Warmup(10, False)
