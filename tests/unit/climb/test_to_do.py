"""What the next start repeats, and what it keeps: after each end that a run can have, and after each kind of change."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from ddp_ladder.assembly import assemble as assembly
from ddp_ladder.assembly.assemble import not_run
from ddp_ladder.assembly.run_records import RunRecords
from ddp_ladder.climb.ladder import restore_records, runs_of_edited_scripts, runs_to_do
from ddp_ladder.common.files import RunDirectory, write_json
from ddp_ladder.plan.plan import Plan, RunSpec, ScaleJob
from ddp_ladder.records.record import Record, read_record, write_record
from ddp_ladder.settings.keys import GateThresholds, Slurm
from ddp_ladder.slurm.jobs import SUBMITTED, JobEnd, write_job_end
from make_records import FINGERPRINT, make_plan_of, make_spec, make_specs
from make_runs import RATES, edit, reassemble, write_ladder, write_run

RUN, SIBLING = "default/weak/1x2/r2", "default/weak/1x2/r1"
NAMES = {spec.name for spec in make_specs(["1x1", "1x2", "2x1"], repeats=2)}


def run_of(results: Path, name: str = RUN) -> RunDirectory:
    return RunDirectory(results / "runs" / name)


def spec_of(name: str = RUN) -> RunSpec:
    return next(spec for spec in make_specs(["1x1", "1x2", "2x1"], repeats=2) if spec.name == name)


def _failed(results: Path, name: str = RUN) -> None:
    edit(run_of(results, name).ranks / "rank1.json", lambda end: end.update(exit_code=3))
    reassemble(run_of(results, name))


def _without_raw_files(results: Path) -> None:
    shutil.rmtree(run_of(results).path)


def _left_out(results: Path) -> None:
    _without_raw_files(results)
    write_record(run_of(results).record, not_run(spec_of(), "no time", "the job's time was up", "raise it"))


def _left_out_after_its_sibling(results: Path) -> None:
    _failed(results, SIBLING)
    _without_raw_files(results)
    why = f"{SIBLING} failed in the same job"
    write_record(run_of(results).record, not_run(spec_of(), "variant stopped", why, "see it"))


def _interrupted(results: Path) -> None:
    for file in (run_of(results).ended, run_of(results).record, run_of(results).ranks / "rank1.json"):
        file.unlink()


def _killed(results: Path) -> None:
    """As _interrupted, and nobody has seen the end of its job."""
    run = run_of(results)
    for path in (run.ended, run.record, run.log, run_of(results, SIBLING).record):
        path.unlink()
    for directory in (run.ranks, run.nodes):
        shutil.rmtree(directory)
    write_job_end(results, JobEnd("7", "stage2", "1x2", SUBMITTED, "7.log"))


def _time_limit(results: Path) -> None:
    edit(run_of(results).ended, lambda ended: ended.update(outcome="time limit"))
    reassemble(run_of(results))


def _damaged(results: Path) -> None:
    file = run_of(results).ranks / "rank1.steps"
    file.write_bytes(file.read_bytes()[:-1])


NOTHING: set[str] = set()
ENDS: dict[str, tuple[Callable[[Path], None], set[str]]] = {
    "ok": (lambda results: None, NOTHING),
    "failed": (_failed, {RUN}),
    "time limit": (_time_limit, {RUN}),
    "left out: time up": (_left_out, {RUN}),
    "left out: variant failed": (_left_out_after_its_sibling, {RUN, SIBLING}),
    "interrupted": (_interrupted, {RUN}),
    "killed": (_killed, {RUN}),
    "not run yet": (_without_raw_files, {RUN}),
    "damaged record": (lambda results: run_of(results).record.write_text("{") and None, NOTHING),
    "damaged raw file": (_damaged, {RUN}),
}


def _of_specs(plan: Plan, change: Callable[[RunSpec], RunSpec]) -> Plan:
    return replace(plan, jobs=tuple(replace(job, runs=tuple(change(run) for run in job.runs)) for job in plan.jobs))


def _of_jobs(plan: Plan, change: Callable[[ScaleJob], ScaleJob]) -> Plan:
    return replace(plan, jobs=tuple(change(job) for job in plan.jobs))


def _at_2x1(run: RunSpec) -> RunSpec:
    return run.replace(env={"A": "b"}) if str(run.scale) == "2x1" else run


def _moved_and_touched(results: Path) -> None:
    results.rename(results.with_name("moved"))
    for path in results.with_name("moved").rglob("*"):
        os.utime(path, (0, 0))


Alter = Callable[[Path, Plan], Plan | None]
CHANGES: dict[str, tuple[Alter, set[str]]] = {
    "none": (lambda results, plan: None, NOTHING),
    "argument": (lambda results, plan: _of_specs(plan, lambda run: run.replace(args=("--amp",))), NAMES),
    "argument of one scale": (lambda results, plan: _of_specs(plan, _at_2x1), {n for n in NAMES if "2x1" in n}),
    "runtime": (lambda results, plan: _of_jobs(plan, lambda job: replace(job, runtime_min=99)), NOTHING),
    "queue": (lambda results, plan: _of_jobs(plan, lambda job: replace(job, slurm=Slurm(partition="x"))), NOTHING),
    "threshold": (lambda results, plan: replace(plan, gates={"stage2": GateThresholds(min_efficiency=0.99)}), NOTHING),
    "another plan.json": (lambda results, plan: write_json(results / "plan.json", {}), NOTHING),
    "moved, and older time stamps": (lambda results, plan: _moved_and_touched(results), NOTHING),
}


@pytest.fixture(scope="module")
def climbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Plan]:
    results = tmp_path_factory.mktemp("climbed") / "results"
    return results, write_ladder(results)


@pytest.fixture
def ladder(climbed: tuple[Path, Plan], tmp_path: Path) -> tuple[Path, Plan]:
    """A ladder climbed to its top, to be spoilt."""
    shutil.copytree(climbed[0], tmp_path / "results")
    return tmp_path / "results", climbed[1]


def to_do(plan: Plan, results: Path) -> set[str]:
    missing_at = runs_to_do(plan, RunRecords(results))
    assert all(missing_at.values())
    assert all(str(spec.scale) == scale for scale, missing in missing_at.items() for spec in missing)
    return {spec.name for missing in missing_at.values() for spec in missing}


CASES = [
    *((end, "none") for end in ENDS),
    *(("ok", change) for change in CHANGES if change != "none"),
    *((end, "argument of one scale") for end in ("failed", "damaged record", "killed")),
]


@pytest.mark.parametrize(("end", "change"), CASES)
def test_what_the_next_start_repeats(ladder: tuple[Path, Plan], end: str, change: str) -> None:
    results, plan = ladder
    spoil, bad = ENDS[end]
    spoil(results)
    alter, touched = CHANGES[change]
    plan = alter(results, plan) or plan
    moved = results.with_name("moved")
    assert to_do(plan, moved if moved.exists() else results) == bad | touched


# ---- Records are restored; runs are not. ----


def test_a_missing_or_damaged_record_is_assembled_again(ladder: tuple[Path, Plan]) -> None:
    results, plan = ladder
    before = {spec.name: run_of(results, spec.name).record.read_bytes() for spec in plan.runs}
    run_of(results).record.unlink()
    run_of(results, SIBLING).record.write_text("{")
    assert list(restore_records(plan, RunRecords(results))) == [run_of(results, name).record for name in (SIBLING, RUN)]
    assert {spec.name: run_of(results, spec.name).record.read_bytes() for spec in plan.runs} == before
    assert list(restore_records(plan, RunRecords(results))) == []


def test_what_a_job_left_that_could_not_write_its_records_is_taken(
    ladder: tuple[Path, Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    results, plan = ladder
    run = run_of(results)
    run.record.rename(run.assembled)

    def assemble(directory: RunDirectory) -> Record:
        raise AssertionError(f"{directory.path} is assembled again")

    monkeypatch.setattr(assembly, "assemble", assemble)
    assert not runs_to_do(plan, RunRecords(results))
    assert list(restore_records(plan, RunRecords(results))) == [run.record]
    assert not run.assembled.exists()


def test_a_scale_with_something_to_do_leaves_its_records_to_its_job(ladder: tuple[Path, Plan]) -> None:
    """Snakemake knows them as outputs of that job."""
    results, plan = ladder
    _killed(results)
    assert list(restore_records(plan, RunRecords(results))) == []
    assert not run_of(results, SIBLING).record.exists()


def test_a_plain_baseline_that_cannot_run_is_not_tried_again(tmp_path: Path) -> None:
    specs = [make_spec("1x1", variant=variant, repeat=k) for k in (1, 2) for variant in ("default", "plain")]
    specs = [spec.replace(launcher="python") if spec.is_plain else spec for spec in specs]
    for spec in specs:
        write_run(tmp_path, spec)
    results, plan = tmp_path, make_plan_of(specs)
    run = run_of(results, "plain/weak/1x1/r1")
    edit(run.ranks / "rank0.json", lambda end: end.update(exit_code=1, exception="ValueError: RANK expected"))
    shutil.rmtree(run_of(results, "plain/weak/1x1/r2").path)
    assert to_do(plan, results) == set()
    shutil.rmtree(run.path)
    assert to_do(plan, results) == {"plain/weak/1x1/r1", "plain/weak/1x1/r2"}


def test_a_variant_that_a_gate_keeps_out_asks_for_no_job_until_the_gate_would_let_it_in(tmp_path: Path) -> None:
    """It did not pass the gate of stage 2, and was left out of stage 3."""
    specs = make_specs(["1x1", "1x2", "2x1"], repeats=1, variants=["default", "ring"])
    for spec in specs:
        slow = spec.variant == "ring" and str(spec.scale) == "1x2"
        if spec.variant == "default" or spec.nodes == 1:
            write_run(tmp_path, spec, 1100.0 if slow else RATES[str(spec.scale)])
        else:
            write_record(run_of(tmp_path, spec.name).record, not_run(spec, "variant stopped", "ring", "see it"))
    plan = make_plan_of(specs)
    assert to_do(plan, tmp_path) == set()
    run_of(tmp_path, "ring/weak/1x1/r1").record.unlink()
    assert to_do(plan, tmp_path) == set()
    lowered = replace(plan, gates={**plan.gates, "stage2": GateThresholds(min_efficiency=0.3)})
    assert to_do(lowered, tmp_path) == {"ring/weak/2x1/r1"}
    shutil.rmtree(run_of(tmp_path, "ring/weak/1x2/r1").path)
    assert to_do(plan, tmp_path) == {"ring/weak/1x2/r1", "ring/weak/2x1/r1"}


# ---- The script. ----


def test_an_edited_script_repeats_nothing_and_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    plan = write_ladder(tmp_path, script="train.py")
    runs = RunRecords(tmp_path)
    assert runs_of_edited_scripts(plan, runs) == [], "it is not here"
    Path("train.py").write_bytes(b"train")
    assert FINGERPRINT["script_sha256"] == read_record(run_of(tmp_path).record).fingerprint.script_sha256
    assert runs_of_edited_scripts(plan, runs) == []
    Path("train.py").write_bytes(b"train harder")
    assert runs_of_edited_scripts(plan, runs) == list(plan.runs)
    assert to_do(plan, tmp_path) == set()
