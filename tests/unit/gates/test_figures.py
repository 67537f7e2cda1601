"""The table of figures is complete, and defines each figure once."""

from collections import Counter
from dataclasses import fields
from typing import get_args

from ddp_ladder.gates.figures import FIGURES, SCALING_CSV, columns, csv_row
from ddp_ladder.gates.points import Key, ScalePoint
from ddp_ladder.gates.scaling import scale_points
from make_records import make_failed_record, make_record, make_spec

EVERY_COLUMN = [column for figure in FIGURES for column in figure.columns]


def test_every_column_of_scaling_csv_belongs_to_exactly_one_figure() -> None:
    told = Counter(column.key for column in EVERY_COLUMN)
    assert set(told.values()) == {1}
    (point,) = scale_points([make_spec()], {})
    assert sorted(csv_row(point)) == sorted(SCALING_CSV)


def test_every_figure_of_a_point_has_a_column() -> None:
    assert {*get_args(Key)} == {column.key for column in columns("csv")} - {field.name for field in fields(ScalePoint)}


def test_every_figure_of_a_run_is_read_from_its_record() -> None:
    record = make_record(make_spec("1x2"))
    nothing = make_failed_record(make_spec("1x2"))
    for column in columns("runs"):
        assert column.of_run(nothing) is None
        assert column.text(None) == "\u2013"
    shown = {column.heading: column.text(column.of_run(record)) for column in columns("runs") if column.of_run}
    assert (shown["steps measured"], shown["samples/s"], shown["peak memory"]) == ("120", "1,000", "412")


def test_the_headroom_is_what_the_rank_with_the_most_memory_did_not_use() -> None:
    record = make_record(make_spec("1x2", device="cuda"))
    more = record.ranks[1].replace(peak_memory_bytes={"host": 1, "device": 29_400_000_000})
    headroom = next(column for column in columns("usage") if column.key == "memory_headroom_fraction")
    assert headroom.of_run(record) == 0.75
    assert headroom.of_run(record.replace(ranks=(record.ranks[0], more))) == 0.25
    unknown = tuple(rank.replace(memory_limit_bytes={}) for rank in record.ranks)
    assert headroom.of_run(record.replace(ranks=unknown)) is None
