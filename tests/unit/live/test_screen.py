from __future__ import annotations

import shutil
import time
from dataclasses import replace
from pathlib import Path

import pytest
from ddp_ladder.common.formats import NARROW_SPACE
from ddp_ladder.gates.gate import judge, write_verdict
from ddp_ladder.live.screen import FOOTER, Changes, plain, screen_of
from ddp_ladder.live.status import LadderState, QueuedJob, Reader, SlurmAnswer
from ddp_ladder.nodes.usage import Usage, UsageFinding
from ddp_ladder.records.record import write_record
from ddp_ladder.run.scale_job import MARGIN_S
from ddp_ladder.slurm.jobs import JobEnd, JobState, write_job_end
from make_live import START_LOCK, climb_to, run_of
from make_records import make_failed_record, make_record
from make_runs import edit, write_run

THREE = ("1x1", "1x2", "2x1")
TEN = ("1x1", "1x2", "1x3", "1x4", "2x1", "2x2", "3x1", "3x2", "4x1", "5x1")
RUNS = QueuedJob(JobState("RUNNING", "", "node[1-2]"), 185.0, 1200.0)
WAITS = QueuedJob(JobState("PENDING", "Priority", start="2026-11-20T23:40:00"), 0.0, 1200.0)


def read(results: Path, **jobs: QueuedJob) -> LadderState:
    state = Reader(results).read()
    answer = SlurmAnswer({name.removeprefix("job"): job for name, job in jobs.items()}, time.time())
    return replace(state, slurm=answer)


def lines(state: LadderState, width: int = 80, height: int = 24) -> list[str]:
    return [line.plain.replace(NARROW_SPACE, " ") for line in screen_of(state, width, height, FOOTER)]


def has(shown: list[str], text: str) -> bool:
    return any(text in " ".join(line.split()) for line in shown)


def test_everything_at_once(tmp_path: Path) -> None:
    climb_to(tmp_path, THREE, "1x2", gpus=2)
    shown = lines(read(tmp_path, job101=RUNS, job102=WAITS))
    assert len(shown) <= 24
    assert shown[0].startswith("ddp-ladder: workflow/workloads/mnist.py on local  ")
    for text in (
        f"results {tmp_path}",
        "stage 1 open 3 good runs",
        "stage 2 not yet wanted: good runs, efficiency at least 80 %",
        "1x1 3/3 1,000 100 % finished",
        "100 % job 101 runs 3 min 05 s of 20 min 00 s on",
        "node[1-2]",
        "2x1 0/3 job 102 waits: Priority: jobs of higher",
        "2026-11-20 23:40",
        "1x2 default/weak/r2 run 2 of 3 ███",
        "step 40 of 60, 1,240 samples/s, 3 s left",
        "node CPU busiest GPU GPU mem power seen",
        "node0 25 % 50 % 92 % 31.0 GB 800 W",
    ):
        assert has(shown, text), "\n".join((text, *shown))


def test_a_node_without_gpus_has_no_gpu_columns(tmp_path: Path) -> None:
    climb_to(tmp_path, THREE, "1x2")
    shown = lines(read(tmp_path))
    assert has(shown, "node CPU busiest seen")
    assert not has(shown, "GPU")


@pytest.mark.parametrize(("width", "height"), [(80, 24), (80, 12), (60, 24), (40, 8), (200, 60), (20, 3)])
def test_no_line_is_wider_and_no_screen_is_longer(tmp_path: Path, width: int, height: int) -> None:
    climb_to(tmp_path, TEN, "3x1", repeats=2, gpus=4)
    shown = lines(read(tmp_path, job106=RUNS, job107=WAITS), width, height)
    assert len(shown) <= height
    assert max(map(len, shown)) <= width
    assert shown[-1].startswith("q ends")


