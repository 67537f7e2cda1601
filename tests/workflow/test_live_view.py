"""The live view of a real climb on this machine: on a terminal of 80x24, in a pipe, and as it ends."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from make_live import climb_to
from make_runs import write_ladder
from project_copy import ONE_STAGE, Checkout, copy_project, environment, loop_with
from watch_screen import ANYONE, WATCH, Screen

ENDS: dict[str, tuple[Callable[[Screen], None], int]] = {
    "Ctrl-C": (lambda screen: screen.press(b"\x03"), 0),
    "SIGTERM": (lambda screen: screen.process.terminate(), 128 + signal.SIGTERM),
}


@dataclass
class Watched:
    """A climb of two repeats of 60 steps, what its views showed, and what it printed itself in a pipe."""

    checkout: Checkout
    rows: list[str] = field(default_factory=list)
    ends: dict[str, tuple[int, Screen]] = field(default_factory=dict)
    once: str = ""
    climb: str = ""


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    """One climb with several views at a time, which do not disturb each other."""
    seen = Watched(copy_project(tmp_path_factory.mktemp("project")))
    seen.checkout.configure(stages=ONE_STAGE, repeats=2)
    seen.checkout.without_torch(loop_with("time.sleep(0.2)"))  # but for its own
    results = seen.checkout.results
    with ExitStack() as stack:
        screen = stack.enter_context(closing(Screen(results)))
        screen.await_text("waits for a start of snakemake")  # before its first line is wrapped
        climb = stack.enter_context(seen.checkout.start("--cores", "all"))
        stack.callback(climb.terminate)
        screen.await_text("  step ")
        screen.await_text(" s ago")
        seen.rows = screen.rows
        others = {name: stack.enter_context(closing(Screen(results))) for name in ENDS}
        for name, other in others.items():
            other.await_text("ddp-ladder: ")
            ENDS[name][0](other)
            seen.ends[name] = other.end(), other
        screen.await_text(" of 60, ")  # the first repeat shows how many steps the second one makes
        in_a_pipe = [*WATCH, "--results", str(results)]
        seen.once = subprocess.run(in_a_pipe, capture_output=True, text=True, check=True, env=environment()).stdout
        seen.ends["the end of the ladder"] = screen.end(timeout_s=120), screen
        seen.climb, _ = climb.communicate(timeout=60)
        yield seen


def test_a_terminal_of_80x24_shows_gate_progress_and_cpus(watched: Watched) -> None:
    text = "\n".join(watched.rows)
    for pattern in (
        r"^\d\d:\d\d:\d\d  ddp-ladder: loop\.py on \w+",
        r"^gate stage1: not judged yet",
        r"^1x1 +0/2 +runs: process \d+ on \S+",
        r"^1x1 default/weak/r1  run 1 of 2",
        r"^  step \d+, [\d,.]+ samples/s|^  step \d+, warming up",
        r"^  \S+ +\d+\s% +\d+\s% +\d+ s ago",
    ):
        assert re.search(pattern, text, re.MULTILINE), f"{pattern}\n{text}"
    assert len(watched.rows) <= 24
    assert max(map(len, watched.rows)) <= 80


@pytest.mark.parametrize("name", [*ENDS, "the end of the ladder"])
def test_every_end_restores_the_terminal_and_leaves_the_last_picture(watched: Watched, name: str) -> None:
    code, screen = watched.ends[name]
    assert code == (ENDS[name][1] if name in ENDS else 0)
    assert "Traceback" not in screen.written
    assert "ddp-ladder: loop.py on " in screen.last_words
    if name not in ENDS:
        assert re.search(r"^gate stage1: open", screen.last_words, re.MULTILINE), screen.last_words
        assert re.search(r"^1x1 +2/2 .* finished", screen.last_words, re.MULTILINE), screen.last_words
        report = f"report:{watched.checkout.results}/report/index.html"
        assert report in "".join(screen.last_words.split())  # a long path is wrapped


def test_a_pipe_gets_one_picture(watched: Watched) -> None:
    assert re.search(r"^1x1 default/weak/r2  run 2 of 2 ", watched.once, re.MULTILINE), watched.once
    assert "\x1b" not in watched.once


def test_the_climbs_own_lines_have_no_step_beyond_the_total(watched: Watched) -> None:
    steps = [(int(step), int(total)) for step, total in re.findall(r"step (\d+) of (\d+)", watched.climb)]
    assert steps
    assert {total for _, total in steps} == {60}
    assert all(step <= total for step, total in steps)


def test_another_user_can_watch_and_nothing_is_written(tmp_path: Path) -> None:
    climb_to(tmp_path / "results", ("1x1", "1x2"), "1x2")
    before = snapshot(tmp_path)
    command = [*ANYONE.split(), *WATCH, "--results", tmp_path / "results", "--once"]
    once = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "step 40 of 60" in once.stdout, once.stderr
    assert once.stderr == ""
    assert snapshot(tmp_path) == before


def snapshot(directory: Path) -> dict[Path, tuple[int, int]]:
    """Return size and time of change of everything below a directory."""
    found = [directory, *directory.rglob("*")]
    return {path: (path.stat().st_size, path.stat().st_mtime_ns) for path in found}


def test_a_view_of_what_an_earlier_start_left_waits_for_the_next_one_and_of_a_finished_ladder_ends(
    tmp_path: Path,
) -> None:
    write_ladder(tmp_path)
    with closing(Screen(tmp_path)) as of_all:
        assert of_all.end() == 0
    shutil.rmtree(tmp_path / "runs/default/weak/2x1")
    with closing(Screen(tmp_path)) as screen:
        screen.await_text("waits for a start of snakemake")
        screen.press(b"\x03")
        assert screen.end() == 0
