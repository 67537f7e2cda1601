from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from ddp_ladder.records.raw_files import Steps
from ddp_ladder.records.statistic import Warmup, median_interval
from ddp_ladder.records.timing import block_edges, measure

NO_WARMUP = Warmup(0, True)


def steps(times_s: list[float], samples: int = 8, padding: int = 0, wait_s: float = 0.0) -> Steps:
    count = len(times_s)
    return Steps(
        samples=np.full(count, samples),
        padding_samples=np.full(count, padding),
        step_time_s=np.array(times_s),
        data_wait_s=np.full(count, wait_s),
    )


@pytest.mark.parametrize(
    ("count", "step_s", "blocks", "shortest", "longest"),
    [
        (30, 0.01, 10, 3, 3),  # too short for blocks of 1 s: ten of them
        (39, 0.01, 13, 3, 3),
        (40, 5.0, 40, 1, 1),  # a step is longer than a block
        (2000, 0.01, 20, 100, 100),  # blocks of 1 s
        (5, 0.01, 5, 1, 1),  # fewer steps than blocks
        (1, 0.01, 1, 1, 1),
        (10_000, 2.0, 200, 50, 50),  # no more than 200
        (399, 2.0, 199, 2, 3),
    ],
)
def test_block_edges(count: int, step_s: float, blocks: int, shortest: int, longest: int) -> None:
    edges = block_edges(np.full(count, step_s))
    assert len(edges) == blocks
    assert (min(map(len, edges)), max(map(len, edges))) == (shortest, longest)
    assert np.concatenate(edges).tolist() == list(range(count))


def test_by_hand() -> None:
    """Two ranks, one warm-up step, twenty steps in ten blocks of two."""
    rank0 = steps([9.0, 0.25, 0.75, 0.5, 0.5, *[0.5] * 16], padding=3, wait_s=0.05)
    rank1 = steps([9.0, 0.50, 0.25, 1.0, 1.0, *[0.5] * 16], padding=3, wait_s=0.15)
    throughput, timing = measure([rank0, rank1], Warmup(1, True), [0.1, 0.3, 0.2], 4.5, 30.0)
    # First block: max(0.25 + 0.75, 0.5 + 0.25) = 1 s, not the sum of the slowest steps, 1.25 s.
    # Second: 2 s. Samples: 2 ranks x 2 steps x 8, padding not counted.
    assert throughput.blocks_samples_per_s == (32.0, 16.0, *[32.0] * 8)
    assert throughput.samples_per_s == 32.0
    assert throughput.samples_per_s_total == pytest.approx(320 / 11)
    assert timing.blocks_step_time_s == (0.5, 1.0, *[0.5] * 8)
    assert timing.step_time_s == 0.5
    assert (timing.warmup_steps, timing.measured_steps) == (1, 20)
    assert timing.data_wait_fraction == pytest.approx(20 * 0.2 / (10.0 + 10.75))
    assert timing.exposed_comm_fraction == pytest.approx(0.2 / 0.5)
    assert (timing.startup_s, timing.wall_s) == (4.5, 30.0)
    assert throughput.samples_per_s_end_to_end is None


def test_a_straggler_sets_the_pace() -> None:
    ranks = [steps([0.1] * 40), steps([0.1] * 40), steps([0.125] * 40)]
    throughput, timing = measure(ranks, NO_WARMUP, [], None, 9.0)
    assert throughput.samples_per_s == pytest.approx(24 / 0.125)
    assert timing.exposed_comm_fraction is None


@pytest.mark.parametrize(
    ("count", "outside"), [(1, 0), (2, 0), (5, 0), (6, 0), (8, 0), (9, 1), (12, 2), (20, 5), (50, 17)]
)
def test_the_intervals_ends_are_those_of_the_tables(count: int, outside: int) -> None:
    """Ranks as tabulated for the 95 % interval of a median, such as the 6th and 15th of 20 values."""
    values = np.random.default_rng(7).permutation(np.arange(1.0, count + 1))
    assert median_interval(values)[1:] == (1.0 + outside, count - outside)


@pytest.mark.parametrize("draw", ["lognormal", "pareto", "uniform"])
@pytest.mark.parametrize("count", [10, 31, 60])
def test_the_interval_covers_whatever_the_distribution(draw: str, count: int) -> None:
    generator = np.random.default_rng(11)
    true = {"lognormal": 1.0, "pareto": 2 ** (1 / 1.5) - 1, "uniform": 0.5}[draw]

    def blocks() -> Any:
        if draw == "lognormal":
            return generator.lognormal(0, 1, count)
        return generator.pareto(1.5, count) if draw == "pareto" else generator.random(count)

    inside = [low <= true <= high for _, low, high in (median_interval(blocks()) for _ in range(1000))]
    assert 0.94 < np.mean(inside) < 0.99


def test_percentiles_are_of_single_steps_of_the_slowest_rank() -> None:
    fast, slow = [0.1] * 200, [0.2] * 180 + [0.9] * 20
    _, timing = measure([steps(fast), steps(slow)], NO_WARMUP, [], None, 9.0)
    assert (timing.step_time_s_p5, timing.step_time_s_p95) == (0.2, 0.9)
    assert timing.step_time_s == pytest.approx((180 * 0.2 + 20 * 0.9) / 200)  # slow steps recur, so it is the mean


@pytest.mark.parametrize(("growth", "count"), [(1.3, 600), (0.8, 600), (1.0, 600), (1.3, 30)])
def test_drift_is_the_last_third_against_the_first(growth: float, count: int) -> None:
    times_s = np.repeat([0.1, 0.1 * np.sqrt(growth), 0.1 * growth], count // 3).tolist()
    _, timing = measure([steps(times_s)], NO_WARMUP, [], None, 9.0)
    assert timing.drift_fraction == pytest.approx(growth - 1)


def test_one_slow_block_moves_the_total_and_not_the_median() -> None:
    times_s = [0.1] * 290 + [0.4] * 10
    throughput, _ = measure([steps(times_s)], NO_WARMUP, [], None, 99.0)
    assert throughput.samples_per_s == pytest.approx(80)
    assert throughput.samples_per_s_total == pytest.approx(8 * 300 / 33)


def test_end_to_end_holds_all_that_came_after_the_first_step() -> None:
    """40 steps of 8 samples on each of two ranks, 39 of them in 10 s: half of that is validation and checkpoints."""
    ranks = [steps([3.0] + [0.125] * 39, padding=2)] * 2
    throughput, _ = measure(ranks, Warmup(10, True), [], None, 20.0, training_s=10.0)
    assert throughput.samples_per_s_end_to_end == pytest.approx(2 * 39 * 8 / 10)
    assert throughput.samples_per_s == pytest.approx(128)