def test_a_long_ladder_shows_what_goes_on_and_folds_the_rest(tmp_path: Path) -> None:
    climb_to(tmp_path, TEN, "3x2", repeats=2)
    state = read(tmp_path, job107=RUNS, job108=WAITS, job109=WAITS)
    shown = lines(state)
    for text in ("7 scales finished: 1x1 to 3x1", "job 107 runs", "step 40", "job 109 waits", "node2 25 %"):
        assert has(shown, text), "\n".join((text, *shown))
    assert has(lines(state, 80, 60), "3x1 2/2")


def test_of_many_nodes_the_mean_and_those_that_do_least(tmp_path: Path) -> None:
    plan = climb_to(tmp_path, ("1x1", "16x1"), "16x1", repeats=2)
    idle = run_of(tmp_path, plan.jobs[1].runs[1]).samples(7)
    idle.write_text(idle.read_text().replace("0.25", "0.01"))
    shown = lines(read(tmp_path))
    rows = [line.split()[:3] for line in shown[shown.index(next(line for line in shown if "busiest" in line)) + 1 :]]
    assert rows[0] == ["all", "16", "nodes"]
    assert rows[1] == ["node7", "1", "%"]


def test_a_run_of_unknown_length_shows_the_time_that_its_job_has(tmp_path: Path) -> None:
    plan = climb_to(tmp_path, THREE, "1x1", slurm=False)
    shutil.rmtree(run_of(tmp_path, plan.jobs[0].runs[0]).path)
    state = read(tmp_path)
    assert state.scales[0].holder is not None
    state = replace(state, now_s=state.scales[0].holder.since_s + 16)
    assert plan.jobs[0].runtime_min == 20
    told = "step 40, 1,240 samples/s, at most 19 min 44 s left"
    assert has(lines(state), told)
    assert has(Changes().new_lines(state), told)


def test_the_time_that_slurm_leaves_a_job(tmp_path: Path) -> None:
    climb_to(tmp_path, THREE, "1x2")
    state = read(tmp_path, job101=RUNS)
    held = state.scales[1]
    assert held.holder is not None
    asked_s = held.holder.since_s + 100  # 185 s of 1200 s are over then
    state = replace(state, slurm=replace(state.slurm, asked_s=asked_s), now_s=asked_s + 5)
    assert state.left_at_most_s(held) == pytest.approx(1200 - 185 - 5 - MARGIN_S)
    assert state.left_at_most_s(state.scales[2]) is None


def test_failures_and_what_to_do(tmp_path: Path) -> None:
    plan = climb_to(tmp_path, THREE, "1x2")
    (tmp_path / "jobs/1x2.lock1").unlink()
    for spec in plan.jobs[1].runs:
        write_run(tmp_path, spec, 1000.0)
    write_record(run_of(tmp_path, plan.jobs[1].runs[2]).record, make_failed_record(plan.jobs[1].runs[2]))
    write_verdict(judge(plan, "stage2", tmp_path), tmp_path / "gates")
    end = JobEnd("102", "stage3", "2x1", "TIMEOUT", "a.log", why="its time was up", next="raise it")
    write_job_end(tmp_path, end)
    shown = lines(read(tmp_path), 100, 40)
    for text in (
        "stage 2 CLOSED default/weak/1x2/r3",
        "999 1 run failed",
        "2x1 0/3 job 102 ended TIMEOUT: its time was up",
        "! 2x1, next: raise it",
        "! default/weak/1x2/r3: the script raised an exception: rank 1: RuntimeError: connection reset by",
    ):
        assert has(shown, text), "\n".join((text, *shown))


def test_failures_come_before_findings_and_a_finding_once(tmp_path: Path) -> None:
    plan = climb_to(tmp_path, THREE, "1x2")
    idle = UsageFinding(kind="GPU idle", measured="GPU 0 of node0: busy 31 %", node="node0", gpu=0, next="more workers")
    usage = Usage(nodes=(), findings=(idle,), notes=())
    for spec in plan.jobs[0].runs:
        write_record(run_of(tmp_path, spec).record, make_record(spec).replace(usage=usage))
    write_job_end(tmp_path, JobEnd("102", "stage3", "2x1", "TIMEOUT", "a.log", why="its time was up", next="raise it"))
    notes = [line for line in lines(read(tmp_path), 100, 40) if line.startswith("! ")]
    assert notes == ["! 2x1, next: raise it", "! default/weak/1x1/r1: GPU 0 of node0: busy 31 %"]


