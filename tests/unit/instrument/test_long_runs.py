"""The rows of a long run: single steps, then blocks, in little memory; its log, which keeps the first steps."""

from __future__ import annotations

import itertools
import time
from collections import Counter

import pytest
from ddp_ladder_instrument import log
from ddp_ladder_instrument import table as table_module
from ddp_ladder_instrument.contract import HEADER, MOST_ROWS
from ddp_ladder_instrument.log import COLUMNS, WHOLE_EVENTS, read_log
from ddp_ladder_instrument.machine import Batches, Judged
from ddp_ladder_instrument.recorder import Recorder
from ddp_ladder_instrument.table import DdpTimes, StepTable


def add(table: StepTable, steps: int) -> None:
    """Add steps of 1, 2, 3, ... samples, which take 10 ms each."""
    for k in range(table.count + 1, table.count + steps + 1):
        table.add(k, 1, 0.01, 0.001, k, 0.002, 1, 1, 1, k)


def test_a_million_steps_take_few_megabytes() -> None:
    table = StepTable()
    add(table, 10**6)
    assert (table.count, table.block, table.all_samples) == (10**6, 128, 10**6 * (10**6 + 1) // 2)
    in_memory = sum(len(each) * each.itemsize for each in table._columns)
    in_files = sum(len(each) * 8 for each in table.columns())
    # A log's events, and of each as many bytes for its mark.
    log_bytes = 2 * WHOLE_EVENTS * COLUMNS * 8
    assert max(in_memory, in_files) < 2 * 10**6
    assert in_files + log_bytes < 11 * 10**6
    assert in_memory + log_bytes / 2 < 10 * 10**6
    assert len(table.samples) <= MOST_ROWS
    assert sum(table.samples) == table.all_samples


@pytest.fixture
def few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_module, "SINGLE_ROWS", 8)
    monkeypatch.setattr(table_module, "MOST_ROWS", 16)


@pytest.mark.usefixtures("few_rows")
@pytest.mark.parametrize(
    ("steps", "sizes"),
    [
        (16, [1] * 16),
        (17, [1] * 8 + [2] * 4 + [1]),
        (24, [1] * 8 + [2] * 8),
        (25, [1] * 8 + [4] * 4 + [1]),
        (39, [1] * 8 + [4] * 7 + [3]),
        (41, [1] * 8 + [8] * 4 + [1]),
    ],
)
def test_the_number_of_steps_alone_decides_the_rows(steps: int, sizes: list[int]) -> None:
    table = StepTable()
    add(table, steps)
    assert table.sizes() == sizes
    ends = [*itertools.accumulate(sizes)]
    columns = dict(zip(HEADER, table.columns(), strict=True))
    assert [*columns["step"]] == [*columns["ended_at_s"]] == ends
    assert [*columns["samples"]] == [sum(range(end - size + 1, end + 1)) for end, size in zip(ends, sizes, strict=True)]
    assert [*columns["collectives_s"]] == pytest.approx([0.002 * size for size in sizes])
    again = StepTable.of_rows([*zip(*table._columns, strict=True)], table.count)
    assert (again.sizes(), again.columns()[1]) == (sizes, table.columns()[1])
    for first in range(steps + 1):  # the row that begins with the next step, or later
        row = table.row_after(first)
        assert sum(sizes[:row]) >= first
        assert row == 0 or sum(sizes[: row - 1]) < first


@pytest.mark.usefixtures("few_rows")
def test_further_steps_do_not_change_a_copy_and_a_step_may_last_longer() -> None:
    table = StepTable()
    add(table, 18)
    copy = table.copy()
    add(table, 30)
    assert (copy.count, copy.sizes()[-2:]) == (18, [2, 2])
    table.extend(0, 0, 0.5, 0.1, 99.0, 0.2, 1, 0, 0, 99.0)
    assert (table.ended_at_s[-1], table.recent_s[-1]) == (99.0, 0.51)
    assert table.step_time_s[-1] == pytest.approx(0.01 * table.sizes()[-1] + 0.5)
    columns = (table.step_time_s, table.data_wait_s, table.collectives_s)
    sums = [table.all_step_s, table.all_wait_s, table.all_collectives_s]
    assert sums == pytest.approx([sum(column) for column in columns])


@pytest.mark.usefixtures("few_rows")
@pytest.mark.parametrize("judged_steps", [5, 12])
def test_rows_of_a_log_are_continued_by_those_that_were_counted_live(judged_steps: int) -> None:
    judged, live = StepTable(), StepTable()
    add(live, 25)
    for k in range(judged_steps):
        judged.add(0, 0, 1.0, 0.0, k, 0.0, 1, 1, 1, k)
    judged.ddp[3] = DdpTimes(1.0, 1.0, 1.0, 1.0)
    single = min(judged_steps, 8)
    judged.continue_with(live, single)
    assert judged.sizes() == live.sizes()
    assert judged.samples.tolist() == [0] * single + live.samples.tolist()[single:]
    assert [*judged.ddp] == [3]


@pytest.mark.usefixtures("few_rows")
def test_phases_of_a_long_run_are_told_once_also_where_the_log_reaches_into_its_blocks() -> None:
    judged, live = StepTable(), StepTable()
    add(judged, 12)
    add(live, 25)
    starts_s = [live.ended_at_s[2], live.ended_at_s[8], live.ended_at_s[-1]]  # of a single row, and of blocks
    spans = [(start_s, start_s + 0.001) for start_s in starts_s]
    before, whole = (
        {
            "epoch_steps": steps, "validations_s": [], "without_a_pass_s": [], "saves_s": some, "rests_s": some,
            "compiles_s": some, "saves": None,
        }
        for steps, some in (([1, 11], spans[:2]), ([1, 11, 21], spans))
    )  # fmt: skip
    rest = (0.0, {}, Counter(), -1, {}, Batches(), False, {})
    joined = Judged(judged, before, *rest).join(Judged(live, whole, *rest))
    assert joined.phases == whole


STEPS, WHOLE = 500, 100


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    """Steps of two batches of four samples each, of which the log keeps the first ones."""
    monkeypatch.setattr(log, "WHOLE_STEPS", WHOLE)
    recorder = Recorder()
    recorder.begin()
    each = recorder.new_pass(0, -1, True)
    recorder.made(each, time.perf_counter())
    for step in range(STEPS):
        for _ in range(2):
            begin_s = time.perf_counter()
            recorder.drawn(each, begin_s, 4, 0, True, -1)
            recorder.backward(begin_s)
        recorder.after_step(recorder, (), {})
        if step == STEPS - 10:
            recorder.mode(False)
            recorder.mode(True)
    recorder.end()
    return recorder


def test_a_long_run_has_all_rows_and_phases_and_a_short_log(recorder: Recorder) -> None:
    judged = recorder.judged()
    assert list(judged.table.samples) == [8] * STEPS
    assert (judged.batches.drawn, judged.batches.untrained) == (2 * STEPS, 0)
    assert len(judged.phases["validations_s"]) == 1
    kinds = [event[0] for event in read_log(recorder.log.to_bytes()).events()]
    assert WHOLE <= kinds.count(log.STEP) < WHOLE + 20
    assert len(kinds) < 5 * (WHOLE + 20) + 20


@pytest.mark.parametrize("data", [b"", b"\0" * 56, b"x" * 55])
def test_what_is_no_log_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="it "):
        read_log(data)
