"""What a rank shows to the hang watch: its phase, what moves, and its stacks."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from ddp_ladder.diagnosis.hangs import main_stack
from ddp_ladder.records.raw_models import HeartbeatHeader
from ddp_ladder.run.hangs import Seen, catches, read_heartbeat, stack_at_end, stacks
from ddp_ladder_instrument import log, progress
from ddp_ladder_instrument.progress import signs
from ddp_ladder_instrument.recorder import EARLY_STEPS, Recorder

NOTHING = Path("absent")  # of a program that reports no steps itself


def step(recorder: Recorder, each: int) -> None:
    """Train on a batch of a pass."""
    recorder.drawn(each, 0.0, 4, 0, True, -1)
    recorder.backward(0.0)
    recorder.after_step(recorder, (), {})


def test_the_phase_of_a_training() -> None:
    recorder = Recorder()
    recorder.begin()
    phases, moved = [], []

    def look(ended: bool = False) -> None:
        phases.append(signs(recorder, NOTHING, ended).phase)
        moved.append(signs(recorder, NOTHING, ended).moved)

    look()
    each = recorder.new_pass(0, -1, True)
    step(recorder, each)
    look()
    recorder.mode(False)
    look()
    recorder.mode(True)
    look()
    step(recorder, each)
    look()
    recorder.ended(each, True)
    look()
    look(ended=True)
    assert phases == ["starting", "training", "evaluating", "between passes", "training", "between passes", "ended"]
    assert len(set(moved)) == len(moved)


def test_nothing_moves_without_a_step_a_batch_or_a_backward_pass() -> None:
    recorder = Recorder()
    each = recorder.new_pass(0, -1, True)
    before = signs(recorder, NOTHING, False).moved
    assert signs(recorder, NOTHING, False).moved == before
    recorder.backward(0.0)
    after = signs(recorder, NOTHING, False).moved
    recorder.drawn(each, 0.0, 4, 0, True, -1)
    drawn = signs(recorder, NOTHING, False).moved
    recorder.joins = True
    assert len({before, after, drawn, signs(recorder, NOTHING, False).moved}) == 4


def test_a_step_in_eval_mode_ends_it_though_the_machine_sees_several_steps_at_once() -> None:
    recorder = Recorder()
    recorder.begin()
    each = recorder.new_pass(0, -1, True)
    for _ in range(2 * EARLY_STEPS):
        step(recorder, each)
    recorder.mode(False)
    assert recorder.evaluating
    step(recorder, each)
    assert not recorder.evaluating


def test_what_the_device_does_moves_while_the_host_waits_for_it() -> None:
    recorder, marks = Recorder(), Marks()
    recorder.use_device(marks, lambda: False)  # type: ignore[arg-type]
    recorder.after_step(recorder, (), {})
    before = signs(recorder, NOTHING, False).moved
    marks.passed += 1
    assert signs(recorder, NOTHING, False).moved != before


class Marks:
    """Stands in for the marks of a GPU."""

    passed = 0

    def add(self) -> int:
        return 0


def test_steps_without_a_loader_or_reported_by_the_program_are_of_no_known_phase(tmp_path: Path) -> None:
    recorder = Recorder()
    reported = tmp_path / "metrics0.jsonl"
    reported.write_text("1\n")
    first = signs(recorder, reported, False)
    reported.write_text("1\n2\n")
    assert first.phase == signs(recorder, reported, False).phase == "unknown"
    assert first.moved != signs(recorder, reported, False).moved
    recorder.after_step(recorder, (), {})
    assert signs(recorder, NOTHING, False).phase == "unknown"


def add(recorder: Recorder, seconds: float) -> None:
    """Add a row of so many seconds."""
    table = recorder.machine.table
    ended_s = table.ended_at_s[-1] + seconds if table.count else 0.0
    table.add(4, 0, seconds, 0.0, ended_s, 0.0, 1, 0, 0, ended_s)


def test_the_median_is_of_the_last_steps_without_the_first() -> None:
    recorder = Recorder()
    for seconds in (100.0, *[5.0] * 50, *[1.0] * 101):
        add(recorder, seconds)
        assert (signs(recorder, NOTHING, False).step_s is None) == (recorder.steps == 1)
    assert signs(recorder, NOTHING, False).step_s == 1.0


@pytest.mark.parametrize("further_step", [False, True])
def test_the_last_throughput_is_of_steps_and_not_of_the_time_when_a_rank_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, further_step: bool
) -> None:
    monkeypatch.setattr(progress, "BEAT_S", 1000.0)
    recorder = Recorder()
    add(recorder, 0.1)
    heart = progress.Heartbeat(tmp_path, recorder, lambda: signs(recorder, NOTHING, False), lambda: 2)
    heart.start(tmp_path)
    heart._beat()
    add(recorder, 0.1)
    heart._beat()
    shown = json.loads((tmp_path / "progress.json").read_text())
    assert shown["samples_per_s"] > 0
    if further_step:  # half a second long, and shown at once
        add(recorder, 0.5)
    heart.stop()
    last = json.loads((tmp_path / "progress.json").read_text())
    assert last["samples_per_s"] == pytest.approx(2 * 4 / 0.5) if further_step else last == shown


def test_progress_counts_the_saves_that_are_written(tmp_path: Path) -> None:
    recorder = Recorder()
    heart = progress.Heartbeat(tmp_path, recorder, lambda: signs(recorder, NOTHING, False), lambda: 1)
    add(recorder, 0.1)
    for kind, saves in ((log.TORCH_SAVE, 1), (log.ASYNC_CHECKPOINT, 1), (log.CHECKPOINT, 2)):
        recorder.saved(kind, 1.0, 2.0, 10.0, False)
        recorder.feed()
        heart._show(tmp_path / "progress.json")
        assert json.loads((tmp_path / "progress.json").read_text())["saves"] == saves


SCRIPT = """
import ctypes, os, select, sys, threading
def wait():
    sys.stdin.readline()
