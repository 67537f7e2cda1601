from __future__ import annotations

import shutil
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest
from ddp_ladder.common.files import write_json
from ddp_ladder.live import status
from ddp_ladder.live.status import TAIL_BYTES, NodeSample, QueuedJob, Reader, SlurmAnswer, SlurmJobs, last_sample
from ddp_ladder.nodes.files import columns
from ddp_ladder.plan.plan import RunSpec
from ddp_ladder.records.assemble import assemble
from ddp_ladder.records.record import write_record
from ddp_ladder.slurm.jobs import JobState
from ddp_ladder.slurm.query import SlurmError
from make_live import START_LOCK, climb_to, progress_of, run_of
from make_runs import write_run

TEN = ("1x1", "1x2", "1x4", "2x4", "3x4", "4x4", "6x4", "8x4", "12x4", "16x4")


def test_what_goes_on(tmp_path: Path) -> None:
    climb_to(tmp_path, ("1x1", "1x2", "2x1"), "1x2", gpus=2)
    state = Reader(tmp_path).read()
    one, two, three = state.scales
    assert (one.is_done, two.is_done, three.is_done) == (True, False, False)
    assert [run.phase for run in two.runs] == ["ended", "started", "to do"]
    assert [run.record.throughput is not None for run in two.runs if run.record] == [True]
    running = two.running
    assert running is not None
    assert running.progress is not None
    assert running.progress["step"] == 40
    assert str(running.expected and running.expected.total(running.progress)) == "60"
    assert [sample.gpus["busy_fraction"] for sample in running.samples] == [(0.92, 0.92)]
    assert set(state.gates) == {"stage1"}
    assert state.is_at_work
    assert state.slurm_ids == {"101", "102"}
    assert state.problems == ()


def test_what_is_finished_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = climb_to(tmp_path, TEN, "16x4", gpus=1)
    reader = Reader(tmp_path)
    reader.read()
    opened: list[Path] = []
    before = Path.open

    def counted(path: Path, *arguments: Any, **options: Any) -> Any:
        opened.extend([path] if path.is_relative_to(tmp_path) else [])
        return before(path, *arguments, **options)

    monkeypatch.setattr(Path, "open", counted)
    write_json(run_of(tmp_path, plan.jobs[-1].runs[1]).progress, progress_of(41))
    opened[:] = []
    now = reader.read().scales[-1].running
    assert now is not None
    assert now.progress is not None
    assert now.progress["step"] == 41
    assert len({sample.node for sample in now.samples}) == 16
    assert {path.relative_to(tmp_path / "runs").parts[2] for path in opened if "runs" in path.parts} == {"16x4"}
    assert len(opened) <= 16 + 2 * len(TEN)


def test_every_change_is_seen_soon(tmp_path: Path) -> None:
    plan = climb_to(tmp_path, ("1x1", "1x2"), "1x2")
    reader = Reader(tmp_path)
    second, third = plan.jobs[1].runs[1:]
    run = run_of(tmp_path, second)
    reader.read()
    shutil.rmtree(run.path)
    write_run(tmp_path, second, 2000.0).record.unlink()
    state = reader.read()
    assert [run.phase for run in state.scales[1].runs] == ["ended", "ended", "to do"]
    write_run(tmp_path, third, 2000.0)
    for spec in plan.jobs[1].runs:
        write_record(run_of(tmp_path, spec).record, assemble(run_of(tmp_path, spec)))
    assert reader.read().scales[1].is_done


def test_files_that_are_being_written(tmp_path: Path) -> None:
    plan = climb_to(tmp_path, ("1x1", "1x2"), "1x2")
    reader = Reader(tmp_path)
    reader.read()
    run = run_of(tmp_path, plan.jobs[1].runs[1])
    for path in (tmp_path / START_LOCK, tmp_path / "plan.json", run.progress, run.samples(0)):
        path.write_bytes(path.read_bytes()[:-30])
    state = reader.read()
    # What was read before still counts.
    assert state.plan == plan
    assert state.start is not None
    running = state.scales[1].running
    assert running is not None
    assert running.progress is not None
    assert running.samples
    assert len(state.problems) == 3  # the samples are cut in their last line, which is no damage


def test_a_run_of_an_earlier_job_is_not_running(tmp_path: Path) -> None:
    climb_to(tmp_path, ("1x1", "1x2"), "1x2")
    lock = tmp_path / "jobs/1x2.lock1"
    lock.rename(lock.with_name("1x2.lock2"))
    lock.with_name("1x2.lock2").write_text(lock.with_name("1x2.lock2").read_text().replace('"101"', '"999"'))
    scale = Reader(tmp_path).read().scales[1]
    assert scale.is_held
    assert scale.running is None
    assert scale.runs[1].phase == "interrupted"


def test_runs_of_other_settings_are_to_do(tmp_path: Path) -> None:
    climb_to(tmp_path, ("1x1", "1x2"), "1x2")
    changed = climb_to(tmp_path / "other", ("1x1", "1x2"), "1x2").to_json()
    for job in changed["jobs"]:
        for run in job["runs"]:
            run["seed"] += 1
    for job in changed["jobs"]:
        for run in job["runs"]:
            run["spec_hash"] = RunSpec.from_json({k: v for k, v in run.items() if k != "spec_hash"}).hash
    write_json(tmp_path / "plan.json", changed)
    state = Reader(tmp_path).read()
    assert {run.phase for scale in state.scales for run in scale.runs} == {"to do"}
    assert not state.gates


