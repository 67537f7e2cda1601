"""Ratios of runs in pairs and of runs made apart: how often their intervals and verdicts hold."""

from __future__ import annotations

import numpy as np
import pytest
from ddp_ladder.analysis.comparison import beyond_chance, paired, unpaired
from ddp_ladder.gates.interval import LogMean

TRUE, LADDERS = 1.1, 2000


def ladders(
    repeats: int, drift: float, within: float, variants: int = 1, ratio: float = TRUE, seed: int = 7
) -> tuple[np.ndarray, np.ndarray]:
    """Throughputs of a default, shape (LADDERS, repeats), and of variants, shape (LADDERS, variants, repeats).

    drift: relative noise that the runs of one repeat share. within: noise of each run.
    """
    generator = np.random.default_rng(seed)
    shared = 1000 * generator.lognormal(0, drift, (LADDERS, 1, repeats))
    runs = shared * generator.lognormal(0, within, (LADDERS, 1 + variants, repeats))
    return runs[:, 0], ratio * runs[:, 1:]


@pytest.mark.parametrize("repeats", [2, 3, 5, 10])
@pytest.mark.parametrize(("drift", "within"), [(0.1, 0.01), (0.0, 0.03)])
def test_the_interval_of_pairs_holds_the_truth_as_often_as_it_says(repeats: int, drift: float, within: float) -> None:
    default, variants = ladders(repeats, drift, within)
    found = [paired(here, there) for here, there in zip(variants[:, 0], default, strict=True)]
    held = [one.low <= TRUE <= one.high for one in found if one.low is not None and one.high is not None]
    assert len(held) == LADDERS if repeats > 2 else len(held) > 0.9 * LADDERS  # wider than a factor of 4: not known
    assert 0.93 <= np.mean(held) <= 0.97


def test_of_many_variants_without_a_difference_one_is_rarely_called_different() -> None:
    default, variants = ladders(3, 0.05, 0.01, variants=19, ratio=1.0)
    wrong = misses = 0
    for there, several in zip(default[:500], variants[:500], strict=True):
        found = [paired(here, there) for here in several]
        wrong += any(beyond_chance(found))
        misses += any(one.low and one.high and not one.low <= 1 <= one.high for one in found)
    assert wrong / 500 <= 0.06
    assert misses / 500 > 0.3  # so often the intervals alone would name one


def test_one_repeat_gives_a_ratio_and_no_interval() -> None:
    one = paired([1100.0], [1000.0])
    assert one.value == pytest.approx(1.1)
    assert (one.low, one.high, one.p) == (None, None, None)
    assert unpaired(LogMean.of([1100.0], [0.01]), LogMean.of([1000.0] * 3), 1).low is None
    assert beyond_chance([one, None]) == (False, False)
