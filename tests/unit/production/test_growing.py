"""Whether memory that grows would fill a node or a GPU before a link ends: series whose truth is known."""

from __future__ import annotations

import random

from ddp_ladder.production.slower import LEAST_WINDOWS, TREND_WINDOWS, Growth, growth_per_s
from hypothesis import given
from hypothesis import strategies as st

GB = 1e9
SIZE = 500 * GB


@given(
    rate=st.floats(0.02, 5.0),
    kind=st.sampled_from(["leak", "flat", "plateau", "steps"]),
    windows=st.integers(LEAST_WINDOWS, TREND_WINDOWS),
    seed=st.integers(0, 99),
)
def test_a_leak_is_told_with_its_rate_and_what_fills_up_or_swings_is_not(
    rate: float, kind: str, windows: int, seed: int
) -> None:
    """rate: GB a minute; noise of up to a third of a window's growth; each tenth window has a save of 20 GB."""
    rolls = random.Random(seed)
    level = {
        "leak": lambda minute: rate * minute,
        "flat": lambda minute: 0.0,
        "plateau": lambda minute: rate * min(minute, 0.4 * windows),
        "steps": lambda minute: rate * windows * (minute % 5 == 0),
    }[kind]
    series = [
        (60.0 * minute, (100 + level(minute) + rolls.uniform(0, rate / 3) + 20 * (minute % 10 == 3)) * GB)
        for minute in range(windows)
    ]
    found = growth_per_s(series, SIZE)
    if kind != "leak":
        assert found is None
    elif rate * windows > 8:  # more than LEAST_GROWTH by far
        assert found is not None
        assert 0.8 < found * 60 / (rate * GB) < 1.25


def test_each_place_is_told_once_and_only_if_it_is_full_before_the_link_ends() -> None:
    growth, said = Growth(), []
    for minute in range(60):
        memory = {"n1": ((100 + 2.0 * minute) * GB, SIZE), "GPU 0 of n1": ((10 + 0.1 * minute) * GB, 80 * GB)}
        said += growth.add(60.0 * minute, memory, 4 * 3600.0)
    (line,) = said
    assert line.startswith("the memory of n1 grows by 120 GB an hour, and has 138 of 500 GB: full at 1970-01-01 ")
    (line,) = growth.add(3600.0, memory, 1e6)  # of a longer link; n1 has been told
    assert "the memory of GPU 0 of n1 grows by 6.00 GB an hour, and has 15.9 of 80.0 GB" in line
