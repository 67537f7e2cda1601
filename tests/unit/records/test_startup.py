"""The start-up's parts, of one rank."""

from __future__ import annotations

import pytest
from ddp_ladder.records.record import Rank
from ddp_ladder.records.timing import StartUp, startup_of
from make_records import make_rank, make_spec


def rank(number: int, **startup_s: float | None) -> Rank:
    return make_rank(make_spec("1x4"), number, 0.1, ["node0"]).replace(startup_s=startup_s)


def test_the_parts_are_those_of_the_rank_that_took_longest_and_add_up() -> None:
    early = rank(0, spawn=1.0, import_torch=2.0, process_group=9.0, first_step=0.5, compile=0.25, total=14.0)
    late = rank(1, spawn=4.0, import_torch=6.0, process_group=0.125, first_step=0.75, compile=0.5, total=14.25)
    for ranks in ((early, late), (late, early)):
        startup = startup_of(ranks)
        assert startup == StartUp(4.0, 6.0, 0.125, 3.375, 0.75, 14.25, 0.5)
        assert sum((4.0, 6.0, 0.125, 3.375, 0.75)) == startup.total_s


def test_what_was_not_measured_is_the_scripts() -> None:
    """Such as the process group of the plain baseline; the total is then no smaller."""
    startup = startup_of([rank(0, spawn=1.0, import_torch=2.0, process_group=None, first_step=0.5, total=4.0)])
    assert startup == StartUp(1.0, 2.0, None, 0.5, 0.5, 4.0, None)


def test_two_clocks_make_no_negative_time() -> None:
    startup = startup_of([rank(0, spawn=1.0, import_torch=2.0, first_step=0.5, total=3.499)])
    assert startup
    assert startup.script_s == 0


@pytest.mark.parametrize("ranks", [(), (rank(0, total=None),)])
def test_without_a_first_step_there_is_no_start_up(ranks: tuple[Rank, ...]) -> None:
    assert startup_of(ranks) is None


def test_a_rank_that_never_stepped_is_left_out() -> None:
    startup = startup_of([rank(0, spawn=1.0, total=2.0), rank(1, spawn=5.0, total=None)])
    assert startup
    assert (startup.spawn_s, startup.total_s) == (1, 2)
