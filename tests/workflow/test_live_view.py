"""The live view of a real climb on this machine: on a terminal of 80x24, in a pipe, and as it ends."""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from make_live import climb_to
from project_copy import LOOP, Checkout, copy_project, environment
from watch_screen import ANYONE, WATCH, Screen

STEP = "    for inputs, targets in loader:\n"
SLOW = LOOP.replace("import os,", "import os, time,").replace(STEP, f"{STEP}        time.sleep(0.2)\n")
ENDS: dict[str, tuple[Callable[[Screen], None], int]] = {
    "q": (lambda screen: screen.press(b"q"), 0),
    "Ctrl-C": (lambda screen: screen.press(b"\x03"), 0),
    "SIGTERM": (lambda screen: screen.process.terminate(), 128 + signal.SIGTERM),
}


@dataclass
class Watched:
    """A climb of two repeats of 60 steps, what its views showed, and what it printed itself in a pipe."""

    checkout: Checkout
    screen: list[str] = field(default_factory=list)
    ends: dict[str, tuple[int, Screen]] = field(default_factory=dict)
    once: str = ""
    lines: str = ""
    climb: str = ""


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    """One climb with several views at a time, which do not disturb each other."""
    seen = Watched(copy_project(tmp_path_factory.mktemp("project")))
    stages = {"stage1": {"scales": ["1x1"], "runtime": 5}, "stage2": None, "stage3": None}
    seen.checkout.configure(stages=stages, repeats=2)
    (seen.checkout.path / "loop.py").write_text(SLOW)
    results = seen.checkout.results
    with ExitStack() as stack:
        screen = stack.enter_context(closing(Screen(results)))
        screen.await_text("there is no plan yet")
        climb = stack.enter_context(seen.checkout.start("--cores", "all"))
        stack.callback(climb.terminate)
        in_a_pipe = [*WATCH, "--results", str(results)]
        pipe = stack.enter_context(
            subprocess.Popen(in_a_pipe, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment())
        )
        screen.await_text("    step ")
        screen.await_text(" s ago")
        seen.screen = [screen.rows[row] for row in sorted(screen.rows)]
        others = {name: stack.enter_context(closing(Screen(results))) for name in ENDS}
        for name, other in others.items():
            other.await_text("q ends this view")
            ENDS[name][0](other)
            seen.ends[name] = other.end(), other
        screen.await_text(" of 60, ")  # the first repeat shows how many steps the second one makes
        seen.once = subprocess.run([*in_a_pipe, "--once"], capture_output=True, text=True, check=True).stdout
        seen.ends["the end of the ladder"] = screen.end(timeout_s=120), screen
        seen.climb, _ = climb.communicate(timeout=60)
        seen.lines, _ = pipe.communicate(timeout=60)
        yield seen


def test_a_terminal_of_80x24_shows_stage_progress_and_cpus(watched: Watched) -> None:
    text = "\n".join(watched.screen)
    for pattern in (
        r"^ddp-ladder: loop\.py on \w+ +\d\d:\d\d:\d\d$",
        r"^stage 1  not yet  wanted: good runs",
        r"^1x1     0/2  runs: process \d+ on \S+",
        r"^1x1 default/weak/r1  run 1 of 2",
        r"^    step \d+, [\d,.]+ samples/s|^    step \d+, warming up",
        r"^    \S+ +\d+\s% +\d+\s% +\d+ s ago",
    ):
        assert re.search(pattern, text, re.MULTILINE), f"{pattern}\n{text}"
    assert len(watched.screen) <= 24
    assert all(screen.widest <= 80 for _, screen in watched.ends.values())


@pytest.mark.parametrize("name", [*ENDS, "the end of the ladder"])
def test_every_end_restores_the_terminal(watched: Watched, name: str) -> None:
    code, screen = watched.ends[name]
    assert code == (ENDS[name][1] if name in ENDS else 0)
    assert screen.is_restored
    assert "Traceback" not in str(screen)
    assert screen.last_words.startswith("ddp-ladder: loop.py on ")


def test_the_end_of_the_ladder_shows_the_last_picture(watched: Watched) -> None:
    words = watched.ends["the end of the ladder"][1].last_words
    assert re.search(r"^stage 1  open +2 good runs", words, re.MULTILINE), words
    assert re.search(r"^1x1     2/2 .* finished", words, re.MULTILINE), words
    assert f"report:{watched.checkout.results}/report/index.html" in "".join(words.split())  # a long path is wrapped


