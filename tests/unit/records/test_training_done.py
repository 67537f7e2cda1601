"""Whether two runs did as much training as the same settings ask for."""

from __future__ import annotations

from typing import Any

import pytest
from ddp_ladder.records.fingerprint import differences, same_training
from ddp_ladder.records.record import Record, Source
from make_records import make_record, make_spec

BATCH = 64


def did(
    scale: str,
    steps: int,
    samples: int | None = None,
    passes: int | None = None,
    *,
    ended_by: str = "script",
    source: Source = "counted",
    **fingerprint: Any,
) -> Record:
    """A run of ``steps``. samples: of all ranks; a full batch of each in every step unless given."""
    spec = make_spec(scale)
    record = make_record(spec, fingerprint={"passes": passes, **fingerprint})
    total = steps * BATCH * spec.world_size if samples is None else samples
    assert record.throughput is not None
    ranks = tuple(
        rank.replace(steps=steps, samples=total // spec.world_size, ended_by=ended_by) for rank in record.ranks
    )
    return record.replace(ranks=ranks, throughput=record.throughput.replace(source=source))


ALIKE = {
    "counts in steps": (did("1x1", 500, passes=3), did("2x4", 500, passes=24)),
    "counts in passes": (did("1x1", 320, passes=10), did("1x4", 80, passes=10)),
    "strong, in passes": (did("1x1", 320, 20_480, 10), did("1x4", 320, 20_480, 10)),
    "drops the rest of each pass": (did("1x1", 150, 9_600, 10), did("2x4", 10, 5_120, 10)),
    "fills up each pass": (did("1x1", 160, 10_000, 10), did("2x4", 20, 10_000, 10)),
    "a budget of samples": (did("1x1", 1_000, passes=7), did("1x8", 126, passes=8)),
    "batches by length": (did("1x1", 512, 30_000, 5), did("1x1", 498, 30_000, 5)),
    "skipped steps": (did("1x1", 500, passes=5), did("1x1", 490, passes=5)),
    "passes not seen": (did("1x1", 320), did("1x4", 64)),
    "cut by steps": (did("1x1", 200, passes=1, ended_by="max_steps"), did("1x4", 160, passes=2)),
    "both cut by time": (did("1x1", 900, ended_by="max_seconds"), did("1x4", 60, ended_by="max_seconds")),
    "cut by time": (did("1x1", 900, ended_by="max_seconds"), did("1x4", 250, passes=2)),
    "an earlier attempt did a part": (did("1x1", 320), did("1x1", 100, goes_on=True)),
    "only the log tells": (did("1x1", 320), did("1x4", 5, source="log")),
}
APART = {
    "resumed": (did("1x1", 320, passes=10), did("1x2", 32, passes=2)),
    "resumed, strong": (did("1x1", 320, 20_480, 10), did("1x4", 64, 4_096, 2)),
    "a repeat that resumed": (did("1x1", 320, passes=10), did("1x1", 288, passes=9)),
    "few steps in a pass": (did("1x1", 160, passes=20), did("2x4", 14, 7_168, 14)),
    "passes not seen": (did("1x1", 320), did("1x4", 40)),
    "told by the program": (did("1x1", 320, source="metrics"), did("1x4", 32, source="metrics")),
    "shorter than what was cut": (did("1x1", 900, ended_by="max_seconds"), did("1x4", 60, passes=1)),
    "ended before its maximum": (did("1x1", 200, ended_by="max_steps"), did("1x1", 100, passes=1)),
}


@pytest.mark.parametrize("name", ALIKE)
def test_as_much_training(name: str) -> None:
    one, other = ALIKE[name]
    assert same_training(one, other)
    assert same_training(other, one)
    assert differences(one, other) == ()


@pytest.mark.parametrize("name", APART)
def test_not_as_much_training(name: str) -> None:
    one, other = APART[name]
    assert not same_training(one, other)
    assert not same_training(other, one)
    (found,) = differences(one, other)
    assert found.startswith("steps: ")
    assert differences(one, other, may_differ=("steps",)) == ()


def test_both_numbers_are_named() -> None:
    here, there = did("1x1", 320, passes=10), did("1x2", 16, passes=1)
    assert differences(here, there) == ("steps: 320 (20,480 samples) at 1x1, 16 (2,048 samples) at 1x2",)