def test_no_plan(tmp_path: Path) -> None:
    state = Reader(tmp_path / "missing").read()
    assert state.plan is None
    assert state.problems == ()
    (tmp_path / "plan.json").write_text("{}")
    assert "plan.json" in Reader(tmp_path).read().problems[0]


def table(path: Path, gpus: int, rows: list[dict[str, str]], end: str = "") -> Path:
    names = columns(fabric=False, gpus=gpus)
    lines = [",".join(names), *(",".join(row.get(name, "") for name in names) for row in rows)]
    path.write_text("".join(f"{line}\n" for line in lines) + end)
    return path


def row(time_s: float, **figures: str) -> dict[str, str]:
    return {"time_s": str(time_s), "cpu_fraction": "0.25", "cpu_busiest_fraction": "0.5", **figures}


def last(path: Path) -> NodeSample | None:
    with path.open("rb") as file:
        return last_sample(file, "node7")


def test_the_last_complete_line(tmp_path: Path) -> None:
    path = table(tmp_path / "node0.csv", 0, [row(10.0), row(12.0)], end="14.0,0.9")
    assert last(path) == NodeSample("node7", 12.0, 0.25, 0.5, dict.fromkeys(status.GPU_FIGURES, ()))


def test_no_line_yet(tmp_path: Path) -> None:
    path = table(tmp_path / "node0.csv", 0, [], end="10.0,0.2")
    assert last(path) is None
    path.write_text("time_s,cpu_fr")  # half a header
    assert last(path) is None


def test_gpus_and_counters_that_they_lack(tmp_path: Path) -> None:
    figures = {"gpu0_busy_fraction": "0.92", "gpu0_memory_used_bytes": "31000000000", "gpu1_power_w": "402.5"}
    sample = last(table(tmp_path / "node0.csv", 2, [row(10.0, **figures)]))
    assert sample is not None
    assert sample.gpus == {"busy_fraction": (0.92,), "memory_used_bytes": (31e9,), "power_w": (402.5,)}


def test_only_the_end_of_a_long_file_is_read(tmp_path: Path) -> None:
    path = table(tmp_path / "node0.csv", 8, [row(2.0 * k) for k in range(500)])
    assert path.stat().st_size > 3 * TAIL_BYTES
    sample = last(path)
    assert sample is not None
    assert sample.time_s == 998.0


@pytest.mark.parametrize("text", ["time_s,cpu_fraction\n1.0\n", "time_s,cpu_fraction\n1.0,fast\n", "a,b\n1,2\n"])
def test_another_file(tmp_path: Path, text: str) -> None:
    (tmp_path / "node0.csv").write_text(text)
    with pytest.raises(ValueError, match=r"no samples of a node|could not convert"):
        last(tmp_path / "node0.csv")


PENDING = QueuedJob(JobState("PENDING", "Priority"), 0.0, 1200.0)


class Slurm:
    """Stands in for squeue and the clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[list[str]] = []
        self.now_s = 100.0
        self.is_silent = False
        self.jobs = SlurmJobs(lambda: self.now_s)
        monkeypatch.setattr(status, "ask_squeue", self.ask)
        monkeypatch.setattr(status.shutil, "which", lambda _: "/usr/bin/squeue")

    def ask(self, job_ids: Collection[str]) -> dict[str, QueuedJob]:
        self.asked.append(sorted(job_ids))
        if self.is_silent:
            raise SlurmError("Unable to contact slurm controller\n (connect failure)")
        return dict.fromkeys(job_ids, PENDING)

    def look(self, *job_ids: str) -> SlurmAnswer:
        self.jobs.look(job_ids)
        self.jobs.wait()
        return self.jobs.look(job_ids)


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch) -> Slurm:
    return Slurm(monkeypatch)


def test_all_jobs_are_one_question_in_ten_seconds(slurm: Slurm) -> None:
    assert slurm.look("12").jobs == {"12": PENDING}
    for _ in range(25):
        slurm.now_s += 1
        answer = slurm.look("12", "13")
    assert slurm.asked == [["12"], ["12", "13"], ["12", "13"]]
    assert set(answer.jobs) == {"12", "13"}


def test_a_silent_slurm_is_asked_less_often_and_keeps_its_last_answer(slurm: Slurm) -> None:
    slurm.look("12")
    slurm.is_silent = True
    for _ in range(200):
        slurm.now_s += 1
        answer = slurm.look("12")
    assert len(slurm.asked) == 1 + 4  # after 10, 70, 130, 190 s
    assert answer.jobs == {"12": PENDING}
    why = "Slurm does not answer (Unable to contact slurm controller (connect failure)); asked again in 60 s"
    assert answer.problem == why
    slurm.is_silent = False
    slurm.now_s += 60
    assert slurm.look("12").problem == ""


def test_without_jobs_or_slurm_nothing_is_asked(slurm: Slurm, monkeypatch: pytest.MonkeyPatch) -> None:
    assert slurm.look() == SlurmAnswer()
    monkeypatch.setattr(status.shutil, "which", lambda _: None)
    assert slurm.look("12") == SlurmAnswer(problem=status.NO_COMMAND)
    assert slurm.asked == []
