"""The start-up's parts, of one rank."""

from __future__ import annotations

from ddp_ladder.records.record import Rank
from ddp_ladder.records.timing import startup_of
from make_records import make_rank, make_spec


def rank(number: int, **startup_s: float | None) -> Rank:
    return make_rank(make_spec("1x4"), number, 0.1, ["node0"]).replace(startup_s=startup_s)


NAMES = ("spawn_s", "import_torch_s", "process_group_s", "script_s", "first_step_s", "s", "compile_s")


def parts(*ranks: Rank) -> list[float | None]:
    found = startup_of(ranks)
    assert found is not None
    return [found[f"startup_{name}"] for name in NAMES]


def test_the_parts_are_those_of_the_rank_that_took_longest_and_add_up() -> None:
    early = rank(0, spawn=1.0, import_torch=2.0, process_group=9.0, first_step=0.5, compile=0.25, total=14.0)
    late = rank(1, spawn=4.0, import_torch=6.0, process_group=0.125, first_step=0.75, compile=0.5, total=14.25)
    assert parts(early, late) == parts(late, early) == [4.0, 6.0, 0.125, 3.375, 0.75, 14.25, 0.5]


def test_what_was_not_measured_is_the_scripts_and_never_negative() -> None:
    """Such as the process group of the plain baseline; the total, by another clock, may be shorter than the parts."""
    plain = rank(0, spawn=1.0, import_torch=2.0, process_group=None, first_step=0.5, total=4.0)
    assert parts(plain) == [1.0, 2.0, None, 0.5, 0.5, 4.0, None]
    assert parts(rank(0, spawn=1.0, import_torch=2.0, first_step=0.5, total=3.499))[3] == 0


def test_a_rank_that_never_stepped_is_left_out() -> None:
    assert startup_of((rank(0, total=None),)) is None
    assert parts(rank(0, spawn=1.0, total=2.0), rank(1, spawn=5.0, total=None))[0] == 1
