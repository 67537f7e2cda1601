"""The log of a long run: the first steps whole, then sums; joined logs; files that are none."""

from __future__ import annotations

import time

import pytest
from ddp_ladder_instrument import log
from ddp_ladder_instrument.log import BLOCK, RANK, Log, read_log
from ddp_ladder_instrument.recorder import Recorder

STEPS, WHOLE, IN_A_BLOCK = 500, 100, 50


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    """Steps of two batches of four samples each, of which all but the first are summed up."""
    monkeypatch.setattr(log, "WHOLE_STEPS", WHOLE)
    monkeypatch.setattr(log, "BLOCK_STEPS", IN_A_BLOCK)
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
    events = list(read_log(recorder.log.to_bytes()).events())
    blocks = [event for event in events if event[0] == BLOCK]
    steps, draws, backwards, samples = (sum(event[column] for event in blocks) for column in (3, 4, 5, 6))
    assert STEPS - WHOLE - 20 < steps <= STEPS - WHOLE
    assert (draws, backwards, samples) == (2 * steps, 2 * steps, 8 * steps)
    assert len(events) < 5 * (WHOLE + 20) + len(blocks) + 20


def test_logs_that_are_joined_are_a_log_of_several_ranks(recorder: Recorder) -> None:
    other = Log()
    other.begin(7)
    both = read_log(recorder.log.to_bytes() + other.to_bytes())
    assert [event[3] for event in both.events() if event[0] == RANK] == [0, 7]


@pytest.mark.parametrize("data", [b"", b"\0" * 56, b"x" * 55])
def test_what_is_no_log_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="it "):
        read_log(data)
