"""Windows of a run from sums of its ranks."""

from __future__ import annotations

import numpy as np
import pytest
from ddp_ladder.production.slower import Sums, known_so_far, sums_of, window_of
from ddp_ladder.records.raw_models import RankTotals
from ddp_ladder_instrument.contract import TOTALS
from hypothesis import given
from hypothesis import strategies as st

seconds = st.floats(0.001, 1.0)


def sums(at_s: float, steps: int, step_s: float, wait_s: float = 0.0, ranks: int = 2, timed: int = 0) -> Sums:
    """Return the sums of ranks that have made these steps of 8 samples, of which DDP has timed some."""
    ddp = (timed, timed * step_s / 4, timed * step_s / 4, timed * 0.3 * step_s, timed * 0.1 * step_s)
    totals = (at_s, steps, 8 * steps, steps * step_s, steps * wait_s, 0.0, *ddp)
    assert len(totals) == len(TOTALS)
    return sums_of([RankTotals(rank=rank, totals=totals) for rank in range(ranks)], ranks)


@given(st.integers(2, 1000), st.integers(1, 1000), seconds, st.integers(1, 5))
def test_a_window_has_the_means_of_its_steps(first: int, more: int, step_s: float, ranks: int) -> None:
    before = sums(100.0, first, 2 * step_s, ranks=ranks, timed=1)
    now = before + sums(60.0, more, step_s, step_s / 10, ranks, timed=more)
    window = window_of(before, now)
    assert window is not None
    assert (window.began_at_s, window.ended_at_s, window.steps) == (100.0, 160.0, more)
    assert window.samples_per_s == pytest.approx(8 * ranks / step_s)
    assert (window.step_time_s, window.data_wait_s) == pytest.approx((step_s, step_s / 10))
    assert window.exposed_comm_s == pytest.approx(0.2 * step_s)


def test_what_is_not_known_stays_unknown() -> None:
    before, now = sums(100.0, 10, 0.1), sums(160.0, 20, 0.1)
    window = window_of(before, now)
    assert window is not None
    assert window.exposed_comm_s is None  # DDP timed no step
    assert window_of(before, before) is None  # a validation
    now[1] = np.nan
    window = window_of(before, known_so_far(before, now))
    assert window is not None
    assert (window.steps, window.samples_per_s) == (10, None)


def test_a_rank_that_was_not_read_once_is_in_the_next_window() -> None:
    first, second, third = sums(100.0, 10, 0.1), sums(160.0, 20, 0.1), sums(220.0, 30, 0.1)
    second[1] = np.nan
    window = window_of(known_so_far(first, second), third)
    assert window is not None
    assert window.samples_per_s == pytest.approx(160)


def test_the_rank_that_waits_least_for_others_is_named() -> None:
    before, now = sums(100.0, 10, 0.1, ranks=4, timed=10), sums(160.0, 20, 0.1, ranks=4, timed=20)
    now[2, TOTALS.index("comm_s")] -= 0.1
    window = window_of(before, now)
    assert window is not None
    assert (window.waits_least, window.exposed_comm_s) == (2, pytest.approx(0.01))
