"""The log of a long run, which keeps the first steps; joined logs; files that are none."""

from __future__ import annotations

import time

import pytest
from ddp_ladder_instrument import log
from ddp_ladder_instrument.log import RANK, Log, read_log
from ddp_ladder_instrument.recorder import Recorder

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


def test_logs_that_are_joined_are_a_log_of_several_ranks(recorder: Recorder) -> None:
    other = Log()
    other.begin(7)
    both = read_log(recorder.log.to_bytes() + other.to_bytes())
    assert [event[3] for event in both.events() if event[0] == RANK] == [0, 7]


@pytest.mark.parametrize("data", [b"", b"\0" * 56, b"x" * 55])
def test_what_is_no_log_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="it "):
        read_log(data)
