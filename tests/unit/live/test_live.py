"""What the live view knows of a ladder, and the picture that it makes of it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from ddp_ladder.common.files import write_json
from ddp_ladder.gates.gate import judge, write_verdict
from ddp_ladder.live import screen as status
from ddp_ladder.live.screen import LadderState, Reader, picture
from ddp_ladder.plan.plan import WitnessLimits
from ddp_ladder.records.record import write_record
from ddp_ladder.slurm.jobs import GONE, JobEnd, JobState, write_job_end
from ddp_ladder.slurm.query import SlurmError
from make_live import START_LOCK, climb_to, edit_job, on_one_line, progress_of, run_of
from make_records import make_failed_record
from make_runs import edit, write_run
from opened_files import opened

THREE = ("1x1", "1x2", "2x1")
SIX = ("1x1", "1x2", "1x4", "2x4", "4x4", "16x1")
RUNS = JobState("RUNNING", nodes="node[1-2]", start="2026-11-20T23:40:00")
WAITS = JobState("PENDING", "Priority", start="2026-11-20T23:40:00")


class Slurm:
    """Stands in for Slurm and the clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[list[str]] = []
        self.jobs: dict[str, JobState] = {}
        self.now_s, self.is_silent = 1000.0, False
        monkeypatch.setattr(status, "ask", self.ask)
        monkeypatch.setattr(status, "monotonic", lambda: self.now_s)

    def ask(self, job_ids: Iterable[str], within_s: float) -> dict[str, JobState]:
        self.asked += [sorted(job_ids)] if job_ids else []
        if self.is_silent:
            raise SlurmError("Unable to contact slurm controller\n (connect failure)")
        return {job: self.jobs.get(job, JobState(GONE)) for job in job_ids}


@pytest.fixture(autouse=True)
def slurm(monkeypatch: pytest.MonkeyPatch) -> Slurm:
    return Slurm(monkeypatch)


def shown(state: LadderState, width: int = 100) -> str:
    return on_one_line(picture(state), width)


def test_everything_at_once(tmp_path: Path, slurm: Slurm) -> None:
    climb_to(tmp_path, THREE, "1x2", gpus=2)
    slurm.jobs = {"101": RUNS, "102": WAITS}
    state = Reader(tmp_path).read()
    _, _, text = (shown(state, width) for width in (30, 60, 200))
    for part in (
        "ddp-ladder: workflow/workloads/mnist.py on local",
        f"results {tmp_path}",
        "gate stage1: open gate stage2: not judged yet",
        "1x1 3/3 1,000 100 % finished",
        "1x2 1/3 1,996 100 % job 101 runs since 23:40:00, for at most 20 min on node[1-2]",
        "2x1 0/3 job 102 waits: Priority: jobs of higher priority are before it; expected to start 2026-11-20 23:40",
        "1x2 default/weak/r2 run 2 of 3",
        "step 40 of 60, 1,240 samples/s, 3 s left",
        "node CPU busiest GPU GPU mem power seen",
        "node0 25 % 50 % 92 % 31.0 GB 800 W",
    ):
        assert part in text, f"{part}\n{text}"


def test_a_run_that_follows_its_batches_is_shown_while_it_goes_on(tmp_path: Path, slurm: Slurm) -> None:
    plan = climb_to(tmp_path, THREE, "1x1")
    first = replace(plan.jobs[0], witness=WitnessLimits(steps=200, seconds=120))
    write_json(tmp_path / "plan.json", replace(plan, jobs=(first, *plan.jobs[1:])).to_json())
    shutil.rmtree(tmp_path / "runs")
    run = write_run(tmp_path / "witness/default", plan.runs[0])
    assert "witness" not in shown(Reader(tmp_path).read())  # it has ended
    run.ended.unlink()
    assert "witness" not in shown(Reader(tmp_path).read())  # of another job
    edit_job(run, "100")
    assert "1x1 witness of default starting: each batch is followed" in shown(Reader(tmp_path).read())
    write_json(run.progress, progress_of(40))
    assert "1x1 witness of default step 40: each batch is followed" in shown(Reader(tmp_path).read())


def opened_by(read: Callable[[], LadderState], below: Path) -> list[Path]:
    with opened() as events:
        read()
    return [Path(path) for event, path in events if event == "open" and Path(path).is_relative_to(below)]


