"""One start at a time on one results directory: who is refused, and what is taken over."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from ddp_ladder.climb import start_lock
from ddp_ladder.climb.start_lock import LAST, START, DirectoryId, Start, held, processes_on, unlock_by_hand
from ddp_ladder.common.files import write_json
from ddp_ladder.common.messages import Refused, UserError

HOLD = """
import sys; from pathlib import Path; from ddp_ladder.climb.start_lock import held
with held(Path(sys.argv[1]), Path(sys.argv[2]), lambda killed: None):
    (Path(sys.argv[1]) / "something").touch()
    print("held", flush=True)
    sys.stdin.readline()
"""


def look_at_no_jobs(killed: bool) -> None:
    """There is no Slurm."""


def new_checkout(path: Path) -> Path:
    (path / ".snakemake").mkdir(parents=True)
    return path


@pytest.fixture
def here(tmp_path: Path) -> Path:
    return new_checkout(tmp_path / "here")


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    return new_checkout(tmp_path / "elsewhere")


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    """Results outside the checkouts."""
    return tmp_path / "scratch"


def another_process(results: Path, checkout: Path) -> subprocess.Popen[str]:
    """One that holds the results."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    argv = [sys.executable, "-c", HOLD, str(results), str(checkout)]
    process = subprocess.Popen(argv, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


@pytest.fixture
def holder(scratch: Path, here: Path) -> Iterator[subprocess.Popen[str]]:
    process = another_process(scratch, here)
    yield process
    process.kill()
    process.communicate()


def start_on(results: Path, checkout: Path) -> str | None:
    """What a start that works on results is refused with; None if it is not."""
    try:
        with held(results, checkout, look_at_no_jobs):
            (results / "something").touch()
    except Refused as refused:
        return re.sub(r"\s*\|\n\|\s*", " ", str(refused))
    return None


def rewrite(held: Path, /, **changes: object) -> None:
    """Change what is known of the start that holds or has last held the results."""
    file = held / START if (held / START).exists() else held / LAST
    start = start_lock._parsed(file)
    process = replace(start.process, **changes.pop("process", {}))  # type: ignore[arg-type]
    write_json(file, asdict(replace(start, process=process, **changes)))  # type: ignore[arg-type]


def test_a_start_leaves_its_name_behind_and_one_that_did_nothing_leaves_nothing(scratch: Path, here: Path) -> None:
    with held(scratch, here, look_at_no_jobs):
        assert json.loads((scratch / START).read_text())["process"]["pid"] == os.getpid()
    assert not scratch.exists()
    assert start_on(scratch, here) is None
    assert sorted(file.name for file in scratch.iterdir()) == [LAST, "something"]


@pytest.mark.parametrize("by", ["here", "elsewhere"])
def test_a_second_start_is_refused(
    holder: subprocess.Popen[str], scratch: Path, tmp_path: Path, elsewhere: Path, by: str
) -> None:
    reported = start_on(scratch, tmp_path / by)
    assert reported is not None
    assert f"process {holder.pid} on " in reported
    assert str(tmp_path / "here") in reported.replace(" ", "")
    assert f"`kill {holder.pid}`" in reported
    assert ("results of its own" in reported) == (by == "elsewhere")
    with pytest.raises(Refused):
        unlock_by_hand(scratch)


def test_a_killed_start_is_followed_in_one_line(
    holder: subprocess.Popen[str], scratch: Path, here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    holder.kill()
    holder.wait()
    assert start_on(scratch, here) is None
    (line,) = capfd.readouterr().err.splitlines()
    assert f"(process {holder.pid} on " in line
    assert "was killed; this one goes on" in line


def test_its_jobs_have_to_be_over(holder: subprocess.Popen[str], scratch: Path, here: Path) -> None:
    """Slurm's by asking Slurm; of this machine's processes by looking for them."""
    holder.kill()
    holder.wait()

    def one_is_left(killed: bool) -> None:
        assert killed
        raise UserError(())

    with pytest.raises(UserError), held(scratch, here, one_is_left):
        pass
    script = here / "run_scale.py"
    script.write_text("input()")
    argv = [sys.executable, "run_scale.py", "--plan", str(scratch / "plan.json")]
    job = subprocess.Popen(argv, cwd=here, stdin=subprocess.PIPE)
    try:
        while [each.pid for each in processes_on(scratch)] != [job.pid]:
            time.sleep(0.05)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(start_lock, "ENDING_S", 0.0)
            reported = start_on(scratch, here)
        assert reported is not None
        assert f"end them: `kill {job.pid}`" in reported
    finally:
        job.kill()
        job.communicate()
    assert start_on(scratch, here) is None


def test_what_another_host_holds_is_let_go_by_hand_alone(
    holder: subprocess.Popen[str], scratch: Path, here: Path
) -> None:
    rewrite(scratch, process={"host": "login1", "kernel": "its own"})
    reported = start_on(scratch, here)
    assert reported is not None
    assert f"`ps -p {holder.pid}` on login1" in reported
    assert "`snakemake --unlock`" in reported
    unlock_by_hand(scratch)
    assert start_on(scratch, here) is None


def test_a_start_that_lost_its_hold_takes_nobody_elses_away(
    holder: subprocess.Popen[str], scratch: Path, here: Path
) -> None:
    (scratch / START).unlink()
    with held(scratch, here, look_at_no_jobs):
        holder.communicate("")
        assert json.loads((scratch / START).read_text())["process"]["pid"] == os.getpid()


def test_a_copy_of_held_results_is_free(holder: subprocess.Popen[str], scratch: Path, here: Path) -> None:
    """Also from another host, to the same path: its number is another one."""
    shutil.copytree(scratch, scratch.with_name("copy"))
    assert start_on(scratch.with_name("copy"), here) is None
    held_by = start_lock._parsed(scratch / START)
    rewrite(scratch, process={"host": "laptop", "kernel": "its own"}, results=replace(held_by.results, inode=2**40))
    assert start_on(scratch, here) is None


def test_another_checkout_is_refused_also_later(scratch: Path, here: Path, elsewhere: Path) -> None:
    assert start_on(scratch, here) is None
    reported = start_on(scratch, elsewhere)
    assert reported is not None
    assert "these results are another checkout's" in reported
    assert str(here) in reported.replace(" ", "")
    assert str(scratch / LAST) in reported.replace(" ", "")
    (scratch / LAST).unlink()  # as the message says
    assert start_on(scratch, elsewhere) is None


def test_a_checkout_that_was_moved_or_is_mounted_elsewhere_is_no_other_one(scratch: Path, here: Path) -> None:
    assert start_on(scratch, here) is None
    moved = here.rename(here.with_name("moved"))
    assert start_on(scratch, moved) is None
    rewrite(
        scratch,
        process={"host": "login1", "kernel": "its own"},
        checkout=DirectoryId("/mounted/there/alone", moved.stat().st_ino),
    )
    assert start_on(scratch, moved) is None
    rewrite(scratch, process={"host": "login1", "kernel": "its own"}, checkout=DirectoryId("/local/of/login1", 2**40))
    assert start_on(scratch, moved) is not None, "it may well be there"


def test_results_inside_a_checkout_go_where_it_goes(here: Path) -> None:
    assert start_on(here / "results", here) is None
    copy = shutil.copytree(here, here.with_name("copy"))
    assert start_on(copy / "results", copy) is None
    assert start_on(here / "results", here) is None
    assert start_on(here / "results", copy) is not None


def test_one_of_two_that_find_a_killed_start_at_once_goes_on(scratch: Path, here: Path) -> None:
    first = another_process(scratch, here)
    first.kill()
    first.communicate()
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    argv = [sys.executable, "-c", HOLD, str(scratch), str(here)]
    both = [
        subprocess.Popen(
            argv, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    lines = [each.stdout.readline() for each in both if each.stdout]
    assert sorted(lines) == ["", "held\n"]
    for each in both:
        each.communicate("")


@pytest.mark.parametrize("content", ["", "{}", '{"process": 3}'])
def test_a_file_of_something_else_is_named(scratch: Path, here: Path, content: str) -> None:
    scratch.mkdir()
    (scratch / START).write_text(content)
    with pytest.raises(UserError, match=r"start\.json: not what a start writes"), held(scratch, here, look_at_no_jobs):
        pass
    unlock_by_hand(scratch)
    assert start_on(scratch, here) is None


def test_results_that_cannot_be_written_are_named(tmp_path: Path, here: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(UserError, match="the results cannot be written"),
        held(tmp_path / "file", here, look_at_no_jobs),
    ):
        pass


def test_signals_and_errors_let_go(scratch: Path, here: Path) -> None:
    process = another_process(scratch, here)
    process.send_signal(signal.SIGINT)
    process.communicate()
    assert not (scratch / START).exists()
    assert start_lock._parsed(scratch / LAST) is not None
    assert isinstance(Start.now(scratch, here), Start)