def deep(calls):
    return deep(calls - 1) if calls else 0
how = sys.argv[1]
if how == "closes all files":
    os.closerange(3, 100)
    sys.kept = [open(f"other{number}", "w") for number in range(10)]
print(threading.active_count(), flush=True)
if how == "keeps the GIL":
    ctypes.PyDLL(None).read(0, ctypes.create_string_buffer(1), 1)
if how == "handles an exception":
    try:
        {}["lr"]
    except KeyError:
        wait()
while how == "calls" and not select.select([sys.stdin], [], [], 0)[0]:
    deep(50)
wait()
"""


def started(tmp_path: Path, text: str, how: str) -> subprocess.Popen[bytes]:
    """Return a process that runs this script as rank 3, under the instrument."""
    (tmp_path / "run.json").write_text(json.dumps({"spec_hash": "0", "job": {}, "hang": {}}))
    (tmp_path / "train.py").write_text(text)
    instrument = Path(progress.__file__).parents[1] / "instrument.py"
    return subprocess.Popen(
        [sys.executable, str(instrument), str(tmp_path / "train.py"), how],
        env={
            **os.environ,
            "DDP_LADDER_RUN": str(tmp_path / "run.json"),
            "DDP_LADDER_HEARTBEATS": str(tmp_path),
            "RANK": "3",
        },
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )


@contextmanager
def a_rank(tmp_path: Path, how: str) -> Iterator[tuple[HeartbeatHeader, Callable[[], str | None]]]:
    """Yield the heartbeat of a rank that runs SCRIPT, and a function that asks for its stacks; it then ends well."""
    file = tmp_path / "rank3.heartbeat"
    with started(tmp_path, SCRIPT, how) as rank:
        assert rank.stdin is not None
        assert rank.stdout is not None
        assert rank.stdout.readline() == b"1\n"  # the script sees no thread of ours
        beat: HeartbeatHeader = read_heartbeat(file)
        assert (beat.pid, beat.phase, beat.steps) == (rank.pid, "starting", 0)
        yield beat, lambda: stacks({3: file}, [Seen(3, beat, 70.0, "alive", rank.pid)]).get(3)
        rank.stdin.write(b"\n\n")
        rank.stdin.close()
        assert rank.wait(30) == 0


def test_the_exception_that_a_waiting_rank_handles_is_told(tmp_path: Path) -> None:
    with a_rank(tmp_path, "handles an exception") as (beat, _):
        for _ in range(200):
            if beat.handles is not None:
                break
            time.sleep(0.1)
            beat = read_heartbeat(tmp_path / "rank3.heartbeat")
    assert beat.handles == "KeyError: 'lr'"


@pytest.mark.skipif(sys.platform != "linux", reason="real-time signals are Linux's")
@pytest.mark.parametrize("how", ["keeps the GIL", "calls"])
def test_a_silent_rank_is_asked_for_its_stack_and_one_that_beats_shows_it_itself(tmp_path: Path, how: str) -> None:
    """A signal ends one process in 15,000 that calls functions just then: Python's frames are changing."""
    with a_rank(tmp_path, how) as (_, ask):
        for _ in range(200):
            time.sleep(0.1)
            text = ask()
            if text is not None and (how != "calls" or " in deep" in text):
                break
        assert text is not None
        assert main_stack(text)[-1].file.endswith("instrument.py")
        again = ask(), ask()
        assert text == again[0] == again[1] or how == "calls"
        stacks_written = (tmp_path / "rank3.heartbeat").read_text().count("(most recent call first)")
        assert stacks_written == (1 if how == "calls" else 3)


