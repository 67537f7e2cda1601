from __future__ import annotations

import errno
import io
from pathlib import Path

import pytest
from ddp_ladder.common.files import write_json
from ddp_ladder.common.formats import duration
from ddp_ladder.run import progress
from ddp_ladder.run.expected_steps import Expected
from ddp_ladder.run.progress import JobConsole, RunConsole, outcome, read_progress, state
from make_records import make_failed_record, make_record, make_spec


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    """Stands in for time.monotonic."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(progress.time, "monotonic", clock)
    return clock


def at(step: int, elapsed_s: float = 6.0, rate: float | None = 1240.4) -> dict[str, float | None]:
    return {"step": step, "samples_per_s": rate, "elapsed_s": elapsed_s}


def of(total: int | None) -> Expected:
    """A run whose steps are known, or not."""
    return Expected(make_spec("1x2", max_steps=total))


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-3, "0 s"), (0, "0 s"), (45.4, "45 s"), (59.6, "1 min 00 s"), (185, "3 min 05 s"),
        (3599.7, "1 h 00 min"), (7805, "2 h 10 min"), (90_000, "25 h 00 min"),
    ],
)  # fmt: skip
def test_duration(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("now", "total", "text"),
    [
        (None, 400, "starting, at most 10 min 00 s left"),
        (at(1, 0.0, None), 400, "step 1 of 400, warming up, at most 10 min 00 s left"),
        (at(2, 20.0), 4, "step 2 of 4, 1,240 samples/s, 40 s left"),
        (at(120), 400, "step 120 of 400, 1,240 samples/s, 14 s left"),
        (at(1200), None, "step 1,200, 1,240 samples/s, at most 10 min 00 s left"),
        (at(400), 400, "step 400 of 400, 1,240 samples/s, 0 s left"),
        (at(500), 400, "step 500, 1,240 samples/s, at most 10 min 00 s left"),  # the run before made fewer
        (at(0, 0.0, None), 400, "step 0 of 400, warming up, at most 10 min 00 s left"),
    ],
)
def test_state(now: dict[str, float | None] | None, total: int | None, text: str) -> None:
    assert state(now, of(total), 600.0) == text


def test_no_progress_before_the_first_step(tmp_path: Path) -> None:
    assert read_progress(tmp_path / "progress.json") is None
    write_json(tmp_path / "progress.json", at(1))
    assert read_progress(tmp_path / "progress.json") == at(1)


def test_lines_in_a_pipe(clock: Clock) -> None:
    stream = io.StringIO()
    console = RunConsole(3, stream)
    first, second, third = (make_spec("1x2", repeat=k) for k in (1, 2, 3))
    console.reused(first)
    console.started(second)
    for step in range(1, 31):  # a line at the first step, then every 10 s
        clock.now_s += 1
        console.show(at(step, float(step)), of(400), 600.0 - step)
    console.ended(make_record(second))
    console.started(third)
    console.ended(make_failed_record(third))
    assert stream.getvalue().splitlines() == [
        "stage2 1x2 [1/3] default/weak/r1: finished earlier, kept",
        "stage2 1x2 [2/3] default/weak/r2: started",
        "stage2 1x2 [2/3] default/weak/r2: step 1 of 400, 1,240 samples/s, at most 9 min 59 s left",
        "stage2 1x2 [2/3] default/weak/r2: step 11 of 400, 1,240 samples/s, 7 min 08 s left",
        "stage2 1x2 [2/3] default/weak/r2: step 21 of 400, 1,240 samples/s, 6 min 38 s left",
        "stage2 1x2 [2/3] default/weak/r2: 1,000 samples/s, 120 steps measured, 128.0 ms per step, 22 s in all",
        "stage2 1x2 [3/3] default/weak/r3: started",
        "stage2 1x2 [3/3] default/weak/r3: FAILED: the script raised an exception: "
        "rank 1: RuntimeError: connection reset by peer",
    ]


def test_a_slow_start_is_reported_too(clock: Clock) -> None:
    stream = io.StringIO()
    console = RunConsole(1, stream)
    console.started(make_spec("1x2"))
    clock.now_s += 11
    console.show(None, of(None), 90.0)
    assert stream.getvalue().endswith("r1: starting, at most 1 min 30 s left\n")


@pytest.mark.parametrize("total", [400, None])
def test_a_bar_in_a_terminal_ends_as_one_line(total: int | None) -> None:
    stream = Terminal()
    console = RunConsole(1, stream)
    spec = make_spec("1x2")
    console.started(spec)
    console.show(None, of(total), 600.0)
    console.show(at(120), of(total), 600.0)
    assert "step 120" in stream.getvalue()
    assert "\n" not in stream.getvalue()
    console.ended(make_record(spec))
    last = stream.getvalue().rpartition("\r\x1b[K")[2]
    assert last.startswith("stage2 1x2 [1/1] default/weak/r1: 1,000 samples/s, ")
    assert stream.getvalue().count("\n") == 1


def test_the_bar_fits_into_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    stream = Terminal()
    console = RunConsole(1, stream)
    console.started(make_spec("1x2"))
    console.show(at(200), of(400), 600.0)
    line = stream.getvalue().rpartition("\r\x1b[K")[2]
    assert len(line) == 99
    assert abs(line.count(progress.BAR) - line.count(progress.REST)) <= 1
    console.show(at(500), of(400), 600.0)  # the run before made fewer: the end is not known
    assert progress.BAR not in stream.getvalue().rpartition("\r\x1b[K")[2]
    monkeypatch.setenv("COLUMNS", "40")
    console.show(at(200), of(400), 600.0)
    assert len(stream.getvalue().rpartition("\r\x1b[K")[2]) == 39


def test_messages_do_not_tear_the_bar() -> None:
    stream = Terminal()
    console = RunConsole(1, stream)
    console.started(make_spec("1x2"))
    console.say("interrupted")
    assert stream.getvalue().endswith("\r\x1b[Kinterrupted\nstage2 1x2 [1/1] default/weak/r1 starting")
    console.ended(make_record(make_spec("1x2")))


def test_outcomes() -> None:
    record = make_failed_record(make_spec("1x2"), "time limit", "it took too long")
    assert outcome(record) == "FAILED: time limit: it took too long"


@pytest.mark.parametrize(
    "content",
    [
        "", '{"step": 1, "elap', "[]", "null", "{}", '{"step": "1", "elapsed_s": 1}', '{"step": 1, "elapsed_s": null}',
        '{"step": 1, "elapsed_s": 1, "samples_per_s": "fast"}', '{"step": true, "elapsed_s": 1}', "\x00" * 60,
    ],
)  # fmt: skip
def test_a_foreign_file_is_reported_once_and_the_run_goes_on(tmp_path: Path, clock: Clock, content: str) -> None:
    path, stream = tmp_path / "progress.json", io.StringIO()
    path.write_text(content)
    console = RunConsole(2, stream)
    for repeat in (1, 2):
        console.started(make_spec("1x1", repeat=repeat))
        for _ in range(3):
            clock.now_s += 60
            console.follow(path, of(400), 60.0)
        write_json(path, at(1))
        clock.now_s += 60
        console.follow(path, of(400), 60.0)
        path.write_text(content)
    said = stream.getvalue().splitlines()
    assert [line.split(": ", 1)[1].split(",")[0] for line in said] == [
        "started", "the progress cannot be shown", "step 1 of 400",
    ] * 2  # fmt: skip
    assert str(path) in said[1]


@pytest.mark.parametrize(
    "error", [OSError(errno.ESTALE, "Stale file handle"), OSError(errno.EIO, "Input/output error")]
)
def test_a_file_system_that_is_gone_costs_the_run_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: OSError
) -> None:
    """The errors of a network file system, which cannot be had here."""

    def gone(_: Path) -> None:
        raise error

    monkeypatch.setattr(progress, "read_json", gone)
    stream = io.StringIO()
    console = RunConsole(1, stream)
    console.started(make_spec("1x1"))
    for _ in range(3):
        console.follow(tmp_path, of(400), 60.0)
    assert stream.getvalue().count(str(error.strerror)) == 1


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_what_a_terminal_cannot_print_is_replaced(encoding: str) -> None:
    for console in (RunConsole, JobConsole):
        stream = io.TextIOWrapper(io.BytesIO(), encoding, errors="strict")
        (console(1, stream) if console is RunConsole else console(stream)).say("größer \u2265 1 \ud800")
        stream.seek(0)
        assert stream.read().startswith("gr")


def test_escapes_do_not_reach_the_terminal() -> None:
    stream = io.StringIO()
    RunConsole(1, stream).say("\x1b[31mred\x1b[0m\x07 \x1b]0;title\x07a\rb\x9b2J\x1bc\nnext")
    assert stream.getvalue() == "red ab2J\nnext\n"
