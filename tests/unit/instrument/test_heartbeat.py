"""What a rank shows to the hang watch: its phase, what moves, and its stacks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from ddp_ladder.records.hang_models import Heartbeat
from ddp_ladder.records.stacks import main_stack
from ddp_ladder.run.hang_watch import read_heartbeat
from ddp_ladder.run.rank_processes import HEADER_BYTES
from ddp_ladder_instrument import heartbeat
from ddp_ladder_instrument.loops import NEVER, Loop
from ddp_ladder_instrument.metrics import ReportedSteps
from ddp_ladder_instrument.signs import signs
from ddp_ladder_instrument.step_clock import StepClock


def nothing() -> int:
    """As of a program that reports no steps itself."""
    return 0


def test_the_phase_of_a_training() -> None:
    clock, loop = StepClock(), Loop(lambda: None, NEVER)
    phases, moved = [], []

    def look(ended: bool = False) -> None:
        phases.append(signs(clock, nothing, ended).phase)
        moved.append(signs(clock, nothing, ended).moved)

    def step() -> None:
        clock.yielded(loop, 0.0, 4)
        clock.after_step(object, (), {})
        look()

    look()
    clock.timer.enter(loop, 0.0)
    step()
    clock.timer.eval_mode()
    look()
    clock.timer.train_mode()
    look()
    step()
    clock.left(loop)
    look()
    look(ended=True)
    assert phases == ["starting", "training", "evaluating", "between passes", "training", "between passes", "ended"]
    assert len(set(moved)) == len(moved)


def test_nothing_moves_without_a_step_a_batch_or_a_backward_pass() -> None:
    clock, loop = StepClock(), Loop(lambda: None, NEVER)
    clock.timer.enter(loop, 0.0)
    before = signs(clock, nothing, False).moved
    assert signs(clock, nothing, False).moved == before
    clock.before_backward()
    after = signs(clock, nothing, False).moved
    clock.yielded(loop, 0.0, 4)
    assert len({before, after, signs(clock, nothing, False).moved}) == 3


def test_steps_without_a_loader_or_reported_by_the_program_are_of_no_known_phase(tmp_path: Path) -> None:
    clock = StepClock()
    reported = tmp_path / "metrics0.jsonl"
    reported.write_text("1\n")
    grown = ReportedSteps(reported, tmp_path / "progress.json").grown
    first = signs(clock, grown, False)
    reported.write_text("1\n2\n")
    assert first.phase == signs(clock, grown, False).phase == "unknown"
    assert first.moved != signs(clock, grown, False).moved
    clock.after_step(object, (), {})
    assert signs(clock, nothing, False).phase == "unknown"


def test_the_median_is_of_the_last_steps_without_the_first() -> None:
    clock = StepClock()
    for seconds in (100.0, *[5.0] * 50, *[1.0] * 101):
        clock.table.add(4, 0, seconds, 0.0)
        assert (signs(clock, nothing, False).step_s is None) == (clock.table.count == 1)
    assert signs(clock, nothing, False).step_s == 1.0


SCRIPT = """
import os, signal, sys, threading, time
def wait():
    if sys.argv[1:]:
        os.closerange(3, 100)
        sys.kept = [open(f"other{number}", "w") for number in range(10)]
    print(threading.active_count(), flush=True)
    sys.stdin.readline()
wait()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="real-time signals are Linux's")
@pytest.mark.parametrize("closes", [False, True], ids=["", "closes all files"])
def test_a_rank_appends_its_stacks_on_its_signal(tmp_path: Path, closes: bool) -> None:
    (tmp_path / "run.json").write_text(json.dumps({"spec_hash": "0", "job": {}, "hang": {}}))
    (tmp_path / "train.py").write_text(SCRIPT)
    instrument = Path(heartbeat.__file__).parents[1] / "instrument.py"
    file = tmp_path / "ranks" / "rank3.heartbeat"
    with subprocess.Popen(
        [sys.executable, str(instrument), str(tmp_path / "train.py"), *(["closes"] if closes else [])],
        env={**os.environ, "DDP_LADDER_RUN": str(tmp_path / "run.json"), "RANK": "3"},
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as rank:
        assert rank.stdin is not None
        assert rank.stdout is not None
        assert rank.stdout.readline() == b"1\n"  # the script sees no thread of ours
        beat: Heartbeat = read_heartbeat(file)
        assert (beat.pid, beat.phase, beat.steps) == (rank.pid, "starting", 0)
        assert beat.signal is not None
        if not closes:
            os.kill(rank.pid, beat.signal)
        rank.stdin.write(b"\n")
        rank.stdin.close()
        assert rank.wait(30) == 0
    if closes:
        assert [file.read_text() for file in tmp_path.glob("other*")] == [""] * 10
    else:
        assert read_heartbeat(file).phase == "ended"
        assert "wait" in [frame.function for frame in main_stack(file.read_text()[HEADER_BYTES:], beat.thread)]