def test_one_picture(watched: Watched) -> None:
    assert re.search(r"^1x1 default/weak/r2  run 2 of 2  [█░]+ +\d+ %$", watched.once, re.MULTILINE), watched.once
    assert "\x1b" not in watched.once


def test_each_change_is_one_line_in_a_pipe(watched: Watched) -> None:
    first, *lines = watched.lines.splitlines()
    assert first == f"{watched.checkout.results}/plan.json: there is no plan yet; waiting for it"
    assert all(re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d \S", line) for line in lines), watched.lines
    assert "\x1b" not in watched.lines
    texts = [line[20:] for line in lines]
    again = {text for text in texts if texts.count(text) > 1}  # a look between two runs tells that none runs
    assert all(re.fullmatch(r"stage 1 1x1: runs: process \d+ on \S+", text) for text in again), watched.lines
    for pattern in (
        r"stage 1 1x1 default/weak/r1: started",
        r"stage 1 1x1 default/weak/r2: step \d+ of 60, .*; CPU \d+ %",
        r"stage 1 1x1 default/weak/r2: [\d,.]+ samples/s, \d+ steps measured, .*",
        r"gate stage1: open.*",
        r"the ladder has ended; report: .*",
    ):
        assert [text for text in texts if re.fullmatch(pattern, text)], f"{pattern}\n{watched.lines}"


def test_the_climbs_own_lines_have_no_step_beyond_the_total(watched: Watched) -> None:
    steps = [(int(step), int(total)) for step, total in re.findall(r"step (\d+) of (\d+)", watched.climb)]
    assert steps
    assert {total for _, total in steps} == {60}
    assert all(step <= total for step, total in steps)


def test_another_user_can_watch_and_nothing_is_written(tmp_path: Path) -> None:
    climb_to(tmp_path / "results", ("1x1", "1x2"), "1x2")
    before = snapshot(tmp_path)
    command = [*ANYONE.split(), *WATCH]
    with closing(Screen(tmp_path / "results", command=command)) as screen:
        screen.await_text("step 40 of 60")
        screen.press(b"q")
        assert screen.end() == 0
    once = subprocess.run([*command, "--results", tmp_path / "results", "--once"], capture_output=True, text=True)
    assert "step 40 of 60" in once.stdout
    assert once.stderr == ""
    assert snapshot(tmp_path) == before


def snapshot(directory: Path) -> dict[Path, tuple[int, int]]:
    """Return size and time of change of everything below a directory."""
    found = [directory, *directory.rglob("*")]
    return {path: (path.stat().st_size, path.stat().st_mtime_ns) for path in found}


def test_a_small_screen_is_drawn_anew_and_plain(tmp_path: Path) -> None:
    climb_to(tmp_path, ("1x1", "1x2"), "1x2")
    with closing(Screen(tmp_path, LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0", NO_COLOR="1")) as screen:
        screen.await_text("step 40 of 60")
        assert screen.written.isascii()
        assert not re.search(rb"\x1b\[[\d;]*3[0-7]m", screen.written)
        screen.resize(50, 10)
        drawn = len(screen.written)
        screen.await_true(lambda: b"\x1b[2J" in screen.written[drawn:])
        screen.read(0.5)
        assert max(screen.rows) <= 10
        assert max(map(len, screen.rows.values())) <= 50
        quiet = len(screen.written)
        screen.read(2.0)
        assert len(screen.written) - quiet < 4 * 300  # of four looks: only what has changed
        screen.press(b"q")
        assert screen.end() == 0


def test_without_a_plan_one_picture_is_an_error(tmp_path: Path) -> None:
    done = subprocess.run([*WATCH, "--results", tmp_path / "results", "--once"], capture_output=True, text=True)
    assert done.returncode == 1
    assert f"{tmp_path}/results/plan.json: there is no plan yet\n  next     start the ladder" in done.stderr
    assert not (tmp_path / "results").exists()


def test_no_torch_is_imported() -> None:
    code = "import sys; import ddp_ladder.live.watch; sys.exit('torch' in sys.modules or 'snakemake' in sys.modules)"
    scripts = Path(WATCH[1]).parent
    assert subprocess.run([WATCH[0], "-c", code], cwd=scripts, check=False).returncode == 0