def test_a_silent_slurm_is_a_line(tmp_path: Path) -> None:
    climb_to(tmp_path, THREE, "1x2")
    state = read(tmp_path)
    shown = lines(replace(state, slurm=SlurmAnswer(problem="Slurm does not answer (no)")))
    assert has(shown, "! Slurm does not answer (no)")
    assert has(shown, "2x1 0/3 job 102 was submitted")


def test_without_utf_8(tmp_path: Path) -> None:
    climb_to(tmp_path, THREE, "1x2", gpus=1)
    for line in lines(read(tmp_path)):
        assert plain(line).isascii()
        assert len(plain(line)) == len(line)
        assert "?" not in plain(line)


def test_lines_in_a_pipe(tmp_path: Path) -> None:
    plan = climb_to(tmp_path, THREE, "1x2")
    changes = Changes()
    state = read(tmp_path, job101=RUNS, job102=WAITS)
    first = [line[20:] for line in changes.new_lines(state)]
    for text in (
        "stage 1 1x1: finished",
        "stage 2 1x2: job 101 runs on node[1-2]",
        "stage 2 1x2 default/weak/r2: started",
        "stage 2 1x2 default/weak/r2: step 40 of 60, 1,240 samples/s, 3 s left; CPU 25 %",
        "gate stage1: open",
        "stage 3 2x1: job 102 waits: Priority: jobs of higher priority are before it; "
        "expected to start 2026-11-20 23:40",
    ):
        assert text in first
    later = replace(RUNS, elapsed_s=195.0)
    assert changes.new_lines(read(tmp_path, job101=later, job102=WAITS)) == []
    soon = replace(read(tmp_path, job101=RUNS, job102=RUNS), now_s=state.now_s + 31)
    assert [line[20:] for line in changes.new_lines(soon)] == [
        "stage 3 2x1: job 102 runs on node[1-2], starting",
        "stage 2 1x2 default/weak/r2: step 40 of 60, 1,240 samples/s, 3 s left; CPU 25 %",
    ]
    silent = [replace(soon, slurm=replace(soon.slurm, problem=f"no answer; again in {s} s")) for s in (20, 40)]
    assert [[line[20:] for line in changes.new_lines(each)] for each in silent] == [["no answer; again in 20 s"], []]
    assert [line[20:] for line in changes.new_lines(soon)] == ["Slurm answers again"]
    for spec in plan.runs:
        write_run(tmp_path, spec, 1000.0 * spec.gpus)
    (tmp_path / "jobs/1x2.lock1").unlink()
    for job in plan.jobs:
        (tmp_path / f"jobs/{job.scale}.json").unlink(missing_ok=True)
    edit(tmp_path / START_LOCK, lambda start: start.update(ended=True))
    (tmp_path / "report").mkdir()
    (tmp_path / "report/index.html").touch()
    last = [line[20:] for line in changes.new_lines(read(tmp_path))]
    assert "stage 2 1x2: finished" in last
    assert last[-1] == f"the ladder has ended; report: {tmp_path}/report/index.html"


def test_when_a_ladder_is_over(tmp_path: Path) -> None:
    climb_to(tmp_path, THREE, "1x2")
    state = read(tmp_path, job101=RUNS)
    assert not state.is_over
    edit(tmp_path / START_LOCK, lambda start: start.update(ended=True))
    assert not read(tmp_path, job101=RUNS).is_over  # its job goes on
    (tmp_path / "jobs/1x2.lock1").unlink()
    assert not read(tmp_path, job101=RUNS).is_over
    assert read(tmp_path).is_over
    assert not replace(read(tmp_path), slurm=SlurmAnswer()).is_over  # not asked yet
