from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from ddp_ladder.climb.start_lock import START
from ddp_ladder.common.files import write_json
from ddp_ladder.live.reader import Reader
from ddp_ladder.plan.plan import RunSpec
from ddp_ladder.records.assemble import assemble
from ddp_ladder.records.record import write_record
from make_live import climb_to, progress_of, run_of
from make_runs import write_run

MOST_READS = 25
TEN = ("1x1", "1x2", "1x4", "2x4", "3x4", "4x4", "6x4", "8x4", "12x4", "16x4")


def test_what_goes_on(tmp_path: Path) -> None:
    climb_to(tmp_path, ("1x1", "1x2", "2x1"), "1x2", gpus=2)
    state = Reader(tmp_path).read(everything=True)
    one, two, three = state.scales
    assert (one.is_done, two.is_done, three.is_done) == (True, False, False)
    assert [run.phase for run in two.runs] == ["ended", "started", "to do"]
    assert [run.record.throughput is not None for run in two.runs if run.record] == [True]
    running = two.running
    assert running is not None
    assert running.progress is not None
    assert running.progress["step"] == 40
    assert str(running.expected and running.expected.total(running.progress)) == "60"
    assert [len(sample.gpus) for sample in running.samples] == [2]
    assert set(state.gates) == {"stage1"}
    assert state.is_at_work
    assert state.slurm_ids == {"101", "102"}
    assert state.problems == ()


def test_a_large_ladder_takes_few_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = climb_to(tmp_path, TEN, "16x4", gpus=1)
    reader = Reader(tmp_path)
    reader.read()
    opened: list[Path] = []
    before = Path.open

    def counted(path: Path, *arguments: Any, **options: Any) -> Any:
        opened.extend([path] if path.is_relative_to(tmp_path) else [])
        return before(path, *arguments, **options)

    monkeypatch.setattr(Path, "open", counted)
    running = plan.jobs[-1].runs[1]
    nodes = set()
    for look in range(6):
        begun = reader.files.reads
        write_json(run_of(tmp_path, running).progress, progress_of(41 + look))
        opened[:] = []
        state = reader.read()
        assert reader.files.reads - begun <= MOST_READS
        assert len(opened) <= MOST_READS
        assert not [path for path in opened if path.is_relative_to(tmp_path / "runs/default/weak/1x1")]
        now = state.scales[-1].running
        assert now is not None
        assert now.progress is not None
        assert now.progress["step"] == 41 + look
        nodes |= {sample.node for sample in now.samples}
    assert len(nodes) == 16


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
    for path in (tmp_path / START, tmp_path / "plan.json", run.progress, run.samples(0)):
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
