from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from ddp_ladder.common.files import write_json
from ddp_ladder.common.formats import NARROW_SPACE
from ddp_ladder.records.record import FailureKind
from ddp_ladder.run import progress
from ddp_ladder.run.progress import (
    Console,
    LinkConsole,
    Progress,
    RunConsole,
    outcome,
    progress_in,
    read_progress,
    state,
)
from make_jobs import make_chain
from make_records import make_failed_record, make_plan_of, make_record, make_spec


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


def at(step: int, elapsed_s: float = 6.0, rate: float | None = 1240.4) -> dict[str, Any]:
    return {"step": step, "samples_per_s": rate, "elapsed_s": elapsed_s, "updated_at_s": 1.8e9}


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
    ],
)
def test_state(now: dict[str, Any] | None, total: int | None, text: str) -> None:
    assert state(now and Progress.from_json(now), total, 600.0) == text


def test_lines_in_a_pipe(clock: Clock, tmp_path: Path) -> None:
    stream, path = io.StringIO(), tmp_path / "progress.json"
    console = RunConsole(3, stream)
    first, second, third = (make_spec("1x2", repeat=k) for k in (1, 2, 3))
    console.reused(first)
    console.started(second)
    for _ in range(3):  # nothing has changed after the first look
        clock.now_s += 11
        console.follow(path, 400, 600.0)
    for step in range(1, 31):  # a line at the first step, then every 10 s
        clock.now_s += 1
        write_json(path, at(step, float(step)))
        console.follow(path, 400, 600.0 - step)
    console.ended(make_record(second))
    console.started(third)
    console.ended(make_failed_record(third))
    assert stream.getvalue().splitlines() == [
        "stage2 1x2 [1/3] default/weak/r1: finished earlier, kept",
        "stage2 1x2 [2/3] default/weak/r2: started",
        "stage2 1x2 [2/3] default/weak/r2: starting, at most 10 min 00 s left",
        "stage2 1x2 [2/3] default/weak/r2: step 1 of 400, 1,240 samples/s, at most 9 min 59 s left",
        "stage2 1x2 [2/3] default/weak/r2: step 11 of 400, 1,240 samples/s, 7 min 08 s left",
        "stage2 1x2 [2/3] default/weak/r2: step 21 of 400, 1,240 samples/s, 6 min 38 s left",
        "stage2 1x2 [2/3] default/weak/r2: 1,000 samples/s, 120 steps measured, 128.0 ms per step, 22 s in all",
        "stage2 1x2 [3/3] default/weak/r3: started",
        "stage2 1x2 [3/3] default/weak/r3: FAILED: the script raised an exception: "
        "rank 1: RuntimeError: connection reset by peer",
    ]
    assert (
        outcome(make_failed_record(first, "time limit", "it took too long")) == "FAILED: time limit: it took too long"
    )


def test_a_status_line_in_a_terminal_ends_as_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    stream, spec = Terminal(), make_spec("1x2")
    console = RunConsole(1, stream)
    console.started(spec)
    console.say("warning")
    assert stream.getvalue().endswith("\r\x1b[Kwarning\nstage2 1x2 [1/1] default/weak/r1 starting")
    write_json(tmp_path / "progress.json", at(120))
    console.follow(tmp_path / "progress.json", 400, 600.0)
    assert "step 120 of 400" in stream.getvalue()
    monkeypatch.setenv("COLUMNS", "40")
    console.follow(tmp_path / "progress.json", 400, 600.0)
    assert len(stream.getvalue().rpartition("\r\x1b[K")[2]) == 39
    monkeypatch.setenv("COLUMNS", "120")
    console.ended(make_record(spec))
    last = stream.getvalue().rpartition("\r\x1b[K")[2]
    assert last.startswith("stage2 1x2 [1/1] default/weak/r1: 1,000 samples/s, ")
    assert last.endswith(" s\n    in all\n")  # 96 columns are used of 120
    assert stream.getvalue().count("\n") == 3


@pytest.mark.parametrize("content", ["", '{"step": 1, "elap', "[]", '{"step": "1", "elapsed_s": 1}', "\x00" * 60])
def test_a_damaged_file_costs_the_run_nothing(tmp_path: Path, content: str) -> None:
    path, stream = tmp_path / "progress.json", Terminal()
    path.write_text(content)
    with pytest.raises(ValueError, match=r"."):
        read_progress(path)
    console = RunConsole(1, stream)
    console.started(make_spec("1x1"))
    console.follow(path, 400, 60.0)
    assert stream.getvalue().endswith("r1 starting, at most 1 min 00 s left")


@pytest.mark.parametrize("encoding", ["ascii", "utf-8"])
def test_what_a_terminal_cannot_print_is_replaced(encoding: str) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding, errors="strict")
    Console(stream).say("größer \u2265 1 \ud800 \x1b[31mred\x1b[0m\x07 \x1b]0;title\x07a\rb\x9b2J\x1bc")
    stream.seek(0)
    text = stream.read()
    assert text.startswith("gr")
    assert text.endswith("red ab2J\n")


def link_console(stream: io.StringIO, promised: float | None = 1378.0) -> LinkConsole:
    chain, job = make_chain(up_to_hours=0.2), make_plan_of([make_spec("1x2", device="cuda")]).jobs[0]
    return LinkConsole(3, promised, lambda held_s: chain.used(0.1 + held_s / 1800, job), True, stream)


def test_the_lines_of_a_link_compare_it_with_the_ladder_and_count_its_hours(clock: Clock, tmp_path: Path) -> None:
    stream, path, spec = io.StringIO(), tmp_path / "progress.json", make_spec("1x2", stage="production")
    console = link_console(stream)
    console.started(spec)
    clock.now_s += 18
    console.follow(path, None, 600.0)
    write_json(path, at(656))
    console.follow(path, None, 600.0)
    kinds: list[FailureKind] = ["saved state", "time limit", "too few steps"]
    for kind in kinds:
        failed = make_failed_record(spec)
        assert failed.failure
        console.ended(failed.replace(failure=failed.failure.replace(kind=kind), ranks=make_record(spec).ranks))
    console.ended(make_record(spec))
    console.ended(make_failed_record(spec))
    lines = stream.getvalue().splitlines()
    assert lines == [
        "production 1x2 link 3: started",
        "production 1x2 link 3: starting, 0.110 of 0.200 GPU h",
        f"production 1x2 link 3: step 656, 1,240 samples/s (90{NARROW_SPACE}% of the ladder's), 0.110 of 0.200 GPU h",
        "production 1x2 link 3: saved its state after 130 steps (exit code 75)",
        "production 1x2 link 3: its time was up after 130 steps",
        "production 1x2 link 3: the script ended with exit code 0 after 130 steps",
        "production 1x2 link 3: the script ended with exit code 0 after 130 steps",
        "production 1x2 link 3: FAILED: the script raised an exception: rank 1: RuntimeError: connection reset by peer",
    ]
    shown = [progress_in(line) for line in lines]
    assert shown == [
        None,
        lines[1].removeprefix("production 1x2 "),
        lines[2].removeprefix("production 1x2 "),
        *[None] * 5,
    ]