def test_failures_and_what_to_do(tmp_path: Path) -> None:
    plan = climb_to(tmp_path, THREE, "1x2")
    (tmp_path / "jobs/1x2.lock1").unlink()
    for spec in plan.jobs[1].runs:
        write_run(tmp_path, spec, 1000.0)
    write_record(run_of(tmp_path, plan.jobs[1].runs[2]).record, make_failed_record(plan.jobs[1].runs[2]))
    write_verdict(judge(plan, "stage2", tmp_path), tmp_path / "gates")
    write_job_end(tmp_path, JobEnd("102", "stage3", "2x1", "TIMEOUT", "a.log", why="time was up", next="raise it"))
    text = shown(Reader(tmp_path).read())
    for part in (
        "gate stage2: CLOSED, default/weak/1x2/r3",
        "1 run failed",
        "2x1 0/3 job 102 ended TIMEOUT: time was up",
        "! 2x1, next: raise it",
        "! default/weak/1x2/r3: the script raised an exception: rank 1: RuntimeError: connection reset by",
    ):
        assert part in text, f"{part}\n{text}"


def test_all_jobs_are_one_question_in_ten_seconds_and_a_silent_slurm_is_asked_less_often(
    tmp_path: Path, slurm: Slurm
) -> None:
    climb_to(tmp_path, THREE, "1x2")
    reader, slurm.jobs = Reader(tmp_path), {"101": RUNS}

    def look(seconds: int) -> LadderState:
        for _ in range(seconds):
            slurm.now_s += 1
            state = reader.read()
        return state

    assert look(25).jobs["102"] == JobState(GONE)
    assert slurm.asked == [["101", "102"]] * 3
    slurm.is_silent = True
    text = shown(look(200))
    assert len(slurm.asked) == 3 + 4
    assert "! Slurm does not answer (Unable to contact slurm controller (connect failure)); asked again in 60 s" in text
    assert "job 101 runs since 23:40" in text
    slurm.is_silent = False
    assert look(61).problems == ()


def test_when_a_ladder_is_over(tmp_path: Path, slurm: Slurm) -> None:
    climb_to(tmp_path, THREE, "1x2")
    slurm.jobs = {"101": RUNS}
    assert not Reader(tmp_path).read().is_over
    edit(tmp_path / START_LOCK, lambda start: start.update(ended=True))
    assert not Reader(tmp_path).read().is_over
    (tmp_path / "jobs/1x2.lock1").unlink()
    assert not Reader(tmp_path).read().is_over  # its job goes on
    slurm.jobs, slurm.is_silent = {}, True
    assert not Reader(tmp_path).read().is_over  # nobody knows
    slurm.is_silent = False
    assert Reader(tmp_path).read().is_over


def test_what_is_finished_is_not_read_again(tmp_path: Path) -> None:
    plan = climb_to(tmp_path, SIX, "16x1", gpus=1)
    reader = Reader(tmp_path)
    reader.read()
    write_json(run_of(tmp_path, plan.jobs[-1].runs[1]).progress, progress_of(41))
    again = opened_by(reader.read, tmp_path)
    now = reader.read().scales[-1].running
    assert now is not None
    assert now.progress is not None
    assert now.progress.step == 41
    assert len(now.samples) == 16
    assert len({path for path in again if "runs" in path.parts and "16x1" not in path.parts}) <= 1  # for the steps
    assert len(again) <= 16 + 4 * len(SIX)


def test_a_run_of_an_earlier_job_is_not_running_and_one_that_ends_is_seen(tmp_path: Path) -> None:
    plan = climb_to(tmp_path, ("1x1", "1x2"), "1x2")
    reader, lock = Reader(tmp_path), tmp_path / "jobs/1x2.lock1"
    assert [run.phase for run in reader.read().scales[1].runs] == ["ended", "started", "to do"]
    lock.with_name("1x2.lock2").write_text(lock.read_text().replace('"101"', '"999"'))
    scale = reader.read().scales[1]
    assert scale.holder
    assert scale.running is None
    assert scale.runs[1].phase == "interrupted"
    second = run_of(tmp_path, plan.jobs[1].runs[1])
    shutil.rmtree(second.path)
    write_run(tmp_path, plan.jobs[1].runs[1], 2000.0).record.unlink()
    assert [run.phase for run in reader.read().scales[1].runs] == ["ended", "ended", "to do"]