def test_a_rank_that_joins_a_process_group_is_sent_no_signal_and_shows_its_stack_itself(tmp_path: Path) -> None:
    """In torch 2.4 a signal makes the call fail."""
    recorder = Recorder()
    heart = progress.Heartbeat(tmp_path, recorder, lambda: signs(recorder, NOTHING, False), lambda: 2)
    heart.start(tmp_path)
    file = next(tmp_path.glob("*.heartbeat"))
    beat = read_heartbeat(file)
    signum = beat.signal
    try:
        for joins in (True, False):
            recorder.on_joins(joins)
            heart._beat()
            heart._beat()  # in the place of the stack before
            beat = read_heartbeat(file)
            assert beat.signal == (None if joins else signum)
            frames = main_stack(stacks({0: file}, [Seen(0, beat, 70.0, "alive", os.getpid())])[0])
            assert any(frame.function.startswith("test_a_rank_that_joins") for frame in frames)
            assert file.read_text().count("(most recent call first)") == 1
    finally:
        heart.stop()


def test_a_script_that_closes_all_files_gets_nothing_written_into_its_own(tmp_path: Path) -> None:
    with a_rank(tmp_path, "closes all files") as (beat, ask):
        for _ in range(600):  # the next beat sees it, long before anybody asks
            if beat.signal is None or not catches(beat.pid, beat.signal):
                break
            time.sleep(0.1)
        ask()
    assert [file.read_text() for file in tmp_path.glob("other*")] == [""] * 10


TERMINATED = """
import os, signal, sys

def stop(process):
    os.kill(process, signal.SIGTERM)
    signal.pause()

if sys.argv[1] == "its handler":
    signal.signal(signal.SIGTERM, lambda *_: os._exit(75))
if sys.argv[1] == "a child":
    out, into = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(into, b"1")
        stop(os.getpid())
    os.read(out, 1)
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM)
stop(os.getpid())
"""


@pytest.mark.parametrize(
    ("how", "code"), [("the system's handler", -signal.SIGTERM), ("its handler", 75), ("a child", 1)]
)
def test_a_rank_that_sigterm_ends_shows_where_it_stood(tmp_path: Path, how: str, code: int) -> None:
    """Not one that handles it, whose stack was asked for before, and not for a child of its own."""
    with started(tmp_path, TERMINATED, how) as rank:
        assert rank.wait(30) == code
    stood = stack_at_end(tmp_path / "rank3.end")
    assert [line.rpartition(" in ")[2] for line in stood][:2] == (["stop", "<module>"] if code < 0 else [])
